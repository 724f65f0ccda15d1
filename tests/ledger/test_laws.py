"""The laws of the ledger that a script can tell (`script.py`), by topic: each holds on every store."""

from collections.abc import Callable
from itertools import product

import pytest

from onejob.jobs.lifecycle import RULES, Transition
from onejob.stores.protocol import Store
from tests.conftest import STORES
from tests.ledger.script import Script
from tests.stores.support import ManualClock
from tests.tiers import deep

STATES = {
    "queued": "submit a", "running": "run a", "retrying": "run a; apply a retry",
    "completed": "run a; apply a complete", "failed": "run a; apply a fail", "canceled": "submit a; apply a cancel",
}  # fmt: skip
"""What brings a job into each state."""
FINAL = ("completed", "failed", "canceled")
FORCES = {False: 1, True: 2}
ENDS = (Transition.COMPLETE, Transition.FAIL, Transition.ABANDON, Transition.DEAD_LETTER)
REFUSALS = {
    "delete": (FINAL, "JobNotEndedError"), "run_now": (("queued", "retrying"), "NotWaitingError"),
    "redrive": (("failed",), "NoDeadLetterError"), "drop": (("failed",), "NoDeadLetterError"),
}  # fmt: skip
"""The states in which each operation is possible, and its refusal in others."""
ASKED = "apply a request_cancel cancel=1"
DEAD = "run a retries=3; crash a; start a; cancel a; step a; fail a"
DUE_AGAIN = "run_now a reason='by ops'; changed a run_at=now wake_at=now published=0 publish_error="
SERVED = "a detail='by ops' events=run_now; sweep published=1; sent a; start a; complete a; legal a"
OVER = [
    ("queued", "release a"), ("running", "crash a; pass 1; claim a applied=True"),
    ("queued", f"{ASKED}; apply a release"),
]  # fmt: skip
"""The state of a job after a run that is over, and how it was reached."""
FOLLOWED = "run a:same lease=LONG; follow f after=a"
RUN_ENDS = {
    "complete a result=x": "state=completed result=x reason=completed wake_at=now+DAY",
    "fail a": "state=failed reason='it broke' error=bad wake_at=now+14*DAY",
    "abandon a": "state=canceled reason=stopped wake_at=now+DAY",
}
AGAIN = "payload=p options=o retries=3 reason=again"
WAITS = {
    f"retry a delay=7 {AGAIN} error=bad":
        f"state=retrying run_at=now+7 wake_at=now+7 published_at=None error=bad {AGAIN}",
    f"retry a {AGAIN}": f"state=retrying run_at=now wake_at=now+LEASE published_at=now {AGAIN}",
    "release a reason=stop": "state=queued wake_at=now+LEASE published_at=now reason=stop",
    "crash a": "state=queued wake_at=now+LEASE published_at=now reason=killed crashes=1",
}  # fmt: skip
"""What each end of a run sets, besides what all of them set."""
MEANWHILE = {
    "claim": "start a",
    "retry": "start a & retry a delay=5",
    "release": "start a & release a",
    "cancel": "cancel a",
}
"""What ends the wait of a job."""
DEBOUNCED = "delay=5 replaces=True queue_next=True max_wait=60"
BACKOFF = (10, 20, 40, 80, 160, 320, 640)


LAWS: dict[str, dict[str, str | list[str]]] = {
    "cancel": {
        "Before a run, a cancellation ends the job: it frees the identity, and is purged after its retention.": [
            f"{STATES[state]}; pass 1; cancel a force={force} reason='not needed'; changed a state=canceled "
            "holds_identity=False finished_at=now wake_at=now+DAY reason='not needed'; a detail='not needed'; "
            "submit b:identity-of-a"
            for state, force in product(("queued", "retrying"), FORCES)
        ],
        "If a canvas waits for a job that is canceled before a run, a sweep notifies it at once.":
            "submit a canvas=True; pass 1; cancel a; a wake_at=now",
        "A running job keeps its state, lease and identity: the request is in its history and its next heartbeat.": [
            f"run a; pass 1; cancel a force={force} reason=why; changed a cancel={cancel}; "
            f"a events=request_cancel detail=why; renew a cancel={cancel}"
            for force, cancel in FORCES.items()
        ],
        "A request to stop can be followed by force, which no later one replaces; the history has each once.":
            "run a; cancel a reason=first; a cancel=1 detail=first; keep cancel a reason=weak; "
            "cancel a force=True reason=strong; a cancel=2 detail=strong; keep cancel a force=True reason=again; "
            "keep cancel a reason=weak; renew a cancel=2",
        "A cancellation of a job that has ended changes nothing.": [
            "submit a; cancel a; keep cancel a force=True reason=second",
            *(f"run a; apply a {end} wake_after=100; keep cancel a force=True reason=second" for end in ENDS),
        ],
        "If a waiting job is claimed during its cancellation, the cancellation is requested of the run.": [
            f"submit a; meanwhile get_many start a; cancel a force={force}; a state=running cancel={cancel}"
            for force, cancel in FORCES.items()
        ],
        "If a running job is released during its cancellation, the job is canceled at once.": [
            f"run a; meanwhile get_many apply a {event}; cancel a; a state=canceled holds_identity=False"
            for event in ("release", "retry", "crash")
        ],
        "If a run ends during its cancellation, the cancellation returns that end.": [
            f"run a; meanwhile get_many apply a {end} wake_after=100; cancel a; a state={RULES[end].target} cancel=0"
            for end in ENDS
        ],
    },
    "operations": {
        "An unknown id raises an error; the refusal of a job has its state, and changes nothing.": [
            f"{reached}; refuse {refusal} {name} a state={state}; refuse JobNotFoundError {name} nobody"
            for name, (states, refusal) in REFUSALS.items()
            for state, reached in STATES.items() if state not in states
        ],
        "A job in a final state is deleted with its history, and its id says how it ended.": [
            f"{STATES[state]}; delete a; gone a; refuse JobPurgedError get a state={state}; "
            f"refuse JobPurgedError delete a"
            for state in FINAL
        ],
        "A completed job is refused within its uniqueness window, with the end of that, and deleted after it.":
            "run a; complete a for=60; refuse UniquenessWindowError delete a until=at(60); pass 60; delete a; gone a; "
            "submit b:identity-of-a",
        "A delayed or retrying job is due at once, keeps its state and reason, and the next sweep publishes it.": [
            f"submit a delay=3600; pass 1; {DUE_AGAIN}; {SERVED}",
            (f"run a; apply a retry run_in=3600 wake_after=3600 published=2 publish_error=no; pass 1; {DUE_AGAIN}; "
            f"{SERVED}"),
        ],
        "A job that is due already is returned as it is, with no entry in its history.":
            "submit a delay=5; pass 5; keep run_now a",
        "A follower, and the job that is queued next, are refused with the job whose end they wait for.":
            "run a:same; queue b; follow c after=a; refuse NotWaitingError run_now b follows_id=a; "
            "refuse NotWaitingError run_now c follows_id=a",
        "If the job is claimed between the read and the change, it is refused as running; a retry since then is due.": [
            "submit a delay=5; meanwhile read_clock pass 5 & start a; raise NotWaitingError run_now a state=running",
            ("submit a delay=5; meanwhile read_clock pass 5 & start a & apply a retry run_in=3600 wake_after=3600; "
            "run_now a; a state=retrying run_at=now attempt=1"),
        ],
        "A waiting job whose cancellation was requested is canceled instead of made due.":
            f"run a; {ASKED}; apply a retry run_in=60 wake_after=60; run_now a; a state=canceled",
        "A redriven job waits like a new one: it is due at once, holds its identity, is not purged, and may complete.":
            f"{DEAD}; pass 100; redrive a; a state=queued holds_identity=True run_at=now wake_at=now finished_at=None "
            "lease_until=None result=None error=None retries=0 crashes=0 published=0 attempt=2 cancel=0; steps a 1; "
            "holders identity-of-a a; submit b:identity-of-a outcome=attached by=a; pass 14*DAY; sweep published=1; "
            "a state=queued; sent a; start a; a attempt=3; complete a result=late; "
            "a state=completed result=late holds_identity=False; legal a",
        "A completed job refuses a redrive within its uniqueness window, and releases the identity after it.":
            "run a:same; fail a; run b:same; complete b for=60; pass 59; "
            "refuse IdentityHeldError redrive a holder_id=b holder_state=completed; pass 1; redrive a; holders same a; "
            "b holds_identity=False; legal a b",
        "Of two concurrent redrives of a job, one succeeds, and the other is refused.":
            "run a; fail a; meanwhile get_many redrive a; raise NoDeadLetterError redrive a; a events=fail,redrive",
        "A follower that failed with the followed job is not redriven alone, and waits again after that job's redrive.":
            "run a; follow f after=a; fail a; start f; fail f; refuse NoDeadLetterError redrive f follows_id=a; "
            "redrive a; rejoin f canvas=True; f state=queued follows_id=a finished_at=None error=None "
            "holds_identity=False canvas_pending=True; holders identity-of-a a; start a; complete a; start f; "
            "complete f; legal a f; rejoin f canvas=True applied=False",
        "A follower that waits again is due at once if the job that it follows has ended, or is gone.": [
            ("run a; follow f after=a; fail a; start f; fail f; redrive a; start a; complete a; "
            "rejoin f canvas=False; f wake_at=now"),
            "run a; follow f after=a; fail a; start f; fail f; forget a; rejoin f canvas=False; f wake_at=now",
        ],
        "A redriven job notifies its canvas of the new end, and forgets its steps, if the redrive says so.": [
            "run a canvas=True; fail a; notified a; redrive a canvas=True; a canvas_pending=True",
            f"{DEAD}; redrive a forget_steps=True; a canvas_pending=False; steps a 0",
        ],
        "A replaced job is queued with the new payload and options, and without steps; nothing else of it changes.":
            "run a retries=3; step a; crash a; start a; pass 5; replace a; changed a state=queued lease_until=None "
            "run_at=now wake_at=now+LEASE retries=0 crashes=0 published_at=now payload=new options=new "
            "reason=replaced; "
            "steps a 0; start a; legal a",
        "A replacement with a delay runs when it is due, and not before.":
            "run a; replace a delay=60; pass 59; sweep; pass 1; sweep published=1; sent a; start a; a attempt=2",
        "The replacement of a run that has lost its job is refused.":
            "run a; crash a; claim a applied=True; refuse StaleTokenError replace a",
        "A job whose run was asked to stop is canceled instead of replaced.":
            "run a; cancel a; replace a; a state=canceled",
    },
    "windows, keys and tombstones": {
        "Within its window a completed job answers; at the end, before any sweep, another is admitted.":
            "run a:same; complete a result=x for=60; a holds_identity=True identity_until=now+60; pass 59.9; "
            "submit b:same outcome=replayed by=a; pass 0.1; submit c:same; holders same c; "
            "a events=release_identity; legal a",
        "A window can end at a given time, whenever the job completed; a time in the past keeps no identity.":
            "run a:same; complete a until=START+10; submit b:same outcome=replayed by=a; pass 10; submit c:same; "
            "start c; "
            "complete c until=START; submit d:same",
        "A completed job is purged an hour after its window, which releases its identity.":
            "run a:same; complete a for=DAY; pass DAY; sweep; pass HOUR; sweep purged=1; submit b:same",
        "A run that has lost its job to a crash cannot release the identity of the job, which waits again.":
            "run a:same; crash a; refuse StaleTokenError free a; a holds_identity=True",
        "A run that releases its identity continues; an equal job is admitted, and neither end changes the other job.":
            "run a:same; free a; a state=running holds_identity=False; submit b:same; complete a for=60; changed b; "
            "a holds_identity=False; holders same b",
        "An ended job is purged after its retention, but not before the retention of its last key ends.": [
            ("run a key=k key_for=DAY+100; complete a; pass DAY; sweep; a wake_at=START+DAY+100; pass 99.5; "
            "submit b key=k outcome=replayed by=a; sweep; pass 0.5; sweep purged=1; submit c key=k fingerprint=other"),
            "run a key=k key_for=DAY-100; complete a; pass DAY; sweep purged=1; submit c key=k fingerprint=other",
        ],
        "The id of a purged job has its end while its tombstone is kept, and is unknown afterwards.":
            "run a; complete a; pass DAY; sweep purged=1; refuse JobPurgedError cancel a; "
            "refuse JobPurgedError redrive a; "
            "refuse JobPurgedError drop a; refuse JobPurgedError get a job_id=a state=completed finished_at=at(0) "
            "purged_at=at(DAY); pass 7*DAY; refuse JobNotFoundError get a",
        "A dead letter that is dropped by force is deleted with its keys, and leaves a tombstone that says failed.":
            "run a key=k; fail a; refuse JobNeededError drop a; drop a force=True; "
            "refuse JobPurgedError get a state=failed; submit b key=k fingerprint=other",
        "Without a retention of tombstones a purged job is unknown.":
            "settings tombstone_retention=0; run a; complete a; pass DAY; sweep purged=1; "
            "refuse JobNotFoundError get a",
        "What was submitted before a backward jump is published, at the latest when the clock is where it was.":
            "submit a; pass -3600; submit b; pass 30; sweep published=1; pass 3600; sweep published=2; sent a b b; "
            "start a b; complete a; complete b",
        "An ended job is kept for its state's retention, which a setting decides, and then deleted with its history.": [
            f"run a; {end} a; pass {days}*DAY-0.5; sweep; pass 0.5; sweep purged=1; gone a; "
            f"settings retention={{State.{state.upper()}:7.0}}; run b; {end} b; b wake_at=now+7"
            for end, state, days in (("complete", "completed", 1), ("fail", "failed", 14), ("abandon", "canceled", 1))
        ],
        "A notification of a canvas extends no retention of a job without a canvas, or whose canvas was notified.": [
            "run a; complete a; pass 1; keep notified a",
            "run a canvas=True; complete a; notified a; pass 1; keep notified a",
        ],
    },
    "runs": {
        "An end frees the identity and the lease, and is kept for its retention; a canvas is notified in a lease.": [
            f"run a canvas={canvas}; pass 2; {end}; changed a {columns} holds_identity=False lease_until=None "
            f"finished_at=now{' wake_at=now+LEASE' * canvas}"
            for (end, columns), canvas in product(RUN_ENDS.items(), (False, True))
        ],
        "A run that ends in a wait keeps the identity, is due at its `run_at` or in one lease, and counts anew.": [
            f"run a; apply a update_progress published={published}; pass 2; {end}; changed a {columns} "
            "lease_until=None published=0"
            for (end, columns), published in product(WAITS.items(), (0, 1, 6))
        ],
        "A worker that releases a job without publishing it chooses when the sweep publishes it.": [
            f"run a; pass 1; release a wake_after={soon}; a state=queued wake_at=now+{soon} published=0; pass {soon}; "
            "sweep published=1"
            for soon in (0.0, 4.0)
        ],
        "A run that has ended, lost its lease, or whose job waits to be canceled is refused with an error, whole.": [
            f"run a; {ended}; refuse StaleTokenError {end} a job_id=a state={state}"
            for (state, ended), end in product(OVER, "complete fail abandon retry release replace".split())
        ],
        "A report raises an error after a cancel request, while steps are kept, and another one after a crash.":
            "run a; report a false; cancel a; raise JobCanceled report a true; step a; a progress=true; steps a 1; "
            "crash a; raise LeaseLost report a null; raise LeaseLost step a",
        "The end of a job that no longer exists is refused.":
            "run a; complete a; forget a; refuse StaleTokenError complete a",
        "A run with a cancel request that ends in a wait, or crashes, is canceled at once.": [
            f"run a; cancel a force=True; {end}; a state=canceled holds_identity=False finished_at=now wake_at=now+DAY"
            for end in WAITS
        ],
        "A cancel request does not discard finished work: the run's own end is accepted.": [
            f"run a; cancel a; {end}; a {columns}" for end, columns in RUN_ENDS.items()
        ],
        "At the crash limit the job fails, with its error and the number of crashes; before, it is queued again.": [
            f"settings crash_limit={limit}; submit a; "
            + "".join(f"start a; crash a; a state=queued crashes={n} holds_identity=True; " for n in range(1, limit))
            + f"start a; crash a; a state=failed crashes={limit} holds_identity=False wake_at=now+14*DAY "
            f"says='{limit} times' events=dead_letter"
            for limit in (1, 2, 3)
        ],
        "A late report that an earlier run crashed neither queues nor dead-letters the job of the current run.": [
            f"settings crash_limit={limit}; run a; release a; pass 1; claim a applied=True; pass LEASE; "
            "keep crash a applied=False; keep crash a applied=False lapsed=True; sweep lapsed=1"
            + " published=1" * (limit > 1)
            for limit in (1, 2)
        ],
        "The claim of an expired job cancels it, and its refusal has the expiry as the reason.":
            "submit a expires_in=5; pass 5; claim a applied=False; "
            "a state=canceled finished_at=now holds_identity=False "
            "says=expired",
        "A job whose claim is refused because it is not due continues to wait, and keeps its expiry.":
            "submit a delay=5 expires_in=50; keep claim a applied=False",
        "If a cancellation was requested and not finished, the next claim finishes it.":
            f"run a; {ASKED}; apply a release; claim a applied=False; a state=canceled",
    },
    "sweeps": {
        "One sweep publishes, recovers, expires and purges the jobs that are due, and counts each kind.":
            "submit queued; run lapsed; submit expired expires_in=3; run ended; complete ended; run part canvas=True; "
            "complete part; apply ended canvas_notified wake_after=2; pass LEASE; submit later; "
            "sweep published=3 lapsed=1 canceled=1 purged=1; sent part lapsed queued; part state=completed; "
            "expired state=canceled; lapsed state=queued; later state=queued; gone ended",
        "Of the jobs whose messages a dead worker has held, those that wait are published by the next sweep.":
            "submit delayed route=q delay=100; run running; submit waiting route=q; "
            "lost delayed running waiting nobody; "
            "changed delayed; changed running; waiting published_at=None wake_at=now; sweep published=1; sent waiting",
        "A job that expires before a run is canceled, not published, and its identity is free.":
            "submit a expires_in=5; pass 5; sweep canceled=1; "
            "changed a state=canceled holds_identity=False finished_at=now "
            "wake_at=now+DAY reason='it expired before a run started'",
        "An expired job gives its identity to an equal submission, and is canceled by the next sweep.": [
            "submit a:same expires_in=5; pass 4.9; submit b:same expires_in=0.1 outcome=attached by=a; pass 0.1; "
            f"submit c:same rejects={rejects}; a holds_identity=False detail='it has expired'; sweep canceled=1; "
            "a state=canceled events=release_identity,expire; c holds_identity=True"
            for rejects in (False, True)
        ],
        "A job whose run was lost is queued again and published by the same sweep, with one more crash.":
            "run a; pass LEASE; sweep published=1 lapsed=1; changed a state=queued crashes=1 lease_until=None "
            "wake_at=now+LEASE published_at=now reason='its lease expired'; sent a",
        "At the crash limit an expired lease fails the job, and one with a cancel request is canceled, unpublished.": [
            "run a; cancel a force=True; pass LEASE; sweep lapsed=1; a state=canceled",
            ("settings crash_limit=1; run a; pass LEASE; sweep lapsed=1; "
            "a state=failed holds_identity=False wake_at=now+14*DAY says=WorkerLost"),
        ],
        "A late heartbeat, before the sweep writes, prevents a crash and a dead letter, and a late end is the end.": [
            f"settings crash_limit={limit}; run a; pass LEASE; meanwhile take_due renew a; sweep; "
            "changed a lease_until=now+LEASE wake_at=now+LEASE; pass LEASE; meanwhile take_due complete a; sweep; "
            "a state=completed"
            for limit in (1, 3)
        ],
        "When the broker is down, the job is due again after the seconds of `hold`, and no publication is counted.":
            "settings hold=90; submit a; pass LEASE; raise BrokerUnavailableError sweep away; "
            "a published=0 wake_at=now+90 events=submit; sweep; pass 90; sweep published=1",
        "A sweeper without the task of a lost run recovers it, and leaves its publication to one that has the task.":
            "run a; pass LEASE; sweep tasks=other.task lapsed=1; a state=queued wake_at=now; sweep published=1",
        "Where no queue can be looked at, each pause is twice as long as the one before, and after a run short again.":
            "submit a lease=10; pass 10; "
            + "".join(
                f"sweep published=1; a published={number} published_at=now wake_at=now+{pause}; pass {pause}-0.5; "
                f"sweep; "
                "pass 0.5; "
                for number, pause in enumerate(BACKOFF, start=1)
            )
            + "start a; release a; pass 10; sweep published=1; a wake_at=now+10",
    },
    "sweeps and messages": {
        "A job that was released after a cancel request, and not canceled by its worker, is canceled, unpublished.":
            f"run a; {ASKED}; apply a release wake_after=1; pass 9; sweep canceled=1; a state=canceled events=cancel",
        "A message is sent again when it is known to be gone, and not before.": [
            f"submit a route=q; pass LEASE; sweep gone={soon}; a wake_at=now+{soon}; pass {soon}; "
            "sweep gone=0 published=1; a wake_at=now+LEASE published_at=now"
            for soon in (0.25, 0.75)
        ],
        "A job whose message may still be delivered is looked at after as long as it has waited: 1 to 20 leases.": [
            f"due a route=q wake_after={waited}*LEASE; pass {waited}*LEASE; sweep; a wake_at=now+{leases}*LEASE"
            for waited, leases in ((0.5, 1), (2.5, 2.5), (19, 19), (21, 20))
        ],
        "An ended job whose end is in its queue, for its canvas, is looked at by the end of its retention.": [
            f"settings retention={{State.COMPLETED:2*LEASE+{left}}}; run a canvas=True route=q; complete a; "
            f"pass LEASE; sweep published=1; pass LEASE; sweep; a wake_at=now+{left}"
            for left in (0.5, 15)
        ],
        "A sweep that may not end leases leaves lost runs to their heartbeats and to a later one, and does the rest.":
            "run a,lost; submit b; pass 2*LEASE; sweep ends=[False,False] published=1; renew a; "
            "sweep published=1 lapsed=1; sent b lost; a state=running",
        "A sweep asks once more before it ends a lease, since its call for due jobs may have waited for long.":
            "run a; pass LEASE; sweep ends=[True,False]; a state=running",
        "A lost run that its worker releases before the sweep writes is neither recovered nor published by it.":
            "run a; pass LEASE; meanwhile take_due release a; sweep; a events=release",
        "An error of the store while a message is sent is raised: the publication counts and is noted nowhere.":
            "submit a; pass LEASE; raise StoreRefusedError sweep store; a published=0 events=submit",
    },
    "during a sweep": {
        "If a job is changed after the sweep has read it, the publication is a copy, and is not noted on the job.": [
            f"submit a; {'pass 8*LEASE; sweep published=1; ' * 4}pass 8*LEASE; {when}; {sweep} published=1; changed a; "
            f"a events={event}"
            for event, change in MEANWHILE.items()
            for when, sweep in ((f"meanwhile take_due {change}", "sweep broker"), (f"during {change}", "sweep during"))
        ],
        "A retry during a sweep keeps its time, however long the message of the job has waited.":
            "due a route=q; sweep published=1; pass 9*LEASE; due b; during start a & retry a delay=1; "
            "sweep during published=1; a wake_at=now+1",
        "A duplicate that moves a job during its publication leaves it unpublished, and due at its new time.":
            f"submit a:same route=q {DEBOUNCED}; pass 5; during submit b:same outcome=attached by=a {DEBOUNCED}; "
            "sweep during published=1; a published_at=None run_at=now+5 wake_at=now+5",
        "If Celery notifies the canvas while the sweep publishes the end, the job keeps its retention.":
            "run a canvas=True; complete a; pass LEASE; during notified a; sweep during published=1; "
            "a wake_at=now+DAY; sweep",
    },
    "followers": {
        "A job that is queued after one that released its identity without an end is promoted and published.":
            "run a:same lease=5000; queue b; apply a release_identity keeps_identity=False; "
            "apply b publish wake_after=1; pass 1000; sweep published=1; sent b; b events=promote,publish",
        "A job that is queued next waits for its identity, although the job before it has ended.":
            "run a:same; queue b; apply a complete keeps_identity=True identity_for=5000 wake_after=5000; pass LEASE; "
            "sweep; b queued_next=True events=queue_next",
        "Only a queued follower waits for the end of what it follows: one whose run is to be retried is published.":
            "run a lease=5000; follow f after=a; start f; apply f retry wake_after=1; pass LEASE; sweep published=1",
        "A waiting follower is looked at each time that its age has doubled, and is published after the end.":
            f"{FOLLOWED}; pass LEASE; sweep; "
            + "".join(f"f events=postpone wake_at=now+{age}*LEASE; pass {age}*LEASE; sweep; " for age in (1, 2, 4))
            + "apply a complete wake_after=100; sweep published=1; sent f; f wake_at=now+LEASE",
        "The history of a follower says what it waits for, and one that ran meanwhile is not postponed.":
            f"{FOLLOWED}; pass LEASE; sweep; f detail='job a has not ended; its end makes this one due'; pass LEASE; "
            "meanwhile take_due start f & release f; sweep; f events=release",
        "A follower of a job that was deleted by an operator is published, so that it can end with an error.":
            "submit a; cancel a; follow f after=a; forget a; sweep published=1; sent f",
        "A follower of a job that was deleted before its end is published after one lease at the latest.":
            f"{FOLLOWED} lease=LONG; follow g after=f; forget f; pass LEASE; sweep published=1; sent g",
        "If the followed job ends while a sweep postpones its follower, the next sweep publishes the follower.":
            f"{FOLLOWED}; pass LEASE; meanwhile get_many apply a complete wake_after=100; sweep; sweep published=1",
        "A job that is queued next is postponed while another job holds its identity, and is promoted by its end.":
            "run a:same lease=LONG; queue b; pass LEASE; sweep; b wake_at=now+LEASE queued_next=True; "
            "apply a complete wake_after=100; sweep published=1",
        "A job that is queued next is postponed to its expiry at most, and is canceled then.":
            "run a:same lease=LONG; queue b expires_in=LEASE+5; pass LEASE; sweep; b wake_at=START+LEASE+5; pass 5; "
            "sweep canceled=1; b events=queue_next,postpone,expire",
        "A job is not purged while an unfinished follower points to it, and is looked at after as long again.":
            "run a:same; follow f after=a; follow g after=a; complete a result=x; pass DAY; sweep published=2; "
            "a wake_at=now+DAY result=x; start f; apply f complete wake_after=100; pass DAY; "
            "sweep published=1 purged=1; "
            "a state=completed; start g; apply g complete wake_after=100; pass 2*DAY; sweep purged=2; gone a f g",
        "A sweep ends the uniqueness window of a job that it cannot purge yet, and the history says so.":
            "run a:same; follow f after=a; complete a for=60; pass 2*DAY; sweep published=1; "
            "a holds_identity=False events=release_identity detail='its uniqueness window is over'",
        "A dead letter that is followed may be dropped by force; its followers are due then, and end with an error.":
            f"{FOLLOWED}; fail a; refuse JobNeededError drop a; drop a force=True; sweep published=1; sent f",
    },
    "publication": {
        "The history says where a message was sent, and the number of the publication.":
            "submit a route=slow; submit b; pass LEASE; sweep gone=0 published=2; "
            "a detail='published again to queue slow, publication 1'; b detail='published again, publication 1'; "
            "pass LEASE; sweep gone=0 published=2; a detail='published again to queue slow, publication 2'",
        "The pause after a publication doubles without a cap, and no number of publications is too large for it.": [
            f"submit a lease=10; apply a publish published={number} wake_after=0; sweep published=1; "
            f"a wake_at=now+10*2**{doublings}"
            for number, doublings in ((10, 10), (32, 32), (10_000, 32))
        ],
        "A setting decides after how many attempts a job becomes a dead letter; one that is claimed meanwhile runs.":
            "settings publish_limit=1; submit a; submit b; pass LEASE; meanwhile take_due start b; sweep refuse; "
            "a state=failed; b state=running",
        "An end is published for its canvas after 1, 2, 4, ... leases.":
            "run a canvas=True; complete a; pass LEASE; "
            + "".join(f"sweep published=1; a wake_at=now+{each}*LEASE; pass {each}*LEASE; " for each in (1, 2, 4, 8)),
        "The history says whether an end was sent, and when again; one that could not be sent counts as unsent.":
            "run a canvas=True route=q; complete a; pass LEASE; sweep published=1; a published=1 published_at=now "
            "publish_error= detail='published to queue q, publication 1; again in 30 s unless its canvas is notified'; "
            "canvas_error a no; a published_at=None publish_error=no detail='Celery could not notify its canvas: no'; "
            "pass LEASE; sweep refuse gone=0; a published=2 published_at=None publish_error='LookupError: q' "
            "detail='its message could not be sent to queue q, publication 2: LookupError: q; again in 60 s unless "
            "its canvas is notified'",
        "A retry is published by the job's own route, or by the one that was resolved for its new options.": [
            "run a route=first; retry a; a route=first", "run a route=first; retry a route=other; a route=other",
        ],
        "A job whose message the broker did not accept counts as unsent, is due, and its history says so.":
            "submit a route=q; unsent a; a published_at=None wake_at=now published=0 "
            "detail='the broker did not accept its message when it was queued; a sweep publishes it'",
        "After eight attempts, with pauses that double, the job fails with its reason, and its identity is free.":
            "submit a route=typo lease=10 delay=10; pass 10; "
            + "".join(
                f"sweep refuse; "
                f"a state=queued published={number} publish_error='LookupError: typo' wake_at=now+{pause}; "
                f"pass {pause}; "
                for number, pause in enumerate(BACKOFF, start=1)
            )
            + "sweep refuse; a state=failed holds_identity=False events=unpublishable says=Unpublishable "
            "reason='its message could not be sent 8 times: LookupError: typo'; redrive a; a published=0",
        "Successful publications do not count as failures, and one of them ends a row of failures.":
            "submit a; " + "pass 1e6; sweep published=1; " * 9 + "pass 1e6; sweep refuse; a state=queued published=1; "
            "pass 1e6; sweep published=1; a published=1 publish_error=",
        "When the lease of a run has expired and its job cannot be published, the error is recorded.":
            "run a; pass LEASE; sweep refuse lapsed=1; a publish_error='LookupError: '",
        "After the canvas was notified, the job is kept for its retention, and its end is not published any more.":
            "run a canvas=True; complete a; pass LEASE; sweep published=1; notified a; pass DAY-1; sweep; pass 1; "
            "sweep purged=1",
        "The attempts to notify a canvas are counted from the end of the job.":
            "submit a canvas=True; " + "pass 1e5; sweep refuse; " * 5 + "cancel a; a published=0 publish_error=",
        "The error of a notification is in the job, and the next attempt, whose end nobody knows yet, keeps it.":
            "run a canvas=True; complete a; pass LEASE; sweep published=1; canvas_error a '{no} backend'; "
            "a published=1 publish_error='{no} backend'; pass LEASE; sweep published=1; "
            "a published=2 publish_error='{no} backend'",
        "While the broker is away, no attempt to notify a canvas is counted.":
            "run a canvas=True; complete a; pass LEASE; raise BrokerUnavailableError sweep away; a published=0",
        "The last attempt is followed by the end of the retention; then the job is kept once more as long.": [
            f"run a canvas=True; complete a{window}; pass {kept}-1; sweep published=1; {error}; pass 1; sweep refuse; "
            f"a canvas_pending=False wake_at=now+{kept} events=canvas_abandoned detail='1 attempts{told}'; delete a"
            for window, kept, error, told in (
                ("", "DAY", "", ""), ("", "DAY", "canvas_error a none", "; the last error: none"),
                (" for=DAY", "(DAY+HOUR)", "", ""),
            )
        ],
    },
}  # fmt: skip


@pytest.mark.parametrize("topic", LAWS)
@pytest.mark.parametrize("kind", ["sqlite", *(pytest.param(kind, marks=deep) for kind in STORES if kind != "sqlite")])
def test_a_law_of_the_ledger_holds(
    fresh_stores: Callable[..., dict[str, Store]], clock: ManualClock, subtests: pytest.Subtests, kind: str, topic: str
) -> None:
    """Each script of a law plays as it is written, on SQLite, and so on every store that equals the model."""
    for law, scripts in LAWS[topic].items():
        for text in [scripts] if isinstance(scripts, str) else scripts:
            with subtests.test(law, script=text):
                Script(fresh_stores(kind)[kind], clock).play(text)

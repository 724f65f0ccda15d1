"""The sentences about the present state of a job are true, on the store's clock, and say why a job is stuck."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from onejob.jobs.lifecycle import State
from onejob.jobs.model import JobRow
from onejob.jobs.query import Query
from onejob.jobs.timestamps import format_timestamp
from onejob.jobs.workers import REGISTERED_TASKS_LIMIT, Registration, WorkerInfo
from onejob.ledger import stuck as stuck_module
from onejob.ledger.explain import Explanation, explain
from onejob.ledger.stuck import STUCK_LEASES, Snapshot, Stuck, find_stuck, list_stuck
from onejob.stores.protocol import Store
from onejob.webhooks.job import webhook_submission
from tests.cases import for_each
from tests.conftest import every_store
from tests.ledger.harness import LedgerHarness, retry
from tests.ledger.script import Script
from tests.stores import support
from tests.stores.support import LEASE, START, ManualClock, not_none

TASK = "app.add"
REGISTERED = Registration(tasks=(TASK,), queues=("celery",))
PAST = re.compile(r"Job \S+ runs the task |\d{4}-\d\d-\d\dT\S+  ")
LATE = STUCK_LEASES * LEASE + 1.0


class Present(Script):
    """A script about what is said of jobs, in which `@5` is the exact time 5 s after the start."""

    def start(self, job_id: str = "job-1") -> JobRow:
        return support.start(self.store, job_id, node="north")

    def do_worker(self, name: str = "north", **registration: Any) -> None:
        """Send a heartbeat that lasts for ever."""
        given: Any = {
            name: tuple(filter(None, [registration[name]])) for name in ("tasks", "queues") if name in registration
        }
        self.ledger.heartbeat(name, lasts=1e9, registration=replace(REGISTERED, **registration | given))

    def do_deliver(self) -> None:
        self.ledger.store.deliver(["celery"], limit=1)  # type: ignore[attr-defined] # of a `DeliveringStore`

    def do_why(self, job_id: str) -> Explanation:
        return explain(self.ledger, job_id)

    def do_says(self, job_id: str, *expected: str, stuck: str = "") -> None:
        """Assert which sentences are said about the present; one that says why the job is stuck is the last."""
        reason = Stuck[stuck] if stuck else None
        found = [line for line in self.do_why(job_id).sentences if not PAST.match(line)]
        assert found == [*map(timed, expected), *([f"It is stuck: {reason}."] if reason else [])]
        assert self.do_why(job_id).stuck is reason

    def do_has(self, job_id: str, text: str) -> None:
        """Assert that a sentence has a text."""
        assert any(timed(text) in each for each in self.do_why(job_id).sentences), self.do_why(job_id).sentences

    def do_lacks(self, job_id: str, text: str) -> None:
        assert not any(text in each for each in self.do_why(job_id).sentences)

    def do_stuck(self, **reasons: str) -> None:
        """Assert which jobs are stuck, and why."""
        assert {job_id: reason.name for job_id, reason in found(self)} == reasons


def timed(text: str) -> str:
    return re.sub(r"@([\d.]+)", lambda match: format_timestamp(START + float(match[1])), text)


def found(harness: LedgerHarness, query: Query | None = None) -> list[tuple[str, Stuck]]:
    """Return the ids of the stuck jobs, with the reasons."""
    return [(job.id, reason) for job, reason in list_stuck(harness.ledger, query or Query())]


NO_WORKER = "'No worker of this ledger is alive: none has sent a heartbeat lately.'"
CAN_RUN = "'Live workers that can run it: north.'"
SINCE = "'It has been due since @30 (0 s ago) and waits for a worker.'"
UNTIL = "'It waits until it is due at @3600 (in 1 h).'"
CANCELED = "'Its forced cancellation was requested.'"
RAN = "'It ran on north: attempt 1, which started at @0 (1 min 30 s ago). Its lease expired at @30 (1 min ago).'"
CANVAS = "Its canvas (links, chain or chord) is still to be notified of its end."
LAWS: dict[str, Any] = {
    "The sentences say when a job is due, and that a sweep then sends its message; three leases later it is stuck.":
        "worker; submit a route=celery delay=3600; pass 60; says a 'It waits until it is due at @3600 (in 59 min).' "
        f"'A sweep sends its message to the queue celery at @3600 (in 59 min).' {CAN_RUN}; pass 3540; "
        "sweep published=1; "
        + "".join(
            f"pass {pause}; says a 'It has been due since @3600 ({ago}) and waits for a worker.' 'Its message was "
            f"sent to the queue celery at @3600 ({ago}) by a sweep (once).' 'It is sent again when it is known to "
            f"be lost.' {CAN_RUN} {stuck}; "
            for pause, ago, stuck in (("5", "5 s ago", ""), ("4*LEASE-5", "2 min ago", "stuck=NOT_CLAIMED"))
        ),
    "Where workers take jobs from the ledger, the sentences tell who may take a job, and later when one took it.":
        f"worker takes_jobs=True; submit a route=celery delay=LEASE; pass LEASE; says a {SINCE} 'A worker of the queue "
        f"celery takes it from the ledger when it is due and a process is free.' {CAN_RUN}; deliver; says a {SINCE} "
        f"'A worker took it from the ledger at @30 (0 s ago).' 'It is offered again when no live worker holds it.' "
        f"{CAN_RUN}",
    "While no worker is alive, no sweep is promised, nor a message, which a job of the ledger as broker has not.":
        f"submit a route=celery delay=3600; says a {UNTIL} 'A worker that starts takes it from the ledger, or sends "
        f"its message to the queue celery, when it is due.' {NO_WORKER}",
    "A broker may deliver a job to a worker that lacks its task, and discards it: the sentences name that worker.":
        f"worker; worker south tasks=other; submit a route=celery delay=3600; says a {UNTIL} "
        f"'A sweep sends its message to the queue celery at @3600 (in 1 h).' {CAN_RUN} 'Its broker may deliver it to a "
        "worker that lacks the task, and discards it: south.' 'It is sent again then.'",
    "The error of the publication is a sentence, with the attempts, the queue and the next time.":
        "worker queues=typo; submit a route=typo delay=LEASE; pass LEASE; sweep refuse; pass 10; "
        "says a 'It has been due since @30 (10 s ago) and waits for a worker.' 'Its message could not be sent to the "
        "queue typo, once: LookupError: typo.' 'A sweep sends its message to the queue typo at @60 (in 20 s).' "
        f"{CAN_RUN} stuck=NOT_SENDABLE",
    "A job whose task no live worker has, or whose queue none consumes, is stuck, if workers registered any.": [
        f"{worker}; submit a route=slow; has a {sentence}; stuck {stuck}"
        for worker, stuck, sentence in (
            ("pass 0", "a=NO_WORKER", NO_WORKER), ("worker tasks='' queues=''", "", CAN_RUN),
            ("worker", "a=QUEUE_NOT_CONSUMED",
             "'No live worker that has the task consumes the queue slow: north consumes celery.'"),
            ("worker tasks=mail.send queues=slow", "a=TASK_UNKNOWN",
             f"'No live worker has the task {TASK}. Alive: north.'"),
            ("worker silent_since=START-19.6 tasks='' queues=''", "a=BROKER_SILENT",
             "'Worker north has heard nothing from its broker for 20 s.'"),
        )
    ],
    "A waiting job with an expiry says when that is; when it is over, nothing is sent any more.":
        "submit a expires_in=20; has a 'If no run starts before it expires at @20 (in 20 s), it is canceled.'; "
        f"pass 25; says a 'It expired at @20 (5 s ago): the next sweep, or a claim, cancels it.' {NO_WORKER} "
        "stuck=NO_WORKER",
    "A follower names the job whose end it waits for, how and when that ended, and is stuck if no sweep takes it.":
        "run a:same; follow f after=a route=celery; queue b; pass 10; "
        "says f 'It waits for the end of job a, which is running.'; says b 'It runs when job a has ended, which is "
        "running.' 'Newer submissions until then replace its arguments.'; complete a; pass LATE; says f 'Job a, whose "
        "end it waited for, ended at @10 (1 min 31 s ago): it is completed.' 'A sweep of a worker that has its task "
        f"processes it; that is due at @10 (1 min 31 s ago).' {NO_WORKER} stuck=NOT_SWEPT; worker; sweep published=2; "
        "has f 'It has been due since @10 (1 min 31 s ago) and waits for a worker.'",
    "A running job says where it runs, when its lease ends, whether its worker lives, and who recovers it.":
        "run a; cancel a force=True; pass 5; says a 'It runs on north: attempt 1, which started at @0 (5 s ago).' 'Its "
        "latest heartbeat was 5 s ago: its lease ends at @30 (in 25 s), unless the worker renews it.' 'The worker "
        f"north has no valid heartbeat: if it is dead, a sweep recovers the job after that.' {CANCELED}; "
        f"pass LEASE+55; says a {RAN} 'No worker of this ledger is alive, so no sweep recovers it: start a worker.' "
        f"{CANCELED} stuck=LEASE_EXPIRED; worker; says a {RAN} 'A sweep of a live worker recovers it. Alive: north.' "
        f"{CANCELED} stuck=LEASE_EXPIRED; run b; lacks b 'The worker north'; pass 1; worker started_at=now; "
        "has b 'north has started again since then'",
    "A job that was queued again is due since then, however long ago it was submitted, and is not stuck till late.":
        "worker; run a route=celery; pass LATE; sweep published=1 lapsed=1; "
        "has a 'It has been due since @91 (0 s ago) and waits for a worker.'; stuck; pass LATE; stuck a=NOT_CLAIMED",
    "A completed job says until when it is kept and answers duplicates, and afterwards that both are over.":
        "run a; complete a for=60; says a 'It completed at @0 (0 s ago).' 'It is kept at least until @97200 "
        "(in 1 d 3 h).' 'It answers duplicates until @60 (in 1 min).'; pass DAY+4*3600; "
        "says a 'It completed at @0 (1 d 4 h ago).' 'Its retention ended at @97200 (1 h ago): a sweep purges it.' "
        "'Its uniqueness window ended at @60 (1 d 3 h ago): the next submission or sweep releases its identity.'; "
        "sweep purged=1; raise JobPurgedError why a state=completed finished_at=at(0)",
    "A job whose uniqueness window ends after the year 9999 is explained, and its deletion refused, as any other.":
        "run a; complete a for=1e12; has a 'answers duplicates until 9999-12-30T'; "
        "refuse UniquenessWindowError delete a",
    "An ended job says that its canvas waits, what was tried and when next; after three leases it is stuck.":
        f"run a canvas=True; complete a; says a 'It completed at @0 (0 s ago).' '{CANVAS}' 'Unless a worker does it "
        "first, a sweep does so at @30 (in 30 s).'; pass LATE; sweep published=1; "
        "canvas_error a 'OperationalError: {no} backend.'; says a 'It completed at @0 (1 min 31 s ago).' "
        f"'{CANVAS} The last error: OperationalError: {{no}} backend.' 'Sweeps have sent its end to Celery for that "
        "once.' 'Unless a worker does it first, a sweep does so at @121 (in 30 s).' stuck=CANVAS_PENDING",
    "A dead letter or a canceled job says when and why it ended.":
        "run a; fail a 'ValueError: {no} %s.'; has a 'It failed at @0 (0 s ago): ValueError: {no} %s. It is a dead "
        "letter.'; submit b; cancel b reason='by the shop'; has b 'It was canceled at @0 (0 s ago): by the shop.'",
    "An ended job without a canvas is never stuck.":
        "submit a; cancel a; run b; complete b; run c; fail c; pass 1e6; stuck",
}  # fmt: skip


@for_each("law", LAWS)
def test_a_law_of_the_sentences_holds(
    fresh_stores: Callable[..., dict[str, Store]], clock: ManualClock, law: str
) -> None:
    """Each script says of its jobs what it has."""
    for text in [LAWS[law]] if isinstance(LAWS[law], str) else LAWS[law]:
        Present(fresh_stores("sqlite")["sqlite"], clock).play(text.replace("LATE", str(LATE)))


def test_a_webhook_needs_no_broker(store: Store, clock: ManualClock) -> None:
    """A webhook that is due is sent by a worker of its job's task, whatever queues that consumes."""
    present = Present(store, clock)
    present.play("worker queues=mail; run a")
    webhook = not_none(
        present.ledger.follow(webhook_submission("https://example.org/", present.read("a")), follows_id="a")
    )
    present.do_complete("a")
    retry(present.ledger, present.start(webhook.id), delay=60.0)
    waits = "It waits for its next attempt, which is due at @60 (in 50 s)."
    sends = f"A worker that has the task {TASK} sends it without the broker."
    clock.advance(10.0)
    present.do_says(webhook.id, waits, sends, CAN_RUN.strip("'"))


@every_store
def test_stuck_jobs_are_listed(harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list has the jobs that make no progress, newest first, each with its reason, behind any page of others."""
    monkeypatch.setattr(stuck_module, "PAGE_SIZE", 2)
    Present(harness.store, harness.clock).play(
        "worker; run canvas canvas=True; complete canvas; submit ended; cancel ended; run lapsed; pass 1; "
        "submit old route=celery; pass 1; submit unheard route=slow; submit later route=slow delay=3600; "
        f"pass {LATE}; submit g,h,i,j,k route=celery"
    )
    expected = [
        ("unheard", Stuck.QUEUE_NOT_CONSUMED), ("old", Stuck.NOT_CLAIMED), ("lapsed", Stuck.LEASE_EXPIRED),
        ("canvas", Stuck.CANVAS_PENDING),
    ]  # fmt: skip
    assert found(harness) == expected
    assert found(harness, Query(limit=2, offset=1)) == expected[1:3]
    assert found(harness, Query(states=frozenset({State.RUNNING}))) == [("lapsed", Stuck.LEASE_EXPIRED)]
    assert found(harness, Query(task="another")) == []


@for_each(
    "worker, expected",
    [
        (REGISTERED, None),
        (Registration(tasks=(TASK,), queues=("slow",)), Stuck.QUEUE_NOT_CONSUMED),
        (Registration(tasks=(TASK,)), None),
        (Registration(tasks=("other",), queues=("celery",)), Stuck.TASK_UNKNOWN),
        (Registration(tasks=tuple(map(str, range(REGISTERED_TASKS_LIMIT))), queues=("celery",)), None),
        (Registration(), None),
        (replace(REGISTERED, silent_since=START), Stuck.BROKER_SILENT),
    ],
)
def test_only_what_workers_have_registered_counts(
    harness: LedgerHarness, worker: Registration, expected: Stuck | None
) -> None:
    """A worker cannot run a job only if it has registered its tasks or queues, and the job's is not among them."""
    job = harness.submit(route="celery")
    info = WorkerInfo("north", START, tasks=worker.tasks, queues=worker.queues, silent_since=worker.silent_since)
    assert find_stuck(job, Snapshot(job.created_at, (info,)), job.created_at) is expected
    assert find_stuck(job, Snapshot(job.created_at), job.created_at) is Stuck.NO_WORKER
    unrouted = replace(job, route="")
    assert find_stuck(unrouted, Snapshot(job.created_at, (info,)), job.created_at) in {None, expected}

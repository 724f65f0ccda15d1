"""Job events: the ledger emits one per transition, none contains free text of callers, and the page has them all."""

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from onejob.errors import BrokerUnavailableError
from onejob.jobs.blocks import Block, BlockKind
from onejob.jobs.handover import BY_SWEEP
from onejob.jobs.ledger_settings import LedgerSettings
from onejob.jobs.lifecycle import Transition
from onejob.jobs.model import IdentityHold, JobRow
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import Ledger, NextRun
from onejob.ledger.sweep import fail_unpublishable
from onejob.observability.events import (
    EVENT_NAMES,
    EVENTS,
    HEARTBEAT_LATE,
    LOOP_HELD,
    WORKER_SILENT,
    JobEvent,
    one_line,
)
from onejob.stores.protocol import Store
from tests.cases import for_each
from tests.stores.support import (
    LEASE,
    REPLACE,
    RUN_AGAIN,
    ManualClock,
    after,
    duplicate,
    end,
    not_none,
    run,
    submission,
    sweep,
)

PAUSE = Block(id="p-1", kind=BlockKind.PAUSE, queue="slow", where={})
STRIKE = Block(id="s-1", kind=BlockKind.STRIKE, task="app.add", where={})
MARKER = "chosen"
FORGED = "x\nERROR root: forged\x1b[2J\u2028\u202e"


@pytest.fixture
def emitted() -> list[JobEvent]:
    return []


@pytest.fixture
def ledger(store: Store, emitted: list[JobEvent]) -> Ledger:
    return Ledger(store, LedgerSettings(crash_limit=2), emitted.append)


def names(emitted: list[JobEvent]) -> list[str]:
    return [event.name for event in emitted]


def started(ledger: Ledger, job_id: str = "job-1", **values: Any) -> JobRow:
    ledger.submit(submission(job_id, **values))
    return not_none(ledger.claim(job_id, nonce=f"claim-of-{job_id}", node="node-1").job)


def test_each_transition_emits_an_event(ledger: Ledger, emitted: list[JobEvent], clock: ManualClock) -> None:
    """Submission, claim and end of a job each emit one event; `wait_seconds` counts from when the job was due."""
    ledger.submit(submission(delay=10.0))
    clock.advance(12.0)
    job = not_none(ledger.claim("job-1", nonce="n", node="node-1").job)
    clock.advance(3.0)
    ledger.complete(job, "1")
    run_fields: dict[str, Any] = {"attempt": 1, "token": job.token, "node": "node-1"}
    assert emitted == [
        JobEvent("job_submitted", "job-1", "app.add", {"outcome": "admitted"}),
        JobEvent("job_claimed", "job-1", "app.add", {**run_fields, "wait_seconds": 2.0}),
        JobEvent("job_completed", "job-1", "app.add", {**run_fields, "run_seconds": 3.0}),
    ]


@for_each("policy, outcome, answer", [
    ({}, "attached", "a"), ({"rejects": True}, "rejected", "b"), (REPLACE, "replaced", "c"),
    ({"follows": True}, "attached", "d"),
])  # fmt: skip
def test_a_duplicate_emits_its_outcome(
    ledger: Ledger, emitted: list[JobEvent], policy: dict[str, Any], outcome: str, answer: str
) -> None:
    """The event of a duplicate is about the job that answers it, and names its follower, if it has one."""
    ledger.submit(submission(answer, identity=answer))
    ledger.submit(submission("again", identity=answer, fingerprint="other", **policy))
    follower = {"follower": "again"} if "follows" in policy else {}
    assert emitted[-1] == JobEvent("job_submitted", answer, "app.add", {"outcome": outcome, **follower})


ENDS: dict[str, Callable[[Ledger, JobRow], object]] = {
    "job_completed": lambda ledger, job: ledger.complete(job, "1"),
    "job_failed": lambda ledger, job: ledger.fail(job, '"error"', "failed"),
    "job_canceled": lambda ledger, job: ledger.abandon(job, "canceled"),
    "job_retrying": lambda ledger, job: ledger.retry(
        job, NextRun.again(job, delay=7.0, retries=1), error=None, reason="again"
    ),
    "job_released": lambda ledger, job: ledger.release(job, "released", handover=BY_SWEEP),
    "job_crashed": lambda ledger, job: ledger.crash(job, "crashed", '"lost"'),
    "job_dead_lettered": lambda ledger, job: ledger.crash(replace(job, crashes=1), "crashed", '"lost"'),
}


@for_each("name, canvas_pending", itertools.product(ENDS, [False, True]))
def test_the_end_of_a_run_has_its_duration(
    ledger: Ledger, emitted: list[JobEvent], clock: ManualClock, name: str, *, canvas_pending: bool
) -> None:
    """However a run ends, its event has `run_seconds`, also when the job does not end; a next claim has no wait."""
    job = started(ledger, f"{name} {canvas_pending}", canvas=canvas_pending, expires_in=6.0)
    clock.advance(4.5)
    ENDS[name](ledger, job)
    event = emitted[-1]
    assert (event.name, event.fields["run_seconds"], event.fields["node"]) == (name, 4.5, "node-1")
    if name == "job_released":
        ledger.claim(job.id, nonce="second", node="node-1")
        assert emitted[-1].name == "job_claimed"
        assert "wait_seconds" not in emitted[-1].fields


@pytest.mark.parametrize(("limit", "name"), [(2, "job_crashed"), (1, "job_dead_lettered")])
def test_an_expired_lease_is_marked_lapsed(
    store: Store, emitted: list[JobEvent], clock: ManualClock, limit: int, name: str
) -> None:
    """`lapsed` is true for a run that a sweep finds lost, and false for one that its own worker reports."""
    ledger = Ledger(store, LedgerSettings(crash_limit=limit), emitted.append)
    started(ledger)
    clock.advance(LEASE)
    sweep(ledger, lambda _job: None)
    assert [event.fields["lapsed"] for event in emitted if event.name == name] == [True]
    ledger.crash(started(ledger, "job-2"), "its child died", '"lost"')
    assert emitted[-1].fields["lapsed"] is False


def test_a_refused_claim_emits_an_event(ledger: Ledger, emitted: list[JobEvent]) -> None:
    """A claim of a running job emits an event with its state; a claim of an unknown job emits none."""
    started(ledger)
    ledger.claim("job-1", nonce="another", node="node-2")
    assert emitted[-1] == JobEvent("claim_refused", "job-1", "app.add", {"state": "running", "node": "node-2"})
    ledger.claim("unknown", nonce="another", node="node-2")
    assert names(emitted) == ["job_submitted", "job_claimed", "claim_refused"]


def test_an_event_of_a_follower_names_the_followed_job(
    ledger: Ledger, emitted: list[JobEvent], clock: ManualClock
) -> None:
    """The events of a follower have `follows_id`."""
    ledger.submit(submission("first", identity="same"))
    ledger.submit(submission("again", identity="same", follows=True))
    ledger.cancel("first")
    clock.advance(1.0)
    ledger.claim("again", nonce="n", node="node-1")
    assert (emitted[-1].name, emitted[-1].fields["follows_id"]) == ("job_claimed", "first")


def test_cancellations_emit_different_events(ledger: Ledger, emitted: list[JobEvent], clock: ManualClock) -> None:
    """A request to a run, its end, the cancellation that follows it, that of a waiting job, and an expiry differ."""
    job = started(ledger, "running")
    ledger.cancel("running", force=True)
    ledger.submit(submission("waiting"))
    ledger.cancel("waiting")
    ledger.submit(submission("late", expires_in=1.0))
    clock.advance(2.0)
    ledger.claim("late", nonce="n", node="node-1")
    assert names(emitted) == [
        "job_submitted", "job_claimed", "job_cancel_requested",
        "job_submitted", "job_canceled",
        "job_submitted", "job_expired", "claim_refused",
    ]  # fmt: skip
    assert emitted[2].fields == {"force": True}
    assert emitted[-1].fields["state"] == "canceled"
    ledger.release(job, "released")
    assert names(emitted)[-2:] == ["job_released", "job_canceled"]
    assert ["run_seconds" in event.fields for event in emitted[-2:]] == [True, False]


def test_a_refused_change_emits_nothing(ledger: Ledger, emitted: list[JobEvent], store: Store) -> None:
    """A change that the store refuses emits no event."""
    job = run(store)
    end(store, job)
    ledger.crash(job, "crashed", '"lost"')
    ledger.mark_canvas_notified(job)
    assert emitted == []


def test_a_sweep_emits_its_counts(ledger: Ledger, emitted: list[JobEvent], clock: ManualClock) -> None:
    """A sweep emits each publication, the number of purged jobs, then its counts, also when the broker fails."""
    ledger.submit(submission())
    clock.advance(LEASE)
    sweep(ledger, lambda _job: None)
    assert names(emitted) == ["job_submitted", "job_published", "sweep"]
    assert emitted[1].fields == {"times": 1, "sent": True}
    idle = {"lapsed": 0, "canceled": 0, "purged": 0, "parked": 0, "seen": 1}
    assert emitted[2].fields == {"published": 1, "failed": 0, **idle}
    clock.advance(2 * LEASE)
    with pytest.raises(BrokerUnavailableError):
        sweep(ledger, Mock(side_effect=BrokerUnavailableError))
    assert emitted[-1].fields == {"published": 0, "failed": 1, **idle}
    ledger.cancel("job-1")
    clock.advance(1e6)
    sweep(ledger, lambda _job: None)
    assert [event.fields for event in emitted if event.name == "jobs_purged"] == [{"count": 1}]


def test_events_contain_no_free_text(ledger: Ledger, emitted: list[JobEvent]) -> None:
    """No argument, result, error, reason, key, submitter or host is in an event."""
    texts = {"payload": f'"{MARKER}"', "options": f'"{MARKER}"', "key": MARKER, "submitter": MARKER, "host": MARKER}
    job = started(ledger, identity="same", fingerprint=MARKER, source=MARKER, **texts)
    ledger.submit(submission("again", identity="same", **(texts | {"key": f"{MARKER}2"}), **RUN_AGAIN))
    ledger.report(job, f'"{MARKER}"')
    ledger.keep_step(job, MARKER, f'"{MARKER}"')
    texts = dict.fromkeys(("submission_nonce", "source", "submitter", "host", "fingerprint"), MARKER)
    ledger.record(duplicate(job.id, **texts))
    job = ledger.retry(job, NextRun(payload=f'"{MARKER}"', options="{}", retries=1), error=MARKER, reason=MARKER)
    again = not_none(ledger.claim(job.id, nonce="second", node="node-1").job)
    ledger.cancel(job.id, reason=MARKER)
    ledger.fail(again, f'"{MARKER}"', MARKER)
    ledger.cancel("again", reason=MARKER)
    ledger.redrive(job.id, reason=MARKER)
    assert len(emitted) > 7
    assert MARKER not in repr(emitted)


def test_a_forged_id_cannot_inject_a_line(ledger: Ledger, emitted: list[JobEvent]) -> None:
    """Unprintable characters in ids, task names and node names are escaped."""
    ledger.submit(submission(FORGED, task=FORGED))
    job = not_none(ledger.claim(FORGED, nonce="n", node=FORGED).job)
    ledger.claim(FORGED, nonce="m", node=FORGED)
    ledger.submit(submission("again", identity=job.identity, follows=True))
    ledger.fail(job, '"error"', "failed")
    ledger.drop(FORGED, force=True)
    texts = [text for event in emitted for text in (event.job_id, event.task, *map(str, event.fields.values()))]
    assert [text for text in texts if not text.isprintable()] == []
    assert one_line(FORGED) == r"x\nERROR root: forged\x1b[2J\u2028\u202e"
    assert one_line("plain-ž") == "plain-ž"


def test_close_calls_the_listener_before_the_store(store: Store) -> None:
    """`at_close` is called while the store is still open."""
    order: list[str] = []
    closing = after(store, "close", lambda: order.append("store"))
    Ledger(closing, at_close=lambda: order.append("listener")).close()
    assert order == ["listener", "store"]


PAGE = (Path(__file__).parents[2] / "docs/operations/observability.md").read_text()
NAME = re.compile(r"`(\w+)`")


def table(first: str) -> Iterator[list[str]]:
    """Yield the rows of the table whose first column has this heading."""
    lines = PAGE[PAGE.index(f"| {first} |") :].split("\n\n", 1)[0].splitlines()[2:]
    for line in lines:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def restarted(ledger: Ledger, job_id: str) -> JobRow:
    """Start a run of a job, and submit the job first if it is new."""
    ledger.submit(submission(job_id, nonce=job_id, canvas=True))
    return not_none(ledger.claim(job_id, nonce=new_nonce(), node="node-1").job)


def emit_all(ledger: Ledger, clock: ManualClock) -> None:
    """Make every transition that emits an event, and sweep until all jobs are purged."""
    ledger.mark_canvas_notified(
        ledger.complete(
            ledger.release_identity(restarted(ledger, "completed")), "1", hold=IdentityHold(identity_for=1.0)
        )
    )
    spending = ledger.add_cost(restarted(ledger, "dead"), {"usd": Decimal("0.5")})
    ledger.fail(spending, '"error"', "failed")
    ledger.redrive("dead")
    ledger.submit(submission("delayed", delay=60.0))
    ledger.run_now("delayed")
    ledger.fail(restarted(ledger, "dropped"), '"error"', "failed")
    ledger.drop("dropped", force=True)
    job = restarted(ledger, "again")
    ledger.retry(job, NextRun.again(job, delay=0.0, retries=1), error=None, reason="again")
    ledger.release(restarted(ledger, "again"), "released", handover=BY_SWEEP)
    next_run = NextRun(payload="{}", options="{}", retries=0, handover=BY_SWEEP)
    ledger.replace(restarted(ledger, "replaced"), next_run, canvas=False, reason="replaced")
    ledger.crash(restarted(ledger, "lost"), "crashed", '"lost"')
    ledger.crash(restarted(ledger, "lost"), "crashed", '"lost"')
    ledger.cancel(restarted(ledger, "canceled").id)
    ledger.claim("canceled", nonce="another", node="node-2")
    ledger.abandon(ledger.get("canceled"), "canceled")
    ledger.park(ledger.submit(submission("parked")).job, ledger.add_block(PAUSE))
    ledger.strike(ledger.submit(submission("struck")).job, STRIKE)
    ledger.submit(submission("holder", identity="same"))
    ledger.submit(submission("follower", identity="same", follows=True))
    ledger.submit(submission("late", expires_in=1.0))
    fail_unpublishable(ledger, ledger.submit(submission("unsendable")).job, "no such queue")
    holder = restarted(ledger, "holder")
    ledger.submit(submission("next", identity=holder.identity, fingerprint="other", queue_next=True))
    waiting = ledger.get("next")
    ledger.release_identity(holder)
    ledger.promote(waiting)
    for seconds in (10.0, 1000.0, 1e7, 1e7):
        clock.advance(seconds)
        sweep(ledger, lambda _job: None)


def test_the_page_has_every_event(ledger: Ledger, emitted: list[JobEvent], clock: ManualClock) -> None:
    """The table of events has each name once, and exactly the fields that are emitted."""
    emit_all(ledger, clock)
    rows = list(table("event"))
    assert sorted(NAME.findall(row[0])[0] for row in rows) == sorted(EVENTS)
    documented = {NAME.findall(row[0])[0]: set(NAME.findall(row[3])) for row in rows}
    fields: dict[str, set[str]] = {name: set() for name in documented}
    for event in emitted:
        fields[event.name] |= set(event.fields) - {"follows_id"}
    of_workers = {HEARTBEAT_LATE, LOOP_HELD, WORKER_SILENT}
    fields |= {name: documented[name] for name in of_workers}
    assert fields == documented
    assert {event.name for event in emitted} == set(EVENTS) - of_workers
    assert set(Transition) - set(EVENT_NAMES) == {Transition.RENEW, Transition.UPDATE_PROGRESS}

"""The timeline of a job: its history as spans of waiting and running, and events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.jobs.lifecycle import RULES, State, Transition
from onejob.jobs.records import Entry
from onejob.ledger.timeline import LEASE_EXPIRED, RUN_LABELS, UNRECORDED, Span, SpanKind, build_timeline
from tests.contract.support import LEASE, START, queue_next, run, submission, submit, submit_one, sweep
from tests.fundamentals.shop import claimed

if TYPE_CHECKING:
    from onejob.ledger.ledger import Ledger
    from onejob.stores.protocol import Store
    from tests.contract.support import ManualClock


def timeline(ledger: Ledger, job_id: str = "job-1") -> list[Span]:
    """Return the timeline of a job."""
    return build_timeline(ledger.get(job_id), ledger.history(job_id), ledger.read_clock())


def shape(spans: list[Span]) -> list[tuple[str, str, float, float | None]]:
    """Return kind, label, begin and end of each span, in seconds from the start."""
    return [
        (str(each.kind), each.label, each.begin - START, None if each.end is None else each.end - START)
        for each in spans
    ]


def test_a_life_with_retries(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A delayed job waits, runs, waits for its retry, is lost, and completes: each time is a span, without gaps."""
    submit(store, delay=10.0)
    assert shape(timeline(ledger)) == [("waiting", "delayed", 0.0, None)]
    clock.advance(10.0)
    assert shape(timeline(ledger)) == [("waiting", "queued", 0.0, None)]
    clock.advance(2.0)
    job = claimed(ledger, "job-1", "north")
    clock.advance(5.0)
    ledger.retry(job, delay=60.0, payload="{}", options="{}", retries=1, error=None, reason="E: no")
    assert shape(timeline(ledger))[-1] == ("waiting", "delayed", 17.0, None)
    clock.advance(3.0)
    ledger.run_now("job-1")
    claimed(ledger, "job-1", "south")
    clock.advance(LEASE)
    assert shape(timeline(ledger))[-1] == ("running", LEASE_EXPIRED, 20.0, None)
    sweep(ledger, lambda _: None)
    ledger.complete(claimed(ledger, "job-1", "south"), "1")
    spans = timeline(ledger)
    assert shape(spans) == [
        ("waiting", "queued", 0.0, 12.0),
        ("running", "retried", 12.0, 17.0),
        ("waiting", "retrying", 17.0, 20.0),
        ("event", "run_now", 20.0, 20.0),
        ("running", "lost", 20.0, 50.0),
        ("waiting", "queued", 50.0, 50.0),
        ("running", "completed", 50.0, 50.0),
    ]
    runs = [each for each in spans if each.kind is SpanKind.RUNNING]
    assert [(each.attempt, each.node) for each in runs] == [(1, "north"), (2, "south"), (3, "south")]
    assert (spans[1].detail, spans[4].detail) == ("E: no", "its lease expired")


def test_operations_are_events(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """Cancel requests, redrives and cancellations are events, and a redriven job waits again."""
    job = run(store)
    clock.advance(1.0)
    ledger.cancel("job-1")
    clock.advance(1.0)
    ledger.fail(job, "{}", "no")
    clock.advance(1.0)
    ledger.redrive("job-1")
    clock.advance(1.0)
    ledger.cancel("job-1")
    assert shape(timeline(ledger)) == [
        ("waiting", "queued", 0.0, 0.0),
        ("running", "failed", 0.0, 2.0),
        ("event", "request_cancel", 1.0, 1.0),
        ("event", "redrive", 3.0, 3.0),
        ("waiting", "queued", 3.0, 4.0),
        ("event", "cancel", 4.0, 4.0),
    ]


def test_followers_and_queued_jobs_wait(ledger: Ledger, store: Store) -> None:
    """A follower, and a job that is queued next, wait from the beginning, with the job that they wait for."""
    run(store, identity="same")
    queue_next(store, "job-2")
    submit_one(store, submission("job-3", identity="same", follows=True), wake_in=LEASE)
    for job_id in ("job-2", "job-3"):
        (span,) = timeline(ledger, job_id)
        assert (span.kind, span.end, "job-1" in span.detail) == (SpanKind.WAITING, None, True)


def test_what_is_no_longer_recorded_is_marked(ledger: Ledger, store: Store) -> None:
    """The time of runs whose entries the history has lost is marked, and a clock that was set back makes no span."""
    job = submit(store)
    history = [
        Entry(START, "submit", State.QUEUED, 0, "", ""),
        Entry(START + 50.0, Transition.RETRY, State.RETRYING, 7, "n", "again"),
        Entry(START + 40.0, Transition.CLAIM, State.RUNNING, 8, "n", ""),
    ]
    assert shape(build_timeline(job, history, START + 60.0)) == [
        ("waiting", UNRECORDED, 0.0, 50.0),
        ("running", "running", 40.0, None),
        ("waiting", "retrying", 50.0, 50.0),
    ]


@pytest.mark.parametrize("transition", [each for each, rule in RULES.items() if rule.fenced and rule.target])
def test_every_end_of_a_run_has_a_label(transition: Transition) -> None:
    """Each transition that ends a run has a label for its span."""
    assert RUN_LABELS[transition]

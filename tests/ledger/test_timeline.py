"""The history of a job as a timeline."""

from dataclasses import replace

from onejob.jobs.history import Entry
from onejob.jobs.lifecycle import State, Transition
from onejob.ledger.ledger import Ledger, NextRun
from onejob.ledger.timeline import LEASE_EXPIRED, UNRECORDED, Span, SpanKind, build_timeline
from onejob.stores.protocol import Store
from tests.fundamentals.shop import claimed
from tests.stores.support import (
    LEASE,
    START,
    ManualClock,
    queue_next,
    run,
    submission,
    submit,
    submit_one,
    sweep,
)


def timeline(ledger: Ledger, job_id: str = "job-1") -> list[Span]:
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
    ledger.retry(job, NextRun.again(job, delay=60.0, retries=1), error=None, reason="E: no")
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
        ("waiting", "queued", 0.0, 12.0), ("running", "retried", 12.0, 17.0), ("waiting", "retrying", 17.0, 20.0),
        ("event", "run_now", 20.0, 20.0), ("running", "lost", 20.0, 50.0), ("waiting", "queued", 50.0, 50.0),
        ("running", "completed", 50.0, 50.0),
    ]  # fmt: skip
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
        ("waiting", "queued", 0.0, 0.0), ("running", "failed", 0.0, 2.0), ("event", "request_cancel", 1.0, 1.0),
        ("event", "redrive", 3.0, 3.0), ("waiting", "queued", 3.0, 4.0), ("event", "cancel", 4.0, 4.0),
    ]  # fmt: skip


def test_an_event_of_a_newer_version_is_shown(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """An event that this version does not know, as in a rolling deployment, is one by its name."""
    job = submit(store)
    clock.advance(1.0)
    entry = replace(ledger.history("job-1")[0], event="of_tomorrow", at=ledger.read_clock())
    spans = build_timeline(job, [*ledger.history("job-1"), entry], ledger.read_clock())
    assert shape(spans) == [("waiting", "queued", 0.0, None), ("event", "of_tomorrow", 1.0, 1.0)]


def test_followers_and_queued_jobs_wait(ledger: Ledger, store: Store) -> None:
    """A follower, and a job that is queued next, wait from the beginning, with the job that they wait for."""
    run(store, identity="same")
    queue_next(store, "job-2")
    submit_one(store, submission("job-3", identity="same", follows=True), wake_after=LEASE)
    for job_id in ("job-2", "job-3"):
        (span,) = timeline(ledger, job_id)
        assert span.kind == SpanKind.WAITING
        assert span.end is None
        assert "job-1" in span.detail


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

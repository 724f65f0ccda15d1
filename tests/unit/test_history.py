"""The history of a job as sentences (`onejob why`) and as a timeline."""

from dataclasses import replace
from typing import Any

from onejob.jobs.lifecycle import RULES, State, Transition
from onejob.jobs.model import Outcome, Retention
from onejob.jobs.records import Entry
from onejob.ledger.explain import SENTENCES, explain
from onejob.ledger.ledger import Ledger, NextRun
from onejob.ledger.stats import mean_run
from onejob.ledger.timeline import LEASE_EXPIRED, RUN_LABELS, UNRECORDED, Span, SpanKind, build_timeline
from onejob.stores.protocol import DUPLICATE_LIMIT, Store
from tests.cases import for_each
from tests.contract.support import (
    LEASE,
    START,
    ManualClock,
    duplicate,
    not_none,
    queue_next,
    run,
    submission,
    submit,
    submit_one,
    sweep,
)
from tests.fundamentals.shop import claimed, order


def test_every_event_has_a_sentence() -> None:
    """Every event that is written into a history has a sentence, and every end of a run a label for its span."""
    assert set(SENTENCES) == set(RULES) - {Transition.RENEW, Transition.UPDATE_PROGRESS}
    assert all(RUN_LABELS[event] for event, rule in RULES.items() if rule.fenced and rule.target)


def test_a_whole_history(ledger: Ledger, clock: ManualClock) -> None:
    """The output names the job's duplicates, its lost attempt, its end, and that of its window, in their order."""
    job = ledger.submit(order(42, submitter="user:6")).job
    clock.advance(1)
    ledger.submit(order(42, source="apply_async", submitter="user:7"))
    clock.advance(1)
    claimed(ledger, job.id, "north@shop")
    clock.advance(31)
    sweep(ledger, lambda _: None)
    ledger.complete(claimed(ledger, job.id, "south@shop"), '"done"', keep=Retention(identity_for=60.0))
    clock.advance(60)
    ledger.submit(order(42))
    story = "\n".join(explain(ledger, job.id).sentences)
    expected = [
        ", by user:6).", "A duplicate (through apply_async, by user:7) was attached",
        "Attempt 1 started on north@shop",
        "Attempt 1 was lost, its lease expired",
    ]  # fmt: skip
    expected += ["Attempt 2 started on south@shop", "Attempt 2 completed the job", "It released its identity"]
    expected += ["It completed at"]
    assert sorted(expected, key=story.index) == expected


def test_a_saved_run_takes_as_long_as_all_attempts(ledger: Ledger, clock: ManualClock) -> None:
    """The mean run of a task counts each attempt of its jobs, and not the time between them."""
    job = ledger.submit(order(1)).job
    for seconds in (10.0, 4.0):
        run = claimed(ledger, job.id)
        clock.advance(seconds)
        if seconds > 5:
            job = ledger.retry(run, NextRun.again(run, delay=100.0, retries=1), error=None, reason="again")
            clock.advance(100)
        else:
            ledger.complete(run, "null")
    quick = claimed(ledger, ledger.submit(order(2)).job.id)
    clock.advance(2)
    ledger.complete(quick, "null")
    assert mean_run(ledger, job.task) == (14.0 + 2.0) / 2


def test_many_duplicates_are_counted(ledger: Ledger) -> None:
    """The output has the number of duplicates, also if the history keeps only a part of them."""
    job = ledger.submit(order(42)).job
    for _ in range(DUPLICATE_LIMIT + 29):
        job = ledger.submit(order(42)).job
    assert any(str(DUPLICATE_LIMIT + 29) in line for line in explain(ledger, job.id).sentences)


@for_each("values, expected", [
    ({"rejects": True}, "was rejected"), ({"replaces": True, "fingerprint": "another"}, "replaced the arguments"),
    ({"priority_rank": 5}, "rescheduled the job"),
])  # fmt: skip
def test_the_outcome_of_a_duplicate_is_explained(ledger: Ledger, values: dict[str, Any], expected: str) -> None:
    """The outcome of a duplicate, and what it changed, is a sentence in the output of the job."""
    ledger.submit(order(42))
    job = ledger.submit(replace(order(42), **values)).job
    assert expected in "\n".join(explain(ledger, job.id).sentences)


def test_one_more_run_is_explained_on_both_jobs(ledger: Ledger) -> None:
    """The output of a running job names the next run; that one's says what it waits for and when it was promoted."""
    first = claimed(ledger, ledger.submit(order(42)).job.id)
    queued = ledger.submit(order(42, queue_next=True, replaces=True)).job
    ledger.submit(replace(order(42, queue_next=True, replaces=True), fingerprint="another"))
    before = "\n".join(explain(ledger, first.id).sentences)
    assert f"job {queued.id} runs after this one" in before
    assert f"Job {queued.id} answered it, which is queued next" in before
    waiting = explain(ledger, queued.id).sentences
    assert f"It runs when job {first.id} has ended, which is running." in waiting
    ledger.complete(first, "1")
    turned = "\n".join(explain(ledger, queued.id).sentences)
    assert f"promoted when {first.id} ended" in turned
    assert "and waits for a worker" in turned


def test_a_redelivered_message_is_no_submission(ledger: Ledger) -> None:
    """A redelivered message is reported as such, and is not counted as a submission."""
    job = claimed(ledger, ledger.submit(order(42)).job.id)
    ledger.record(duplicate(job.id, outcome=Outcome.REJECTED, source="redelivery", host="south@shop"))
    story = "\n".join(explain(ledger, job.id).sentences)
    assert "Its message was redelivered (to south@shop), and nothing was run." in story
    assert "altogether" not in story
    assert ledger.get(job.id).duplicate_count == 0


@for_each("number, job_id", enumerate(["{node}", "{", "}{}", "{0.__class__}", "%s"]))
def test_an_id_is_no_format(ledger: Ledger, number: int, job_id: str) -> None:
    """An id that looks like a format string is printed as it is, whatever the job's state."""
    leader = ledger.submit(replace(order(number), id=job_id)).job
    follower = not_none(ledger.submit(replace(order(number), id=f"f{job_id}", follows=True)).follower)
    waiting = explain(ledger, follower.id).sentences
    assert waiting[-1] == f"It waits for the end of job {job_id}, which is queued."
    assert job_id in explain(ledger, leader.id).sentences[0]


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

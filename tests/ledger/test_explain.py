"""The history of a job as sentences (`onejob why`)."""

from dataclasses import replace
from typing import Any

from onejob.jobs.lifecycle import RULES, Transition
from onejob.jobs.model import IdentityHold, Outcome
from onejob.ledger.explain import SENTENCES, explain
from onejob.ledger.ledger import Ledger, NextRun
from onejob.ledger.stats import mean_run
from onejob.ledger.timeline import RUN_LABELS
from onejob.stores.protocol import DUPLICATE_LIMIT
from tests.cases import for_each
from tests.fundamentals.shop import claimed, order
from tests.stores.support import (
    ManualClock,
    duplicate,
    not_none,
    sweep,
)


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
    ledger.complete(claimed(ledger, job.id, "south@shop"), '"done"', hold=IdentityHold(identity_for=60.0))
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

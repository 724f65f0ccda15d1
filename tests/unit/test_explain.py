"""The laws of `onejob why`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onejob.jobs.lifecycle import RULES, Transition
from onejob.jobs.model import Duplicate, Outcome, Retention
from onejob.ledger.explain import ADMISSIONS, DUPLICATES, SENTENCES, explain
from onejob.stores.protocol import DUPLICATE_LIMIT
from tests.cases import for_each
from tests.contract.support import sweep
from tests.fundamentals.shop import claimed, order

if TYPE_CHECKING:
    from onejob.ledger.ledger import Ledger
    from tests.contract.support import ManualClock

SILENT = {Transition.RENEW, Transition.UPDATE_PROGRESS}
"""Events that leave no line in the history."""


def test_every_event_has_a_sentence() -> None:
    """Every event of the lifecycle that is written into a history has a sentence."""
    assert set(SENTENCES) == set(RULES) - SILENT


@for_each("sentence", [*SENTENCES.values(), *ADMISSIONS.values(), *DUPLICATES.values()])
def test_sentences_are_sentences(sentence: str) -> None:
    """A sentence begins with a capital letter and ends with a full stop."""
    assert sentence[0].isupper()
    assert sentence[-1] == "."


def test_a_whole_history(ledger: Ledger, clock: ManualClock) -> None:
    """The output names the job's duplicates, its lost attempt and its end, in their order."""
    job = ledger.submit(order(42)).job
    clock.advance(1)
    ledger.submit(order(42, source="apply_async", submitter="user:7"))
    clock.advance(1)
    claimed(ledger, job.id, "north@shop")
    clock.advance(31)
    sweep(ledger, lambda _: None)
    ledger.complete(claimed(ledger, job.id, "south@shop"), '"done"')
    story = "\n".join(explain(ledger, job.id).sentences)
    expected = [
        "admitted",
        "A duplicate (through apply_async, by user:7) was attached",
        "Attempt 1 started on north@shop",
        "Attempt 1 was lost, its lease expired",
    ]
    expected += ["Attempt 2 started on south@shop", "Attempt 2 completed the job", "It completed at"]
    assert sorted(expected, key=story.index) == expected


def test_many_duplicates_are_counted(ledger: Ledger) -> None:
    """The output has the number of duplicates, also if the history keeps only a part of them."""
    job = ledger.submit(order(42)).job
    for _ in range(DUPLICATE_LIMIT + 29):
        job = ledger.submit(order(42)).job
    story = explain(ledger, job.id).sentences
    assert any(str(DUPLICATE_LIMIT + 29) in line for line in story)


@for_each(
    "values, expected",
    [
        ({"rejects": True}, "was rejected"),
        ({"replaces": True, "fingerprint": "another"}, "replaced the arguments"),
        ({"priority_rank": 5}, "rescheduled the job"),
    ],
)
def test_the_outcome_of_a_duplicate_is_explained(ledger: Ledger, values: dict[str, Any], expected: str) -> None:
    """The outcome of a duplicate, and what it changed, is a sentence in the output of the job."""
    ledger.submit(order(42))
    job = ledger.submit(replace(order(42), **values)).job
    assert expected in "\n".join(explain(ledger, job.id).sentences)


def test_one_more_run_is_explained_on_both_jobs(ledger: Ledger) -> None:
    """The output of a running job names the next run; that one's says what it waits for and when it was promoted."""
    first = claimed(ledger, ledger.submit(order(42)).job.id)
    queued = ledger.submit(order(42, queues_next=True, replaces=True)).job
    ledger.submit(replace(order(42, queues_next=True, replaces=True), fingerprint="another"))
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
    ledger.record(
        Duplicate(
            job_id=job.id, submission_nonce="", outcome=Outcome.REJECTED, answered_by=job.id, source="redelivery",
            submitter="",
            host="south@shop", fingerprint=job.fingerprint, arguments_differ=False,
        )
    )  # fmt: skip
    story = "\n".join(explain(ledger, job.id).sentences)
    assert "Its message was redelivered (to south@shop), and nothing was run." in story
    assert "altogether" not in story
    assert ledger.get(job.id).duplicate_count == 0


def test_the_retention_of_a_key_is_explained(ledger: Ledger) -> None:
    """The output of an ended job says until when it answers its idempotency key."""
    job = claimed(ledger, ledger.submit(order(42, key="1:a:b")).job.id)
    done = ledger.complete(job, "1")
    assert "It answers its idempotency key until 2" in explain(ledger, done.id).sentences[-1]


def test_the_window_of_a_kept_result_is_explained(ledger: Ledger, clock: ManualClock) -> None:
    """The output of a success that answers equal submissions says until when, and afterwards that it no longer does."""
    job = ledger.submit(order(42)).job
    ledger.complete(claimed(ledger, job.id), '"done"', keep=Retention(identity_for=60.0))
    assert "answers duplicates until 2027-01-15T08:01:00Z" in explain(ledger, job.id).sentences[-1]
    clock.advance(60.0)
    ledger.submit(order(42))
    story = explain(ledger, job.id).sentences
    assert "It released its identity" in "\n".join(story)
    assert "answers" not in "\n".join(story)


@for_each("number, job_id", enumerate(["{node}", "{", "}{}", "{0.__class__}", "%s"]))
def test_an_id_is_no_format(ledger: Ledger, number: int, job_id: str) -> None:
    """An id that looks like a format string is printed as it is, whatever the job's state."""
    leader = ledger.submit(replace(order(number), id=job_id)).job
    follower = ledger.submit(replace(order(number), id=f"f{job_id}", follows=True)).follower
    assert follower is not None
    waiting = explain(ledger, follower.id).sentences
    assert waiting[-1] == f"It waits for the end of job {job_id}, which is queued."
    assert job_id in explain(ledger, leader.id).sentences[0]

"""Submit: one identity, one job; every column of a new row; what a duplicate writes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from onejob.jobs.lifecycle import State
from onejob.jobs.model import Admission, Cancel, Job, Outcome, Submission
from tests.contract.support import (
    LEASE,
    START,
    ManualClock,
    admission,
    assert_changed,
    end,
    get,
    read,
    run,
    submission,
    submit,
    submit_one,
    untouched,
)

if TYPE_CHECKING:
    from onejob.ledger.ledger import Ledger
    from onejob.stores.protocol import Store


def _expected_row(new: Submission, *, wake_at: float | None = None) -> Job:
    """Return the row that a submission writes at `START`."""
    expires_at = None if new.expires_in is None else START + new.expires_in
    return Job(
        id=new.id, task=new.task, identity=new.identity, fingerprint=new.fingerprint, submission_nonce=new.nonce,
        submitter=new.submitter, payload=new.payload, options=new.options, priority_rank=new.priority_rank,
        source=new.source,
        state=State.QUEUED,
        holds_identity=True, queued_next=False, identity_until=None, follows_id=None, token=0, claim="", node="",
        attempt=0,
        retries=new.retries, crashes=0, lease=new.lease, lease_until=None, created_at=START, run_at=START + new.delay,
        expires_at=expires_at, started_at=None, finished_at=None, wake_at=wake_at,
        route="", publish_error="", published=0, published_at=None if new.delay else START, cancel=Cancel.NO,
        canvas_pending=new.canvas, key_retained_until=None if new.key is None else START + new.key_for,
        duplicate_count=0,
        progress=None, result=None, error=None, reason="submitted",
    )  # fmt: skip


def test_a_new_job_is_queued_and_holds_its_identity(store: Store, clock: ManualClock) -> None:
    """A first submission is written as a queued job, due at once, that holds its identity."""
    new = submission()
    assert submit_one(store, new, wake_in=7.0) == Admission(_expected_row(new, wake_at=START + 7.0), Outcome.ADMITTED)
    assert get(store, "job-1") == _expected_row(new, wake_at=START + 7.0)


def test_a_new_job_has_every_value_of_its_submission(store: Store, clock: ManualClock) -> None:
    """Every value of a submission is stored in the row."""
    new = submission(
        "job-2", task="other.task", identity="identity-2", fingerprint="fingerprint-2", nonce="nonce-2", payload="[]",
        options='{"queue": "slow"}', priority_rank=9, lease=12.5, delay=3.0, expires_in=60.0, retries=4, follows=True,
        canvas=True, rejects=True, replaces=True, queues_next=True, max_wait=9.0, key="key-1", key_for=50.0,
        source="delay", submitter="user:1", host="host-1",
    )  # fmt: skip
    assert submit_one(store, new, wake_in=30.0) == Admission(_expected_row(new, wake_at=START + 3.0), Outcome.ADMITTED)
    assert get(store, "job-2") == _expected_row(new, wake_at=START + 3.0)


@pytest.mark.parametrize(
    "payload", ['{"kwargs": {"name": "Žofie 😀"}}', '"quote \' \\" back\\\\slash\\nnew"', "", " 0 "]
)
def test_a_payload_is_returned_unchanged(store: Store, payload: str) -> None:
    """A payload is stored exactly, whatever it contains."""
    assert submit(store, payload=payload).payload == payload
    assert read(store).payload == payload


@pytest.mark.parametrize("identity", ["v1-Ω:with:colons", "{v1}", "a b", "v1-" + "x" * 200])
def test_an_identity_is_any_text(store: Store, identity: str) -> None:
    """An identity is compared as a whole, and may be any text."""
    job = submit(store, identity=identity)
    assert submit(store, "job-2", identity=identity).id == job.id
    assert submit(store, "job-3", identity=identity + "x").id == "job-3"


def test_a_duplicate_returns_the_job_that_holds_the_identity(store: Store, clock: ManualClock) -> None:
    """A duplicate returns the job that holds the identity, and only raises its duplicate count."""
    job = submit(store, identity="same")
    clock.advance(1.0)
    answer = admission(store, "job-2", identity="same", payload="[2]", options="[2]", canvas=True, wake_in=1.0)
    assert answer == Admission(answer.job, Outcome.ATTACHED)
    assert_changed(store, job, answer.job, duplicate_count=1)
    assert get(store, "job-2") is None


def test_a_known_id_returns_its_row(store: Store) -> None:
    """A submission whose id is known returns that job, whatever its other values."""
    job = submit(store)
    with untouched(store):
        answer = admission(store, identity="another", payload="[]", nonce="other", wake_in=1.0)
        assert answer == Admission(job, Outcome.ATTACHED)


def test_a_known_id_takes_precedence_over_the_holder_of_the_identity(store: Store) -> None:
    """A known id returns its own row, even while another job holds the identity."""
    ended = end(store, run(store, identity="same"))
    submit(store, "job-2", identity="same")
    with untouched(store, "job-1", "job-2"):
        assert admission(store, identity="same") == Admission(ended, Outcome.ADMITTED)


def test_a_submission_is_recorded_in_the_history_and_its_duplicates_are_not(store: Store, clock: ManualClock) -> None:
    """The history records when and from which source a job was submitted; a later duplicate adds no entry to it."""
    submit(store, identity="same", source="delay")
    clock.advance(2.0)
    submit(store, "job-2", identity="same", source="http")
    lines = [(e.at, e.event, e.state, e.attempt, e.node, e.detail) for e in store.history("job-1")]
    assert lines == [(START, "submit", State.QUEUED, 0, "", "delay")]
    assert [duplicate.source for duplicate in store.duplicates("job-1")] == ["http"]
    assert store.history("job-2") == []


def test_timestamps_use_the_clock_of_the_store(store: Store) -> None:
    """Without an injected clock a store uses its own time, to a fraction of a second."""
    before = time.time()
    job = submit(store, delay=5.0, expires_in=7.0, wake_in=3.0, key="key-1", key_for=9.0)
    assert before - 0.01 <= job.created_at <= time.time() + 0.01
    timestamps = [
        at and at - job.created_at for at in (job.run_at, job.expires_at, job.wake_at, job.key_retained_until)
    ]
    assert timestamps == pytest.approx([5.0, 7.0, 5.0, 9.0], abs=1e-5)


def test_the_ledger_returns_which_submission_was_admitted(ledger: Ledger) -> None:
    """The ledger returns `admitted` to the submission that wrote the job and `attached` to every other."""
    first = ledger.submit(submission(identity="same"))
    second = ledger.submit(submission("job-2", identity="same"))
    assert (first.outcome, first.job.id, first.follower) == (Outcome.ADMITTED, "job-1", None)
    assert (second.outcome, second.job.id, second.follower) == (Outcome.ATTACHED, "job-1", None)


@pytest.mark.parametrize("ended", [False, True])
def test_another_submission_of_a_known_id_is_attached(ledger: Ledger, store: Store, ended: bool) -> None:
    """A submission with the id of another submission's job is attached, not admitted."""
    ledger.submit(submission())
    if ended:
        ledger.cancel("job-1")
    with untouched(store):
        other = ledger.submit(submission(nonce="another"))
    assert (other.outcome, other.job, other.follower) == (Outcome.ATTACHED, read(store), None)


@pytest.mark.parametrize(("delay", "wake_in"), [(0.0, LEASE), (-5.0, LEASE), (2.0, 2.0), (3600.0, 3600.0)])
def test_wake_at_of_a_new_job_is_run_at_or_after_one_lease(
    ledger: Ledger, clock: ManualClock, delay: float, wake_in: float
) -> None:
    """The `wake_at` of a delayed job is `run_at`; that of a job published at once is one lease from now."""
    job = ledger.submit(submission(delay=delay)).job
    assert job.wake_at == START + wake_in
    assert job.run_at == START + delay

"""Run now: a delayed or a retrying job becomes due at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.errors import JobNotFoundError, NotWaitingError
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Cancel
from onejob.ledger.explain import explain
from onejob.ledger.ledger import Ledger
from tests.contract.support import (
    LEASE,
    START,
    UNKNOWN,
    ManualClock,
    after,
    apply,
    assert_changed,
    assert_legal,
    claim,
    end,
    queue_next,
    read,
    run,
    start,
    steps_to,
    submission,
    submit,
    submit_one,
    sweep,
    untouched,
)

if TYPE_CHECKING:
    from onejob.jobs.model import Job
    from onejob.stores.protocol import Store


def _delayed(store: Store, state: State) -> Job:
    """Let a job wait for an hour, before its first run or for its next attempt."""
    if state is State.QUEUED:
        return submit(store, delay=3600.0)
    return apply(store, run(store), Transition.RETRY, run_in=3600.0, wake_in=3600.0, published=2, publish_error="no")


@pytest.mark.parametrize("state", [State.QUEUED, State.RETRYING])
def test_a_delayed_job_becomes_due(ledger: Ledger, store: Store, clock: ManualClock, state: State) -> None:
    """A delayed or retrying job is due at once, keeps its state and reason, and the next sweep publishes it."""
    job = _delayed(store, state)
    now = clock.advance(1.0)
    due = ledger.run_now("job-1", reason="made due by ops")
    assert_changed(store, job, due, run_at=now, wake_at=now, published=0, publish_error="")
    entry = store.history("job-1")[-1]
    assert (entry.event, entry.state, entry.detail) == ("run_now", state, "made due by ops")
    assert "The job was made due at once: made due by ops." in "\n".join(explain(ledger, "job-1").sentences)
    published: list[str] = []
    sweep(ledger, lambda job: published.append(job.id))
    assert published == ["job-1"]
    done = ledger.complete(start(store), "1")
    assert_legal(store.history("job-1"), done)


def test_a_job_that_is_due_is_unchanged(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A job that is due already is returned as it is, with no entry in its history."""
    job = submit(store, delay=5.0)
    clock.advance(5.0)
    with untouched(store):
        assert ledger.run_now("job-1") == job


@pytest.mark.parametrize("state", sorted(set(State) - {State.QUEUED, State.RETRYING}))
def test_only_waiting_jobs_are_made_due(ledger: Ledger, store: Store, state: State) -> None:
    """A job that runs or has ended is refused with its state."""
    steps_to(store, "job-1", state)
    with untouched(store), pytest.raises(NotWaitingError) as caught:
        ledger.run_now("job-1")
    assert (caught.value.state, caught.value.follows_id) == (state, "")


def test_a_job_that_waits_for_another_is_refused(ledger: Ledger, store: Store) -> None:
    """A follower, and the job that is queued next, are refused with the job whose end they wait for."""
    run(store, identity="same")
    queue_next(store, "job-2")
    submit_one(store, submission("job-3", identity="same", follows=True), wake_in=LEASE)
    for job_id in ("job-2", "job-3"):
        with untouched(store, job_id), pytest.raises(NotWaitingError, match="until job job-1 has ended") as caught:
            ledger.run_now(job_id)
        assert caught.value.follows_id == "job-1"


def test_a_retried_follower_can_be_made_due(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A follower that has run, and waits for its retry, is made due like any other job."""
    followed = run(store, identity="same")
    submit_one(store, submission("job-2", identity="same", follows=True), wake_in=LEASE)
    end(store, followed, Transition.FAIL)
    apply(store, start(store, "job-2"), Transition.RETRY, run_in=60.0, wake_in=60.0)
    assert ledger.run_now("job-2").run_at == clock.now


def test_an_unknown_job_is_not_made_due(ledger: Ledger) -> None:
    """An unknown id raises `JobNotFoundError`."""
    with pytest.raises(JobNotFoundError):
        ledger.run_now(UNKNOWN)


def test_a_job_that_is_claimed_meanwhile_is_refused(store: Store, clock: ManualClock) -> None:
    """If the job becomes due and is claimed between the look at it and the change, it is refused as running."""
    submit(store, delay=5.0)

    def claim_when_due() -> None:
        clock.advance(5.0)
        start(store)

    raced = Ledger(after(store, "read_clock", claim_when_due))
    with pytest.raises(NotWaitingError) as caught:
        raced.run_now("job-1")
    assert caught.value.state is State.RUNNING


def test_a_job_that_has_run_meanwhile_is_made_due(store: Store, clock: ManualClock) -> None:
    """If another run has ended meanwhile in a longer delay, that delay is over, too."""
    submit(store, delay=5.0)

    def run_and_retry() -> None:
        clock.advance(5.0)
        apply(store, start(store), Transition.RETRY, run_in=3600.0, wake_in=3600.0)

    job = Ledger(after(store, "read_clock", run_and_retry)).run_now("job-1")
    assert (job.state, job.run_at, job.attempt) == (State.RETRYING, clock.now, 1)


def test_an_expired_job_is_canceled_after_all(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A delayed job that has expired does not run: the sweep that finds it due cancels it."""
    submit(store, delay=3600.0, expires_in=60.0)
    clock.advance(60.0)
    ledger.run_now("job-1")
    assert not claim(store).applied
    sweep(ledger, lambda job: None)
    assert read(store).state is State.CANCELED


def test_a_cancellation_that_was_requested_wins(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A waiting job whose cancellation was requested is canceled instead of made due."""
    job = apply(store, run(store), Transition.REQUEST_CANCEL, cancel=Cancel.ASKED)
    apply(store, job, Transition.RETRY, run_in=60.0, wake_in=60.0)
    assert ledger.run_now("job-1").state is State.CANCELED
    assert clock.now == START

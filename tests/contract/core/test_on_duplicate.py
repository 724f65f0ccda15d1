"""Conflict policies: how each submission changes the existing job, in each state, and what it never changes."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from onejob.jobs.lifecycle import Transition
from onejob.jobs.model import Admission, Job, Outcome, Retention
from onejob.ledger.ledger import Ledger
from onejob.uniqueness.on_duplicate import resolve
from tests.contract.support import (
    CONFLICT_POLICIES,
    LEASE,
    START,
    ManualClock,
    admission,
    apply,
    assert_changed,
    claim,
    queue_next,
    read,
    run,
    start,
    submission,
    submit,
    submit_one,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.jobs.model import Submission
    from onejob.stores.protocol import Store

SITUATIONS: dict[str, Callable[[Store], Job]] = {
    "not begun": lambda store: submit(store, identity="same"),
    "queued again": lambda store: apply(store, run(store, identity="same"), Transition.RELEASE),
    "running": lambda store: run(store, identity="same"),
    "retrying": lambda store: apply(
        store, run(store, identity="same"), Transition.RETRY, run_in=5000.0, wake_in=5000.0
    ),
    "kept": lambda store: Ledger(store).complete(run(store, identity="same"), "1", keep=Retention(identity_for=5000.0)),
}
OTHERS: dict[str, Any] = {
    "fingerprint": "other", "payload": "[2]", "options": "[3]", "lease": 77.0, "retries": 5, "canvas": True,
    "source": "delay",
}  # fmt: skip
"""Values of a submission with other arguments, which does not reschedule the job."""


def submit_again(store: Store, conflict_policy: str = "attach", job_id: str = "job-2", **values: Any) -> Admission:
    """Submit the same identity once more, with a conflict policy."""
    return admission(store, job_id, identity="same", **(CONFLICT_POLICIES[conflict_policy] | values))


def assert_duplicate(store: Store, before: Job, answer: Admission, outcome: Outcome, **columns: Any) -> None:
    """Assert that the job is returned, its duplicate count is one higher, and only these columns have changed."""
    assert answer == Admission(answer.job, outcome, rescheduled=bool({"run_at", "priority_rank"} & set(columns)))
    assert_changed(store, before, answer.job, duplicate_count=before.duplicate_count + 1, **columns)


# --- rescheduled to an earlier time ---------------------------------------------------------------------------------


def test_a_rescheduled_job_can_be_claimed(store: Store, clock: ManualClock) -> None:
    """A job can be claimed from its new `run_at` on, and not before."""
    submit(store, identity="same", delay=100.0)
    submit_again(store, delay=30.0)
    clock.advance(29.5)
    assert not claim(store).applied
    clock.advance(0.5)
    assert claim(store).applied


@pytest.mark.parametrize("situation", SITUATIONS)
def test_rejection_takes_precedence(store: Store, situation: str) -> None:
    """A submission with `rejects` is rejected in every situation, even when it also has other policies."""
    before = SITUATIONS[situation](store)
    assert_duplicate(store, before, submit_again(store, "run_again", rejects=True, **OTHERS), Outcome.REJECTED)


@pytest.mark.parametrize("conflict_policy", ["attach", "replace"])
def test_wake_at_is_never_after_the_expiry(store: Store, clock: ManualClock, conflict_policy: str) -> None:
    """The `wake_at` of a rescheduled job is never after its expiry."""
    submit(store, identity="same", delay=100.0, expires_in=50.0)
    job = submit_again(store, conflict_policy, delay=40.0, expires_in=0.0).job
    assert (job.run_at, job.wake_at) == (START + 40.0, START + 40.0)
    clock.advance(40.0)
    values: dict[str, Any] = {"delay": 0.0, "priority_rank": 1, "max_wait": 0.0, "expires_in": 0.0}
    job = submit_again(store, conflict_policy, "job-3", **values).job
    assert (job.run_at, job.wake_at) == (START + 40.0, START + 50.0)


# --- postponed ------------------------------------------------------------------------------------------------------


def test_repeated_submissions_postpone_a_job_up_to_max_wait(store: Store, clock: ManualClock) -> None:
    """A job that is resubmitted continually runs after `max_wait`, with the newest arguments."""
    submit(store, identity="same", delay=15.0)
    for number in range(5):
        clock.advance(10.0)
        job = submit_again(
            store, "replace", f"late-{number}", delay=15.0, payload=str(number), fingerprint=str(number)
        ).job
        assert job.run_at == START + min(10.0 * (number + 1) + 15.0, 60.0)
    clock.advance(9.5)
    assert not claim(store).applied
    clock.advance(0.5)
    assert start(store).payload == "4"


def test_an_overdue_job_is_not_postponed(store: Store, clock: ManualClock) -> None:
    """After `max_wait` a job that has not been claimed stays due."""
    submit(store, identity="same", delay=15.0)
    submit_again(store, "replace", "late", delay=1000.0)
    clock.advance(60.0)
    before = read(store)
    assert_duplicate(store, before, submit_again(store, "replace", delay=15.0), Outcome.ATTACHED)
    assert claim(store).applied


# --- arguments that are taken over ----------------------------------------------------------------------------------


def test_the_original_arguments_can_be_restored(store: Store) -> None:
    """A submission is compared with the current arguments of the job, not with its original ones."""
    job = submit(store, identity="same")
    submit_again(store, "replace", fingerprint="other", payload="[2]", max_wait=0.0)
    answer = submit_again(store, "replace", "job-3", fingerprint=job.fingerprint, payload=job.payload, max_wait=0.0)
    assert (answer.outcome, answer.job) == (Outcome.REPLACED, replace(job, duplicate_count=2))


@pytest.mark.parametrize("expires_in", [None, 50.0])
def test_a_job_that_has_expired_stays_so(store: Store, clock: ManualClock, expires_in: float | None) -> None:
    """A duplicate of a job that has expired, and is not canceled yet, does not revive it."""
    before = submit(store, identity="same", expires_in=10.0)
    clock.advance(10.0)
    assert submit_again(store, "attach", expires_in=expires_in).job.expires_at == before.expires_at
    answer = Ledger(store).submit(submission("job-3", identity="same", expires_in=expires_in))
    assert (answer.outcome, answer.job.id) == (Outcome.ADMITTED, "job-3")


# --- followers ------------------------------------------------------------------------------------------------------


def test_a_follower_follows_the_job_that_is_queued_next(store: Store) -> None:
    """A follower that is a duplicate of the job queued next ends with that job."""
    run(store, identity="same")
    queue_next(store)
    answer = submit_again(store, "run_again", "job-3", follows=True)
    assert (answer.outcome, answer.job.id) == (Outcome.ATTACHED, "job-2")
    assert answer.follower == read(store, "job-3")
    assert answer.follower.follows_id == "job-2"


# --- all stores implement one rule ----------------------------------------------------------------------------------


def _expected_job(job: Job, new: Submission, now: float) -> Job:
    """Return the waiting job after `resolve`, with its `wake_at`."""
    resolution = resolve(job, new, now=now)
    after = replace(
        job, duplicate_count=job.duplicate_count + 1, run_at=resolution.run_at, priority_rank=resolution.priority_rank,
        expires_at=resolution.expires_at,
    )  # fmt: skip
    if resolution.run_at > now and resolution.changes(job):
        after = replace(after, wake_at=resolution.run_at, published_at=None)
    elif resolution.reschedules(job):
        after = replace(after, wake_at=now + LEASE, published_at=now)
    after = replace(after, wake_at=min(after.wake_at or 0.0, after.expires_at or math.inf))
    return replace(after, fingerprint=new.fingerprint, payload=new.payload) if resolution.takes_over else after


def test_every_store_implements_resolve(store: Store, clock: ManualClock) -> None:
    """For every combination of times, `max_wait`, priority and arguments, each store does what `resolve` returns."""
    combinations = itertools.product((0.0, 20.0), (0.0, 15.0, 25.0, 70.0), (0.0, 10.0, 30.0, 100.0), (0.0, 5.0, 60.0))
    for number, (first, passed, delay, max_wait) in enumerate(combinations):
        expiries = ((None, None), (90.0, None), (None, 90.0), (90.0, 80.0), (90.0, 10.0), (10.0, 80.0), (90.0, 120.0))
        expires_in, again_in = expiries[number % len(expiries)]
        job = submit(store, f"job-{number}", identity=str(number), delay=first, priority_rank=2, expires_in=expires_in)
        now = clock.advance(passed)
        new = submission(
            f"late-{number}", identity=str(number), delay=delay, max_wait=max_wait, priority_rank=number % 4,
            expires_in=again_in, replaces=number % 3 > 0, payload="[2]",
            fingerprint="other" if number % 5 else job.fingerprint,
        )  # fmt: skip
        resolution, expected = resolve(job, new, now=now), _expected_job(job, new, now)
        assert submit_one(store, new, wake_in=LEASE) == Admission(
            expected, resolution.outcome, rescheduled=resolution.reschedules(job)
        ), new
        assert read(store, job.id) == expected

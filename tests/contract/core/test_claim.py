"""Claim: the only way to start a run; what it sets, and each reason to refuse it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.jobs.lifecycle import State
from onejob.jobs.model import Applied
from tests.contract.support import (
    LEASE,
    UNKNOWN,
    ManualClock,
    assert_changed,
    claim,
    get,
    queue_next,
    read,
    run,
    submit,
    untouched,
)

if TYPE_CHECKING:
    from onejob.stores.protocol import Store


def claim_is_refused(store: Store, job_id: str = "job-1") -> bool:
    """Return whether a claim is refused, after checking that the refusal returns the job and changes nothing."""
    with untouched(store, job_id):
        answer = claim(store, job_id)
        assert answer.job == get(store, job_id)
    return not answer.applied


def test_a_first_claim_starts_a_run(store: Store, clock: ManualClock) -> None:
    """A claim sets the job running, with a new token, lease and `wake_at`, the first attempt, and nothing published."""
    job = submit(store)
    now = clock.advance(2.0)
    answer = claim(store, nonce="claim-1", node="node-7")
    assert answer.applied
    assert_changed(
        store, job, answer.job, state=State.RUNNING, token=int(now * 1e6), claim="claim-1", node="node-7", attempt=1,
        lease_until=now + LEASE, wake_at=now + LEASE, started_at=now, published_at=None, reason="running on node-7",
    )  # fmt: skip


def test_a_claim_of_an_unknown_job_is_refused(store: Store) -> None:
    """A claim of an unknown id is refused."""
    submit(store)
    with untouched(store):
        assert claim(store, UNKNOWN) == Applied(applied=False, job=None)
    assert store.history(UNKNOWN) == []


@pytest.mark.parametrize("target", [State.RETRYING, State.COMPLETED])
def test_a_claim_accepts_any_states(store: Store, target: State) -> None:
    """The caller specifies both the state before a claim and the state after it."""
    job = run(store)
    assert store.claim(job.id, nonce="other", node="n", sources=frozenset({State.RUNNING}), target=target).applied
    assert read(store).state is target


def test_a_delayed_job_cannot_be_claimed_before_it_is_due(store: Store, clock: ManualClock) -> None:
    """A claim is refused until exactly `run_at`."""
    submit(store, delay=10.0)
    clock.advance(9.5)
    assert claim_is_refused(store)
    clock.advance(0.5)
    assert claim(store).applied


def test_an_expired_job_cannot_be_claimed(store: Store, clock: ManualClock) -> None:
    """A job cannot be claimed at or after its expiry."""
    submit(store, expires_in=10.0)
    clock.advance(10.0)
    assert claim_is_refused(store)
    clock.advance(1.0)
    assert claim_is_refused(store)


def test_a_job_can_be_claimed_until_its_expiry(store: Store, clock: ManualClock) -> None:
    """Before its expiry a job can be claimed."""
    submit(store, expires_in=10.0)
    clock.advance(9.5)
    assert claim(store).applied


def test_a_job_that_waits_for_its_identity_cannot_be_claimed(store: Store, clock: ManualClock) -> None:
    """A job that is queued next cannot be claimed before its promotion, however long it has been due."""
    run(store, identity="same")
    queue_next(store)
    clock.advance(1000.0)
    assert claim_is_refused(store, "job-2")

"""Claim: the only way to start a run; what it sets, and each reason to refuse it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Applied, Cancel
from tests.contract.support import (
    LEASE,
    START,
    UNKNOWN,
    ManualClock,
    apply,
    assert_changed,
    claim,
    events,
    get,
    queue_next,
    read,
    run,
    start,
    steps_to,
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
    """A claim sets the job running, with a new token and lease, the first attempt, and `wake_at` at the lease's end."""
    job = submit(store)
    now = clock.advance(2.0)
    answer = claim(store, nonce="claim-1", node="node-7")
    assert answer.applied
    assert_changed(
        store, job, answer.job, state=State.RUNNING, token=int(now * 1e6), claim="claim-1", node="node-7", attempt=1,
        lease_until=now + LEASE, wake_at=now + LEASE, started_at=now, reason="running on node-7",
    )  # fmt: skip


def test_a_claim_of_a_retry_starts_the_next_run(store: Store, clock: ManualClock) -> None:
    """A claim overwrites the token, nonce, node, attempt, lease, start and publication count of the previous run."""
    job = run(store, lease=10.0)
    job = apply(
        store, job, Transition.RETRY, published=3, run_in=0.0, wake_in=4.0, retries=1, error="{}", reason="again"
    )
    now = clock.advance(5.0)
    answer = claim(store, nonce="claim-2", node="node-8")
    assert answer.applied
    assert_changed(
        store, job, answer.job, state=State.RUNNING, token=int(now * 1e6), claim="claim-2", node="node-8", attempt=2,
        lease_until=now + 10.0, wake_at=now + 10.0, started_at=now, published=0, reason="running on node-8",
    )  # fmt: skip


@pytest.mark.parametrize("expires_in", [5.0, 500.0])
def test_a_claim_clears_the_expiry(store: Store, clock: ManualClock, expires_in: float) -> None:
    """A job that has started no longer expires, even when it waits again."""
    submit(store, expires_in=expires_in)
    job = start(store)
    assert job.expires_at is None
    assert job.wake_at == START + LEASE
    apply(store, job, Transition.RELEASE)
    clock.advance(expires_in + 1.0)
    assert claim(store).applied


def test_a_claim_resets_the_publication_count(store: Store) -> None:
    """A claim sets the publication count to zero, so that the next wait starts a new count."""
    job = apply(store, submit(store), Transition.PUBLISH, published=5)
    assert job.published == 5
    assert start(store).published == 0


def test_a_claim_is_recorded(store: Store, clock: ManualClock) -> None:
    """The history records a claim with its attempt and node."""
    submit(store)
    now = clock.advance(1.0)
    start(store, node="node-7")
    entry = store.history("job-1")[-1]
    assert (entry.at, entry.event, entry.state, entry.attempt, entry.node, entry.detail) == (
        now, "claim", State.RUNNING, 1, "node-7", "attempt 1 on node-7",
    )  # fmt: skip


def test_a_claim_of_an_unknown_job_is_refused(store: Store) -> None:
    """A claim of an unknown id is refused."""
    submit(store)
    with untouched(store):
        assert claim(store, UNKNOWN) == Applied(applied=False, job=None)
    assert store.history(UNKNOWN) == []


@pytest.mark.parametrize("state", [State.RUNNING, State.COMPLETED, State.FAILED, State.CANCELED])
def test_a_claim_is_refused_outside_its_sources(store: Store, state: State) -> None:
    """A job that runs or has ended cannot be claimed, and the refusal returns the job."""
    steps_to(store, "job-1", state)
    assert claim_is_refused(store)


def test_the_caller_specifies_the_sources_and_the_target(store: Store) -> None:
    """A store claims from the states that the caller specifies, into the state that the caller specifies."""
    submit(store)
    only_retrying = frozenset({State.RETRYING})
    assert not store.claim("job-1", nonce="a", node="n", sources=only_retrying, target=State.RUNNING).applied
    answer = store.claim("job-1", nonce="b", node="n", sources=frozenset({State.QUEUED}), target=State.RETRYING)
    assert answer.applied
    assert read(store).state is State.RETRYING


@pytest.mark.parametrize("target", [State.RETRYING, State.COMPLETED])
def test_a_claim_accepts_any_states(store: Store, target: State) -> None:
    """The caller specifies both the state before a claim and the state after it."""
    job = run(store)
    assert store.claim(job.id, nonce="other", node="n", sources=frozenset({State.RUNNING}), target=target).applied
    assert read(store).state is target


@pytest.mark.parametrize("lease", [5.0, 900.0])
def test_a_claim_uses_the_lease_of_the_job(store: Store, clock: ManualClock, lease: float) -> None:
    """The lease, and `wake_at` with it, last as long as the job's `lease`."""
    submit(store, lease=lease)
    now = clock.advance(1.0)
    job = start(store)
    assert (job.lease_until, job.wake_at) == (now + lease, now + lease)


def test_a_delayed_job_cannot_be_claimed_before_it_is_due(store: Store, clock: ManualClock) -> None:
    """A claim is refused until exactly `run_at`."""
    submit(store, delay=10.0)
    clock.advance(9.5)
    assert claim_is_refused(store)
    clock.advance(0.5)
    assert claim(store).applied


def test_a_retry_cannot_be_claimed_before_it_is_due(store: Store, clock: ManualClock) -> None:
    """A claim of a delayed retry is refused until `run_at`."""
    apply(store, run(store), Transition.RETRY, run_in=10.0)
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


@pytest.mark.parametrize("requested", [Cancel.ASKED, Cancel.FORCED])
@pytest.mark.parametrize("event", [Transition.RELEASE, Transition.RETRY])
def test_a_job_with_a_cancel_request_cannot_be_claimed(store: Store, requested: Cancel, event: Transition) -> None:
    """A cancel request remains in force when the job waits again: no run starts."""
    job = run(store)
    apply(store, job, Transition.REQUEST_CANCEL, cancel=requested)
    apply(store, job, event)
    assert claim_is_refused(store)


def test_a_job_that_waits_for_its_identity_cannot_be_claimed(store: Store, clock: ManualClock) -> None:
    """A job that is queued next cannot be claimed before its promotion, however long it has been due."""
    run(store, identity="same")
    queue_next(store)
    clock.advance(1000.0)
    assert claim_is_refused(store, "job-2")


def test_a_claim_changes_no_other_job(store: Store) -> None:
    """A claim changes only the claimed job."""
    submit(store)
    submit(store, "job-2")
    with untouched(store, "job-2"):
        start(store)


def test_a_claim_keeps_the_data_of_previous_runs(store: Store, clock: ManualClock) -> None:
    """A claim keeps the steps, progress, payload, retries, crashes, duplicates and error of previous runs."""
    job = run(store, identity="same", canvas=True)
    store.report("job-1", job.token, "0.5", sources=frozenset({State.RUNNING}))
    store.keep_step("job-1", job.token, "one", "1", sources=frozenset({State.RUNNING}))
    submit(store, "job-2", identity="same")
    job = apply(store, job, Transition.RETRY, payload="[9]", retries=2, crashes=1, error='"bad"', reason="again")
    clock.advance(1.0)
    after = start(store)
    kept = replace(
        job, state=after.state, token=after.token, claim=after.claim, attempt=2, started_at=after.started_at,
        lease_until=after.lease_until, wake_at=after.wake_at, reason=after.reason,
    )  # fmt: skip
    assert after == kept
    assert (after.progress, after.error, after.retries, after.crashes, after.duplicate_count) == (
        "0.5",
        '"bad"',
        2,
        1,
        1,
    )
    assert store.steps("job-1") == {"one": "1"}
    assert events(store) == ["submit", "claim", "retry", "claim"]

"""Renew: one call for all leases of a node, and a correct result for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Cancel, Renewal
from tests.contract.support import (
    ANY,
    ENDINGS,
    LEASE,
    RUNNING,
    UNKNOWN,
    ManualClock,
    apply,
    assert_changed,
    change,
    end,
    events,
    get,
    read,
    run,
    start,
    submit,
    untouched,
)

if TYPE_CHECKING:
    from onejob.ledger.ledger import Ledger
    from onejob.stores.protocol import Store


def test_a_renewal_extends_the_lease_and_wake_at(store: Store, clock: ManualClock) -> None:
    """A renewal sets the lease and `wake_at` to one lease from now, and changes nothing else."""
    job = run(store)
    now = clock.advance(20.0)
    assert store.renew([(job.id, job.claim)], sources=RUNNING) == [Renewal(job.id, job.claim, held=True)]
    assert_changed(store, job, get(store, job.id), lease_until=now + LEASE, wake_at=now + LEASE)


def test_jobs_are_renewed_by_their_own_leases(store: Store, clock: ManualClock) -> None:
    """In one call every job is renewed by its own lease."""
    jobs = [run(store, f"job-{lease:g}", lease=lease) for lease in (5.0, 60.0)]
    now = clock.advance(4.0)
    store.renew([(job.id, job.claim) for job in jobs], sources=RUNNING)
    for job in jobs:
        assert_changed(store, job, get(store, job.id), lease_until=now + job.lease, wake_at=now + job.lease)


def test_an_expired_lease_can_be_renewed_until_the_job_is_taken(store: Store, clock: ManualClock) -> None:
    """A late renewal is granted while no other run has the job."""
    job = run(store)
    clock.advance(LEASE * 2)
    assert store.renew([(job.id, job.claim)], sources=RUNNING)[0].held
    assert not store.apply(change(job, Transition.CRASH, lapsed=True)).applied


def test_renewals_are_returned_in_the_order_of_the_request(store: Store) -> None:
    """Every requested pair has a renewal, known or not, in the order of the request."""
    jobs = [run(store, f"job-{n}") for n in range(5)]
    end(store, jobs[2])
    requested = [(job.id, job.claim) for job in reversed(jobs)] + [(UNKNOWN, "nonce")]
    answers = store.renew(requested, sources=RUNNING)
    assert [(answer.job_id, answer.claim) for answer in answers] == requested
    assert [answer.held for answer in answers] == [True, True, False, True, True, False]


def test_the_same_pair_may_be_requested_twice(store: Store) -> None:
    """A pair that is requested twice is returned twice."""
    job = run(store)
    assert [renewal.held for renewal in store.renew([(job.id, job.claim)] * 2, sources=RUNNING)] == [True, True]


def test_an_empty_request_returns_nothing(ledger: Ledger, store: Store) -> None:
    """A node that runs nothing gets an empty result."""
    assert ledger.renew([]) == []
    assert store.renew([], sources=RUNNING) == []


def test_another_claims_nonce_renews_nothing(store: Store, clock: ManualClock) -> None:
    """Only the nonce of the latest claim renews: the renewal of a previous run is not held."""
    previous = run(store)
    apply(store, previous, Transition.RELEASE)
    current = start(store)
    clock.advance(1.0)
    with untouched(store):
        assert store.renew([(previous.id, previous.claim)], sources=RUNNING) == [
            Renewal(previous.id, previous.claim, held=False)
        ]
    assert store.renew([(current.id, current.claim)], sources=RUNNING)[0].held


def test_a_nonce_renews_its_own_job_only(store: Store, clock: ManualClock) -> None:
    """The nonce of one job's claim does not renew another job."""
    first, second = run(store, "job-1"), run(store, "job-2")
    clock.advance(1.0)
    with untouched(store, "job-1", "job-2"):
        answers = store.renew([(first.id, second.claim), (second.id, first.claim)], sources=RUNNING)
    assert [answer.held for answer in answers] == [False, False]


def test_jobs_that_share_a_nonce_are_renewed_by_id(store: Store, clock: ManualClock) -> None:
    """Of two jobs that were claimed with one nonce, only the requested one is renewed."""
    for job_id in ("job-1", "job-2"):
        submit(store, job_id)
        start(store, job_id, nonce="one-nonce")
    clock.advance(1.0)
    with untouched(store, "job-2"):
        store.renew([("job-1", "one-nonce")], sources=RUNNING)
    with untouched(store, "job-1", "job-2"):
        assert not store.renew([(UNKNOWN, "one-nonce")], sources=RUNNING)[0].held


@pytest.mark.parametrize("lease", [5.0, 900.0])
def test_a_renewal_uses_the_lease_of_the_job(store: Store, clock: ManualClock, lease: float) -> None:
    """A renewed lease, and `wake_at` with it, last as long as the job's `lease`."""
    job = run(store, lease=lease)
    now = clock.advance(1.0)
    store.renew([(job.id, job.claim)], sources=RUNNING)
    assert (read(store).lease_until, read(store).wake_at) == (now + lease, now + lease)


def test_other_jobs_are_not_renewed(store: Store, clock: ManualClock) -> None:
    """A renewal changes the requested jobs only."""
    job = run(store, "job-1")
    run(store, "job-2")
    clock.advance(1.0)
    with untouched(store, "job-2"):
        store.renew([(job.id, job.claim)], sources=RUNNING)


@pytest.mark.parametrize(
    "event", [*ENDINGS, Transition.RETRY, Transition.RELEASE, Transition.CRASH, Transition.DEAD_LETTER]
)
def test_a_run_that_is_over_is_not_renewed(store: Store, clock: ManualClock, event: Transition) -> None:
    """A renewal is refused once the run has ended, by any event, and changes nothing."""
    job = run(store)
    apply(store, job, event, wake_in=50.0)
    clock.advance(1.0)
    with untouched(store):
        assert store.renew([(job.id, job.claim)], sources=RUNNING) == [Renewal(job.id, job.claim, held=False)]


def test_a_job_that_never_ran_is_not_renewed(store: Store, clock: ManualClock) -> None:
    """The empty nonce of a job that was never claimed renews nothing."""
    submit(store)
    clock.advance(1.0)
    with untouched(store):
        assert not store.renew([("job-1", "")], sources=RUNNING)[0].held


@pytest.mark.parametrize("requested", [Cancel.ASKED, Cancel.FORCED])
def test_a_renewal_returns_the_cancel_request(store: Store, requested: Cancel) -> None:
    """The renewal contains the cancel request, and the lease is still extended."""
    job, other = run(store, "job-1"), run(store, "job-2")
    apply(store, job, Transition.REQUEST_CANCEL, cancel=requested)
    pairs = [(job.id, job.claim), (other.id, other.claim)]
    assert store.renew(pairs, sources=RUNNING) == [
        Renewal(job.id, job.claim, held=True, cancel=requested),
        Renewal(other.id, other.claim, held=True),
    ]


@pytest.mark.parametrize("sources", [frozenset({State.QUEUED}), ANY - RUNNING, frozenset()])
def test_the_caller_specifies_the_sources(store: Store, clock: ManualClock, sources: frozenset[State]) -> None:
    """A store renews only in the states that the caller specifies."""
    job = run(store)
    clock.advance(1.0)
    with untouched(store):
        assert not store.renew([(job.id, job.claim)], sources=sources)[0].held


def test_a_renewal_is_not_recorded(store: Store) -> None:
    """Heartbeats add no entry to the history."""
    job = run(store)
    store.renew([(job.id, job.claim)], sources=RUNNING)
    assert events(store) == ["submit", "claim"]


def test_many_leases_are_renewed_in_one_call(store: Store, clock: ManualClock) -> None:
    """One call renews all jobs of a busy node."""
    jobs = [run(store, f"job-{n}") for n in range(150)]
    now = clock.advance(10.0)
    assert all(answer.held for answer in store.renew([(j.id, j.claim) for j in jobs], sources=RUNNING))
    assert {read(store, job.id).lease_until for job in jobs} == {now + LEASE}

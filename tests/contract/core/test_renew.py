"""Renew: one call for all leases of a node, and a correct result for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.jobs.lifecycle import Transition
from onejob.jobs.model import Cancel, Renewal
from tests.contract.support import (
    LEASE,
    RUNNING,
    UNKNOWN,
    ManualClock,
    apply,
    change,
    end,
    read,
    run,
    start,
    submit,
    untouched,
)

if TYPE_CHECKING:
    from onejob.ledger.ledger import Ledger
    from onejob.stores.protocol import Store


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


def test_many_leases_are_renewed_in_one_call(store: Store, clock: ManualClock) -> None:
    """One call renews all jobs of a busy node."""
    jobs = [run(store, f"job-{n}") for n in range(150)]
    now = clock.advance(10.0)
    assert all(answer.held for answer in store.renew([(j.id, j.claim) for j in jobs], sources=RUNNING))
    assert {read(store, job.id).lease_until for job in jobs} == {now + LEASE}

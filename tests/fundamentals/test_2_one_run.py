"""Second: a job has one run at a time, and the writes of a late worker are refused."""

import pytest

from onejob.errors import LeaseLost, StaleTokenError
from onejob.jobs.lifecycle import State
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import Ledger
from tests.fundamentals.shop import claimed, order
from tests.stores.support import ManualClock, sweep


def test_a_claim_gives_a_lease_and_a_token(ledger: Ledger) -> None:
    """A claim returns a lease, the time a run is valid, and a token for its writes."""
    job = ledger.submit(order(42)).job
    run = claimed(ledger, job.id)
    assert run.state is State.RUNNING
    assert run.lease_until is not None
    assert run.token > job.token
    assert run.attempt == 1


def test_a_second_claim_is_refused(ledger: Ledger) -> None:
    """A job that runs cannot be claimed, however often its message is delivered."""
    job = ledger.submit(order(42)).job
    claimed(ledger, job.id, "north")
    assert not ledger.claim(job.id, nonce=new_nonce(), node="south").applied


def test_a_dead_worker_delays_a_job_by_a_lease(ledger: Ledger, clock: ManualClock) -> None:
    """If the lease is not renewed, the sweep queues the job again, and another worker can claim it."""
    job = ledger.submit(order(42)).job
    claimed(ledger, job.id, "north")
    clock.advance(31)
    assert sweep(ledger, lambda _: None).lapsed == 1
    assert claimed(ledger, job.id, "south").attempt == 2


def test_a_heartbeat_keeps_the_lease(ledger: Ledger, clock: ManualClock) -> None:
    """As long as its node renews the lease, a job runs as long as it needs."""
    run = claimed(ledger, ledger.submit(order(42)).job.id)
    for _ in range(10):
        clock.advance(20)
        assert ledger.renew([(run.id, run.claim)])[0].held
        assert sweep(ledger, lambda _: None).lapsed == 0


def test_a_late_worker_is_refused(ledger: Ledger, clock: ManualClock) -> None:
    """A worker that resumes after its lease expired cannot change the job, and gets a `StaleTokenError`."""
    job = ledger.submit(order(42)).job
    late = claimed(ledger, job.id, "north")
    clock.advance(31)
    sweep(ledger, lambda _: None)
    rightful = claimed(ledger, job.id, "south")

    with pytest.raises(StaleTokenError):
        ledger.complete(late, '"late"')
    with pytest.raises(LeaseLost):
        ledger.report(late, "{}")
    with pytest.raises(LeaseLost):
        ledger.keep_step(late, "step", '"late"')
    assert ledger.complete(rightful, '"right"').result == '"right"'


def test_steps_survive_the_worker(ledger: Ledger, clock: ManualClock) -> None:
    """The next attempt gets the stored steps of the one before."""
    job = ledger.submit(order(42)).job
    ledger.keep_step(claimed(ledger, job.id, "north"), "outline", '"kept"')
    clock.advance(31)
    sweep(ledger, lambda _: None)
    again = claimed(ledger, job.id, "south")
    assert ledger.steps(again) == {"outline": '"kept"'}
    assert ledger.keep_step(again, "outline", '"computed again"') == '"kept"'

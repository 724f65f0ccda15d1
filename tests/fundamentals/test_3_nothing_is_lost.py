"""Third: the sweep publishes again what the broker loses."""

import pytest

from onejob.errors import BrokerUnavailableError
from onejob.jobs.lifecycle import State
from onejob.jobs.model import JobRow
from onejob.ledger.ledger import Ledger, NextRun
from tests.fundamentals.shop import claimed, order
from tests.stores.support import ManualClock, sweep


def test_a_lost_message_is_sent_again(ledger: Ledger, clock: ManualClock) -> None:
    """A job that is not claimed is published again after a lease, then with a growing back-off."""
    ledger.submit(order(42))
    sent: list[float] = []
    began = clock.now
    for _ in range(1000):
        clock.advance(1)
        sweep(ledger, lambda _: sent.append(clock.now - began))
    gaps = [round(b - a) for a, b in zip([0.0, *sent], sent, strict=False)]
    assert gaps == [30, 30, 60, 120, 240, 480]


def test_a_job_that_is_not_due_is_not_published(ledger: Ledger, clock: ManualClock) -> None:
    """A job with a delay waits in the ledger and is published when it is due."""
    ledger.submit(order(42, delay=3600))
    sent: list[JobRow] = []
    clock.advance(3599)
    sweep(ledger, sent.append)
    assert sent == []
    clock.advance(1)
    sweep(ledger, sent.append)
    assert [job.state for job in sent] == [State.QUEUED]


def test_a_broker_that_fails_does_no_harm(ledger: Ledger, clock: ManualClock) -> None:
    """If publishing fails, the job is due again a few seconds later."""

    def broken(job: JobRow) -> None:
        raise BrokerUnavailableError(job.id)

    ledger.submit(order(42))
    clock.advance(30)
    with pytest.raises(BrokerUnavailableError):
        sweep(ledger, broken)
    sent: list[JobRow] = []
    clock.advance(5)
    sweep(ledger, sent.append)
    assert len(sent) == 1


def test_a_retry_keeps_the_identity(ledger: Ledger, clock: ManualClock) -> None:
    """Between two attempts the identity stays held, and the next attempt does not start before it is due."""
    job = ledger.submit(order(42)).job
    run = claimed(ledger, job.id)
    ledger.retry(run, NextRun.again(run, delay=60, retries=1), error=None, reason="the printer is busy")
    assert ledger.submit(order(42)).job.id == job.id
    assert not ledger.claim(job.id, nonce="too-early", node="south").applied
    clock.advance(60)
    assert claimed(ledger, job.id).retries == 1


def test_a_poison_job_becomes_a_dead_letter(ledger: Ledger, clock: ManualClock) -> None:
    """A job that loses its worker three times fails, with that reason."""
    job = ledger.submit(order(42)).job
    for _ in range(3):
        claimed(ledger, job.id)
        clock.advance(31)
        sweep(ledger, lambda _: None)
    dead = ledger.get(job.id)
    assert dead.state is State.FAILED
    assert "3 times" in dead.reason


def test_canceling(ledger: Ledger) -> None:
    """A queued job is canceled at once; a running one stops at its next progress call."""
    waiting = ledger.submit(order(42)).job
    assert ledger.cancel(waiting.id).state is State.CANCELED
    running = claimed(ledger, ledger.submit(order(42)).job.id)
    assert ledger.cancel(running.id).state is State.RUNNING
    assert ledger.abandon(running, "canceled on request").state is State.CANCELED

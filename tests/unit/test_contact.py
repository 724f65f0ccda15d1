"""A worker ends expired leases only after an unbroken contact with the store."""

from __future__ import annotations

import math

import pytest

from onejob.celery.worker.contact import StoreContact
from tests.contract.support import START, ManualClock

LEASE, INTERVAL = 30.0, 10.0


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock that the test moves."""
    return ManualClock()


@pytest.fixture
def contact(clock: ManualClock) -> StoreContact:
    """Return the contact of a worker that has just started."""
    return StoreContact(settling=LEASE / 2, shortest=LEASE, interval=INTERVAL, clock=lambda: clock.now - START)


def renew(contact: StoreContact, clock: ManualClock, seconds: float) -> None:
    """Renew at the interval for so long."""
    for _ in range(round(seconds / INTERVAL)):
        clock.advance(INTERVAL)
        contact.reached()


def test_a_worker_that_starts_waits(contact: StoreContact, clock: ManualClock) -> None:
    """A worker that has just started ends no lease, since the store may just have come back."""
    assert not contact.steady
    assert contact.reached() == math.inf
    assert not contact.steady
    renew(contact, clock, LEASE)
    assert contact.steady


def test_an_outage_breaks_the_contact(contact: StoreContact, clock: ManualClock) -> None:
    """No lease is ended during an outage in which leases may expire, nor in the half lease after it."""
    renew(contact, clock, 2 * LEASE)
    clock.advance(LEASE)
    assert not contact.steady
    assert contact.reached() == LEASE
    assert not contact.steady
    renew(contact, clock, INTERVAL)
    assert not contact.steady
    renew(contact, clock, INTERVAL)
    assert contact.steady


def test_an_outage_that_ends_no_lease_breaks_nothing(contact: StoreContact, clock: ManualClock) -> None:
    """An outage so short that no renewed lease expires does not delay the recovery of lost runs."""
    renew(contact, clock, LEASE)
    clock.advance(LEASE - INTERVAL)
    assert contact.steady
    contact.reached()
    assert contact.steady

"""How often a worker renews its leases, and when it trusts the store again."""

import math
from typing import Any

import pytest
from celery import Celery

import onejob
from onejob.celery.worker.heartbeat import Heartbeat, StoreContact
from onejob.jobs.workers import Registration
from tests.cases import for_each
from tests.stores.support import START, ManualClock

LEASE, INTERVAL = 30.0, 10.0


@pytest.fixture
def contact(clock: ManualClock) -> StoreContact:
    """Return the contact of a worker that has just started."""
    return StoreContact(settling=LEASE / 2, shortest=LEASE, interval=INTERVAL, clock=lambda: clock.now - START)


def renew(contact: StoreContact, clock: ManualClock, seconds: float) -> None:
    """Renew at the interval for so long."""
    for _ in range(round(seconds / INTERVAL)):
        clock.advance(INTERVAL)
        contact.reached()


@for_each("lease, own, interval", [(30, None, 10), (3, None, 1), (3600, None, 10), (30, 6, 2), (6, 30, 2)])
def test_a_worker_renews_three_times_per_lease(lease: float, own: float | None, interval: float) -> None:
    """A worker renews its leases every third of the shortest one, of the app or a task, and at least every 10 s."""
    app = Celery("leased", broker="memory://", set_as_current=False)
    app.conf.update(onejob_store="sqlite:///:unused:", onejob_lease=lease)
    define: Any = app.task
    define(_nothing, base=onejob.Task, name="own", shared=False, lease=own)
    assert Heartbeat(app, "a@test", Registration)._interval == interval


def _nothing() -> None: ...


def test_a_worker_that_starts_waits(contact: StoreContact, clock: ManualClock) -> None:
    """No lease is ended by a worker that starts, in an outage in which leases may expire, and half a lease after."""
    assert not contact.steady
    assert contact.reached() == math.inf
    assert not contact.steady
    renew(contact, clock, LEASE)
    assert contact.steady
    renew(contact, clock, 2 * LEASE)
    clock.advance(LEASE - INTERVAL)
    assert contact.steady
    contact.reached()
    assert contact.steady
    clock.advance(LEASE)
    assert not contact.steady
    assert contact.reached() == LEASE
    assert not contact.steady
    renew(contact, clock, INTERVAL)
    assert not contact.steady
    renew(contact, clock, INTERVAL)
    assert contact.steady

"""Events of webhooks: stored once, the same bytes for all that report them, and deleted when nobody needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.contract.processes import race

if TYPE_CHECKING:
    from onejob.stores.protocol import Store
    from tests.contract.processes import Seat
    from tests.contract.support import ManualClock, StoreAddress

ID = "job-1 nonce 1700000000.123456"


def test_the_first_body_wins(store: Store) -> None:
    """The first body of an event is stored to the letter, and every later call gets it."""
    body = '{"type":"x","data":"ž😀 \\u0000 \\" \\\\"}'
    assert store.keep_event(ID, None, keep_for=10.0) is None
    assert store.keep_event(ID, body, keep_for=10.0) == body
    assert store.keep_event(ID, "another", keep_for=10.0) == body
    assert store.keep_event(ID, None, keep_for=10.0) == body
    assert store.keep_event("another", None, keep_for=10.0) is None


def test_an_event_ends(store: Store, clock: ManualClock) -> None:
    """An event is gone when its time is over; a body that is stored then is a new one."""
    store.keep_event(ID, "first", keep_for=10.0)
    clock.advance(9.0)
    assert store.keep_event(ID, None, keep_for=0.0) == "first"
    clock.advance(1.0)
    assert store.keep_event(ID, None, keep_for=10.0) is None
    assert store.keep_event(ID, "second", keep_for=10.0) == "second"


def test_each_call_extends_the_time(store: Store, clock: ManualClock) -> None:
    """Each call extends the time of an event, and none shortens it."""
    store.keep_event(ID, "body", keep_for=10.0)
    store.keep_event(ID, "other", keep_for=20.0)
    store.keep_event(ID, None, keep_for=30.0)
    store.keep_event(ID, None, keep_for=1.0)
    store.keep_event(ID, "other", keep_for=1.0)
    clock.advance(29.0)
    assert store.keep_event(ID, None, keep_for=1.0) == "body"


def store_own(seat: Seat) -> str | None:
    """Store an event beside other processes."""
    with seat.address.opened() as store:
        seat.ready()
        return store.keep_event(ID, f"body of {seat.number}", keep_for=1e6)


def test_concurrent_webhooks_get_the_same_body(store_address: StoreAddress, store: Store) -> None:
    """Concurrent first attempts of the webhooks of one job get the same body."""
    bodies = set(race(store_address, 4, store_own))
    assert bodies == {store.keep_event(ID, None, keep_for=1.0)}

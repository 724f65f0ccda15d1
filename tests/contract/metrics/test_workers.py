"""Nodes: a worker's node gives heartbeats, each of which lasts a while."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.jobs.records import WorkerInfo
from tests.contract.processes import race

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.stores.protocol import Store
    from tests.contract.processes import Seat
    from tests.contract.support import ManualClock, StoreAddress

LASTS = 30.0
BEATS = 50


def test_no_node_lives(store: Store) -> None:
    """A new store knows of no node."""
    assert store.workers() == []


def test_nodes_live_as_long_as_their_signs_last(store: Store, clock: ManualClock) -> None:
    """A node is there until its latest heartbeat is over, to the moment."""
    store.heartbeat("b", lasts=LASTS)
    first = clock.now
    second = clock.advance(10.0)
    store.heartbeat("a", lasts=LASTS)
    assert store.workers() == [WorkerInfo("a", second), WorkerInfo("b", first)]
    clock.now = first + LASTS - 0.25
    assert store.workers() == [WorkerInfo("a", second), WorkerInfo("b", first)]
    clock.now = first + LASTS
    assert store.workers() == [WorkerInfo("a", second)]


def test_a_sign_takes_the_place_of_the_one_before(store: Store, clock: ManualClock) -> None:
    """A node that beats again is there once, since its latest sign, and for as long as that one lasts."""
    store.heartbeat("a", lasts=LASTS)
    second = clock.advance(10.0)
    store.heartbeat("a", lasts=5.0)
    assert store.workers() == [WorkerInfo("a", second)]
    clock.advance(5.0)
    assert store.workers() == []


@pytest.mark.parametrize("times", [1, 2])
def test_a_node_leaves(store: Store, times: int) -> None:
    """A sign that lasts no time removes the node, also when it is given again; the others stay."""
    store.heartbeat("a", lasts=LASTS)
    store.heartbeat("b", lasts=LASTS)
    for _ in range(times):
        store.heartbeat("a", lasts=0.0)
    assert [node.name for node in store.workers()] == ["b"]


def test_signs_that_are_over_go(store: Store, clock: ManualClock) -> None:
    """What is over is removed by the next sign of anybody, so nothing is left of it when the clock is set back."""
    store.heartbeat("a", lasts=5.0)
    store.heartbeat("b", lasts=LASTS)
    clock.advance(10.0)
    store.heartbeat("b", lasts=LASTS)
    clock.advance(-10.0)
    assert [node.name for node in store.workers()] == ["b"]


def test_names_of_nodes_are_kept_to_the_letter(store: Store) -> None:
    """A name may have spaces, and is in the order of its characters."""
    names = ["celery@host", "name with spaces", "ž😀"]
    for name in reversed(names):
        store.heartbeat(name, lasts=LASTS)
    assert [node.name for node in store.workers()] == names


def test_a_sign_is_seen_by_all(store: Store, store_factory: Callable[[], Store]) -> None:
    """A node that beats in one process is seen by the others, on the store's clock."""
    store.heartbeat("a", lasts=LASTS)
    assert store_factory().workers() == store.workers()


def beat_often(seat: Seat) -> None:
    """Beat as long-lived nodes do, among signs that are over at once."""
    with seat.address.opened() as store:
        seat.ready()
        for number in range(BEATS):
            store.heartbeat(f"short-{number % 3}", lasts=0.001)
            store.heartbeat(f"node-{seat.number}", lasts=600.0)


def test_many_nodes_beat_at_once(store_address: StoreAddress, store: Store) -> None:
    """Nodes that beat and clear away at the same moment do not wait for each other in a circle, and none is lost."""
    race(store_address, 4, beat_often)
    assert {f"node-{number}" for number in range(4)} <= {node.name for node in store.workers()}

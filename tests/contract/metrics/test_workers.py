"""Nodes: a worker's node sends heartbeats, each of which is valid for some time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.jobs.records import REGISTERED_TASKS_LIMIT, Registration, WorkerInfo
from tests.contract.processes import race

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.stores.protocol import Store
    from tests.contract.processes import Seat
    from tests.contract.support import ManualClock, StoreAddress

LASTS = 30.0
HEARTBEATS = 50


def test_a_node_is_listed_until_its_heartbeat_expires(store: Store, clock: ManualClock) -> None:
    """A node is listed exactly until its latest heartbeat expires."""
    store.heartbeat("b", lasts=LASTS)
    first = clock.now
    second = clock.advance(10.0)
    store.heartbeat("a", lasts=LASTS)
    assert store.workers() == [WorkerInfo("a", second), WorkerInfo("b", first)]
    clock.now = first + LASTS - 0.25
    assert store.workers() == [WorkerInfo("a", second), WorkerInfo("b", first)]
    clock.now = first + LASTS
    assert store.workers() == [WorkerInfo("a", second)]


def test_a_worker_may_have_more_tasks_than_it_registers() -> None:
    """A worker with more tasks than it can register is not said to lack any."""
    names = tuple(f"task-{number}" for number in range(REGISTERED_TASKS_LIMIT))
    assert Registration(tasks=names).knows("another")
    assert not Registration(tasks=names[1:]).knows("another")


def test_names_of_nodes_are_kept_to_the_letter(store: Store) -> None:
    """A name may contain spaces, and names are sorted by character code."""
    names = ["celery@host", "name with spaces", "ž😀"]
    for name in reversed(names):
        store.heartbeat(name, lasts=LASTS)
    assert [node.name for node in store.workers()] == names


def test_a_heartbeat_is_seen_by_all_processes(store: Store, store_factory: Callable[[], Store]) -> None:
    """A heartbeat of one process is seen by the others, with the store's time."""
    store.heartbeat("a", lasts=LASTS)
    assert store_factory().workers() == store.workers()


def send_heartbeats(seat: Seat) -> None:
    """Send heartbeats of long-lived nodes, among heartbeats that expire at once."""
    with seat.address.opened() as store:
        seat.ready()
        for number in range(HEARTBEATS):
            store.heartbeat(f"short-{number % 3}", lasts=0.001)
            store.heartbeat(f"node-{seat.number}", lasts=600.0)


def test_concurrent_heartbeats_do_not_deadlock(store_address: StoreAddress, store: Store) -> None:
    """Concurrent heartbeats and deletions cause no deadlock, and none is lost."""
    race(store_address, 4, send_heartbeats)
    assert {f"node-{number}" for number in range(4)} <= {node.name for node in store.workers()}


def test_a_newer_workers_registration_is_read() -> None:
    """What a newer worker registers besides is ignored; its versions are read."""
    row = {"name": "a", "seen_at": 1.0, "registration": '{"tasks": ["t"], "versions": ["celery 9.0"], "mood": "good"}'}
    assert WorkerInfo.from_row(row) == WorkerInfo("a", 1.0, tasks=("t",), versions=("celery 9.0",))

"""Fork: a store that is in use when its process forks works on both sides, and neither side harms the other."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.contract.processes import SPAWN, close_after_fork, fork_in_two_threads, race, use_after_fork
from tests.contract.support import read

if TYPE_CHECKING:
    from onejob.stores.protocol import Store
    from tests.contract.support import StoreAddress

FORKS = 50

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def test_every_child_can_use_the_store(store_address: StoreAddress, store: Store) -> None:
    """While a thread uses the store, the process forks fifty times, and every child can use it at once."""
    ((codes, used),) = race(store_address, 1, use_after_fork, FORKS, context=SPAWN)
    assert codes == [0] * FORKS
    assert {read(store, f"child-{number}").result for number in range(FORKS)} == {f"child-{n}" for n in range(FORKS)}
    assert {read(store, f"thread-{number}").result for number in range(used)} == {f"thread-{n}" for n in range(used)}
    assert read(store, "parent").result == "parent"


def test_two_threads_can_fork_at_once(store_address: StoreAddress, store: Store) -> None:
    """Forks in several threads at the same moment leave the store usable in the parent and in every child."""
    (codes,) = race(store_address, 1, fork_in_two_threads, FORKS // 2, context=SPAWN)
    assert codes == [0] * (FORKS // 2 * 2)
    assert all(read(store, f"{name}-{n}").result for name in ("a", "b") for n in range(FORKS // 2))


def test_a_parent_that_closes_takes_nothing_from_its_child(store_address: StoreAddress, store: Store) -> None:
    """What a forked child commits is there for all, also after the parent has closed its store and others came by."""
    (seen,) = race(store_address, 1, close_after_fork, context=SPAWN)
    assert sorted(seen) == ["child-0", "child-1", "child-2", "parent"]
    assert read(store, "child-2").result == "child-2"

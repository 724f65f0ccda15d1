"""Fork: a store that is in use when its process forks works in the parent and in the child."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.contract.processes import SPAWN, close_after_fork, fork_in_two_threads, race, use_after_fork
from tests.contract.support import read
from tests.tiers import rounds

if TYPE_CHECKING:
    from onejob.stores.protocol import Store
    from tests.contract.support import StoreAddress

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


@rounds(8, 50)
def test_every_child_can_use_the_store(store_address: StoreAddress, store: Store, rounds: int) -> None:
    """A process that forks repeatedly while a thread uses the store has children that can all use it at once."""
    ((codes, used),) = race(store_address, 1, use_after_fork, rounds, context=SPAWN)
    assert codes == [0] * rounds
    assert {read(store, f"child-{number}").result for number in range(rounds)} == {f"child-{n}" for n in range(rounds)}
    assert {read(store, f"thread-{number}").result for number in range(used)} == {f"thread-{n}" for n in range(used)}
    assert read(store, "parent").result == "parent"


@rounds(5, 25)
def test_two_threads_can_fork_at_once(store_address: StoreAddress, store: Store, rounds: int) -> None:
    """Concurrent forks in several threads leave the store usable in the parent and in every child."""
    (codes,) = race(store_address, 1, fork_in_two_threads, rounds, context=SPAWN)
    assert codes == [0] * (rounds * 2)
    assert all(read(store, f"{name}-{n}").result for name in ("a", "b") for n in range(rounds))


def test_closing_in_the_parent_keeps_the_commits_of_the_child(store_address: StoreAddress, store: Store) -> None:
    """The commits of a forked child stay visible after the parent closes its store and other processes open it."""
    (seen,) = race(store_address, 1, close_after_fork, context=SPAWN)
    assert sorted(seen) == ["child-0", "child-1", "child-2", "parent"]
    assert read(store, "child-2").result == "child-2"

"""Forks of a process: the child drops the parent's connections, and inherits no lock that another thread holds."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from typing import Any
from weakref import WeakSet

FORK_PATIENCE = 2.0
"""Seconds at most for which a fork waits for other threads."""


class ForkLocks(threading.local):
    """The locks that this thread holds while it forks. Several threads may fork at once: each releases its own."""

    def __init__(self) -> None:
        self._held: list[threading.RLock] = []

    def acquire(self, locks: Iterable[threading.RLock]) -> None:
        """Take locks, within `FORK_PATIENCE` all together; a lock that another thread keeps is left out."""
        deadline = time.monotonic() + FORK_PATIENCE
        self._held.extend(lock for lock in locks if lock.acquire(timeout=max(0.0, deadline - time.monotonic())))

    def release(self) -> None:
        """Release the locks of this thread, in the parent."""
        while self._held:
            self._held.pop().release()

    def forget(self) -> None:
        """Forget the locks of this thread without releasing them, in the child."""
        self._held.clear()


def abandon_in_children(instance: Any) -> None:
    """Call `instance.abandon()` in each forked child. It returns the parent's objects, which so stay unclosed."""
    _instances.add(instance)


def _after_fork_in_child() -> None:
    _abandoned.extend([each.abandon() for each in [*_instances]])


_instances: WeakSet[Any] = WeakSet()
_abandoned: list[object] = []
os.register_at_fork(after_in_child=_after_fork_in_child)

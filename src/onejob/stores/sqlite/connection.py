"""One SQLite connection per process, for many threads, that survives a fork.

SQLite forbids to carry a connection across a fork, even unused: the library in the child believes that it owns file locks
which are the parent's alone, also for connections that the child opens itself; once the parent closes, other processes take
the write-ahead log for abandoned and remove it under the child's commits. And a fork while another thread is inside SQLite
would leave the library's mutexes locked in the child for ever. So a fork waits until no operation is under way and closes
every connection first; parent and child open their own again when they need one.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_open: WeakSet[ForkSafeConnection] = WeakSet()
_registry = threading.Lock()
"""Guards `_open`; held during a fork, so that forks come one at a time and find every store."""


class ForkSafeConnection:
    """Transactions on one file, one at a time in this process. `prepare` sees every new connection once."""

    def __init__(self, path: Path, busy_timeout: float, prepare: Callable[[sqlite3.Connection], None]) -> None:
        self._path = path
        self._busy_timeout = busy_timeout
        self._prepare = prepare
        self.lock = threading.Lock()
        self.connection: sqlite3.Connection | None = None
        with _registry:
            _open.add(self)

    @contextmanager
    def transaction(self, kind: str) -> Iterator[sqlite3.Connection]:
        """Yield the connection inside a transaction ("immediate" or "deferred"); commit, or roll back on any exception."""
        with self.lock:
            connection = self.connection = self.connection or self._connect()
            connection.execute(f"begin {kind}")
            try:
                yield connection
                connection.execute("commit")
            finally:
                if connection.in_transaction:
                    connection.execute("rollback")

    def close(self) -> None:
        """Close the connection of this process."""
        with self.lock:
            self.close_locked()

    def close_locked(self) -> None:
        """Close the connection; the caller holds the lock."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=self._busy_timeout, isolation_level=None, check_same_thread=False
        )
        connection.row_factory = _as_dict
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def _as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


def _before_fork() -> None:
    _registry.acquire()
    _held[:] = _open
    for store in _held:
        store.lock.acquire()
        with suppress(sqlite3.Error):
            store.close_locked()


def _after_fork_in_parent() -> None:
    for store in _held:
        store.lock.release()
    _held.clear()
    _registry.release()


def _after_fork_in_child() -> None:
    global _registry
    for store in _held:
        store.lock = threading.Lock()
    _held.clear()
    _registry = threading.Lock()


_held: list[ForkSafeConnection] = []
os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)

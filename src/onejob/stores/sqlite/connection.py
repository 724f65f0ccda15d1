"""The SQLite connections of a process, one for all threads and one for searches, that survive a fork.

SQLite forbids carrying a connection across a fork, even unused: the library in the child assumes that it owns file
locks which only the parent has, also for connections that the child opens itself; once the parent closes, other
processes regard the write-ahead log as abandoned and remove it under the child's commits. And a fork while another
thread is inside SQLite leaves the library's mutexes locked in the child forever. So a fork waits until no operation is
running and closes every connection first; parent and child open new ones when needed. See "How To Corrupt An SQLite
Database File", 2.6 (https://www.sqlite.org/howtocorrupt.html).
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet, finalize

from onejob.errors import StoreUnavailableError, StoreUnusableError
from onejob.stores.listener import Listener
from onejob.stores.sqlite.errors import rule_of
from onejob.stores.sqlite.files import FileId, create_file, file_id, is_uri_path, rights_of, wal_of
from onejob.stores.verdicts import Verdict

RETRY_SECONDS = 0.01
STATEMENTS = 256
"""How many prepared statements a connection keeps: more than the store has."""


class ForkSafeConnection:
    """The connection to one file, used by one transaction at a time. `prepare` is called with each new connection.

    A file that is deleted or replaced lives on for who has it open, and whatever is written there is lost. So each
    transaction compares the file at the path with the one that was opened: a system call, of about a microsecond.
    """

    def __init__(self, path: Path, busy_timeout: float, prepare: Callable[[sqlite3.Connection], None]) -> None:
        self.path = path
        self._name = str(path)
        self.busy_timeout = busy_timeout
        self._prepare = prepare
        self.lock = threading.Lock()
        self.connection: sqlite3.Connection | None = None
        self._file: FileId | None = None
        """The file that was opened last, also while it is closed; None for a database in memory."""
        self._wal: FileId | None = None
        self._closing: finalize[..., ForkSafeConnection] | None = None
        _fork_handler.add(self)

    def open_locked(self) -> sqlite3.Connection:
        """Return the connection of this process to the file at the path, opened if need be; the caller holds the lock.

        Raises `StoreUnavailableError` if the file was deleted, or replaced without its write-ahead log.
        """
        if self._file is not None:
            try:
                found = file_id(self._name)
            except PermissionError as error:
                msg = f"the SQLite store {self.path} cannot be examined: {error}. {rights_of(self.path)}"
                raise StoreUnusableError(msg) from error
            except OSError as error:
                raise StoreUnavailableError(f"the SQLite store {self.path} did not answer: {error}") from error
            if found != self._file:
                self._leave_former_file(found)
        if self.connection is None:
            self.connection = self._connect()
            # Nothing closes the store of a dropped app, and Python warns of a connection that is collected open.
            self._closing = finalize(self, self.connection.close)
            self._closing.atexit = False  # other threads may still use it, and the end of the process closes it
        return self.connection

    def _leave_former_file(self, found: FileId | None) -> None:
        """Close the connection to a file that was replaced by `found`. Raises `StoreUnavailableError`."""
        if found is None:
            raise StoreUnavailableError(
                f"the SQLite store {self.path} was deleted or moved while this process used it: put it back, or "
                "restore a backup of it. To begin a new ledger, restart every process that uses it"
            )
        if self.connection is not None and self._wal is not None and file_id(wal_of(self.path)) == self._wal:
            raise StoreUnavailableError(
                f"the SQLite store {self.path} was replaced, and the file {wal_of(self.path)} of the former one is "
                "still there, which SQLite would read into the new one: stop every process of the ledger, delete it "
                f"and {self.path}-shm, and restore the backup again (docs/operations/backup.md)"
            )
        self.close_locked()  # which neither writes to a file that was replaced nor deletes what is beside the new one

    def close(self) -> None:
        """Close the connection of this process."""
        with self.lock:
            self.close_locked()

    def close_locked(self) -> None:
        """Close the connection; the caller holds the lock."""
        self.connection = None
        if self._closing is not None:
            self._closing()

    def _connect(self) -> sqlite3.Connection:
        """Open a connection; retry while other processes open or close the file."""
        deadline = time.monotonic() + self.busy_timeout
        while True:
            if not is_uri_path(self.path):
                create_file(self.path)
                with suppress(PermissionError):  # which SQLite will report
                    self._file = file_id(self._name)  # before it is opened, so that a later replacement is noticed
            connection = connect(self.path, timeout=self.busy_timeout)
            try:
                self._prepare(connection)
                self._wal = None if self._file is None else file_id(wal_of(self.path))
                connection.execute("pragma busy_timeout = 0")  # an operation waits without the lock, see `run_alone`
            except BaseException as error:
                connection.close()
                # SQLite's busy timeout does not cover the switch to write-ahead logging.
                if rule_of(error).verdict is not Verdict.BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_SECONDS)
            else:
                return connection


def connect(path: Path, *, timeout: float = 5.0) -> sqlite3.Connection:
    """Open a database for all threads; create its file for its owner only. `timeout`: seconds to wait for a lock."""
    is_uri = is_uri_path(path)  # a database in memory that connections share, as Django's tests have it
    if not is_uri:
        create_file(path)
        path = path.absolute()  # which SQLite never takes for a URI, however it was built
    return sqlite3.connect(
        str(path), timeout=timeout, isolation_level=None, check_same_thread=False,
        cached_statements=STATEMENTS, uri=is_uri,
    )  # fmt: skip


class _ForkHandler:
    """Closes all connections before the process forks."""

    def __init__(self) -> None:
        self._all: WeakSet[ForkSafeConnection] = WeakSet()
        self._locked: list[ForkSafeConnection] = []
        self._lock = threading.Lock()  # one fork at a time, and no connection is added meanwhile

    def add(self, connection: ForkSafeConnection) -> None:
        with self._lock:
            self._all.add(connection)

    def before(self) -> None:
        self._lock.acquire()
        for connection in [*self._all]:
            connection.lock.acquire()
            self._locked.append(connection)  # only now: a signal may end this, and the process forks all the same
            with suppress(sqlite3.Error):
                connection.close_locked()

    def after_in_parent(self) -> None:
        while self._locked:
            self._locked.pop().lock.release()
        self._lock.release()

    def after_in_child(self) -> None:
        while self._locked:
            self._locked.pop().lock = threading.Lock()
        self._lock = threading.Lock()


_fork_handler = _ForkHandler()
os.register_at_fork(
    before=_fork_handler.before,
    after_in_parent=_fork_handler.after_in_parent,
    after_in_child=_fork_handler.after_in_child,
)


# --- the signals: a thread looks at which files there are, their sizes and times; any change is a signal --------------


LOOK_INTERVAL = 0.002
"""Seconds between two looks at the file while it changes."""
IDLE_INTERVAL = 0.015
"""Seconds between two looks at a file that has not changed for `IDLE_AFTER` seconds."""
IDLE_AFTER = 1.0
SETTLED_AFTER = 0.02
"""Seconds after a change in which another change may leave time and size equal: file systems count in ticks."""
READ_SECONDS = 1e-4
"""Seconds that the read of each subscriber takes after a change: with many subscribers, fewer changes are signaled."""


class SQLiteSignals(Listener):
    """The signals of one file, which is never opened for them: to close it would drop SQLite's locks."""

    def __init__(self, path: Path) -> None:
        super().__init__(polls=is_uri_path(path))
        self._paths = (Path(wal_of(path)), path)  # the second one alone for a file that is not in WAL mode

    def _listen(self) -> None:
        seen: object = None  # so that the first look is a change
        changed_at, settles_at = time.monotonic(), float("inf")
        while channels := self._channels():
            version, now = [*map(_stat, self._paths)], time.monotonic()
            if version != seen or now >= settles_at:
                settles_at = float("inf") if version == seen else now + SETTLED_AFTER
                changed_at = changed_at if version == seen else now
                seen = version
                for channel in channels:
                    self._wake(channel, None)
            pause = LOOK_INTERVAL if now - changed_at < IDLE_AFTER else IDLE_INTERVAL
            with self._waiting():
                self._interrupted.wait(max(pause, READ_SECONDS * sum(map(len, self._subscribers.values()))))


def _stat(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:  # it does not exist while no process has the ledger open
        return None
    return found.st_mtime_ns, found.st_size, found.st_dev, found.st_ino

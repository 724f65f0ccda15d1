"""The connections to one PostgreSQL: pooled, renewed when they break, alive after a fork, their errors in our words."""

from __future__ import annotations

import os
import re
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import psycopg
from psycopg import conninfo, errors
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from onejob.errors import ConfigurationError, StoreBusyError, StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from onejob.stores.postgres.statements import Rows, Statement

    Connection = psycopg.Connection[dict[str, Any]]

MAX_CONNECTIONS = 10
"""How many connections one process opens at most, one for each thread that is inside an operation."""
WAIT_SECONDS = 5.0
"""How long an operation waits for a connection."""
PAUSES = (0.05, 0.2, 0.5)
"""Seconds before an operation is tried again. To repeat one is safe: the store knows a request that it has answered."""
DEFAULTS: dict[str, Any] = {
    "application_name": "onejob",
    "connect_timeout": 5,
    "keepalives_idle": 30,
    "tcp_user_timeout": 10_000,
}
"""What the query of a URL may override."""
SESSION = (
    # A row can be locked by the open transaction of a session that takes part in a submission.
    "set lock_timeout = '10s'",
    "set statement_timeout = '30s'",
    # A completion that the server has acknowledged must survive its crash.
    "select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') = 'off'",
)
_NAME = re.compile(r"(?<![:\w]):([a-z_]+)")
IDLE_SECONDS = 600.0
"""After how long without use a connection is not trusted any more."""


class PoolTimeout(psycopg.OperationalError):
    """All connections of the process are in use."""


_AGAIN = (
    errors.SerializationFailure,
    errors.DeadlockDetected,
    errors.UniqueViolation,  # somebody wrote the same id meanwhile; the next look finds it
)
_LOST = (psycopg.OperationalError, psycopg.InterfaceError, errors.ReadOnlySqlTransaction)


class Pool:
    """Idle connections, and how many there may be. Whoever needs another opens it in its own thread.

    An exception may come out of a signal at any point here; it may cost a connection, and never a place for one.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._places = _places(MAX_CONNECTIONS)
        self._patient = _places(MAX_CONNECTIONS // 2)
        self._idle: list[tuple[float, Connection]] = []
        self._retired = False

    @contextmanager
    def connection(self, *, wait_for_locks: bool) -> Iterator[Connection]:
        """Yield a connection of one's own. Those who may wait in it for others get half of the places at most."""
        with ExitStack() as held:
            for places in (self._patient, self._places) if wait_for_locks else (self._places,):
                held.enter_context(_place(places))
            connection = self._taken()
            held.callback(self._put, connection)
            yield connection

    def retire(self) -> None:
        """Close the connections: those in use when their operations are over."""
        self._retired = True
        while self._idle:
            self._idle.pop()[1].close()

    def __del__(self) -> None:
        """Close what a store that nobody has closed leaves behind."""
        with suppress(Exception):
            self.retire()

    def _taken(self) -> Connection:
        while True:
            try:
                since, connection = self._idle.pop()
            except IndexError:
                return self._connect()
            if time.monotonic() - since < IDLE_SECONDS:
                return connection
            connection.close()

    def _put(self, connection: Connection) -> None:
        # What a signal has interrupted is not idle: a reply that is still to come must not answer somebody else.
        if connection.pgconn.transaction_status == TransactionStatus.IDLE and not connection.pgconn.pipeline_status:
            self._idle.append((time.monotonic(), connection))
            if self._retired:
                self.retire()
        else:
            connection.close()


def _places(count: int) -> SimpleQueue[None]:
    """Return a counter of free places, written in C: a signal cannot break it half-way."""
    places: SimpleQueue[None] = SimpleQueue()
    for _ in range(count):
        places.put(None)
    return places


@contextmanager
def _place(places: SimpleQueue[None]) -> Iterator[None]:
    try:
        places.get(timeout=WAIT_SECONDS)
    except Empty:
        msg = "all connections that this process may have for it are in use"
        raise PoolTimeout(msg) from None
    try:
        yield
    finally:
        places.put(None)


class Connections:
    """Runs statements on the database at `url`. `prepare` sees each new connection."""

    def __init__(self, url: str, prepare: Callable[[Connection], None]) -> None:
        self._conninfo = conninfo_of(url)
        self._prepare = prepare
        self._pool: Pool | None = None
        self._lock = threading.Lock()
        self.place = place_of(self._conninfo)
        _all.add(self)

    def run(self, statements: Sequence[Statement], *, wait_for_locks: bool = False) -> list[Rows]:
        """Run statements as one transaction, in one round trip, and return the rows of each.

        `wait_for_locks`: they may have to wait for the transaction of a user.
        """
        began = time.monotonic()
        for pause in (*PAUSES, None):
            try:
                return self._try(statements, wait_for_locks=wait_for_locks)
            except psycopg.Error as error:
                late = time.monotonic() - began > WAIT_SECONDS
                if pause is None or late or not _worth_another_try(error):
                    raise _translated(error, self.place) from error
                time.sleep(pause)
        raise AssertionError  # pragma: no cover - the last try returns or raises

    def close(self) -> None:
        """Close the connections, those in use when their operations are over. The next operation opens others."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.retire()

    def forget(self) -> None:
        """Bury what a fork inherited: its sockets are the parent's, and a thread that is gone may hold its locks."""
        _buried.append(self._pool)
        self._pool = None
        self._lock = threading.Lock()

    def _try(self, statements: Sequence[Statement], *, wait_for_locks: bool) -> list[Rows]:
        pool = self._pool or self._new_pool()
        with pool.connection(wait_for_locks=wait_for_locks) as connection:
            try:
                return _execute(connection, statements)
            except psycopg.Error as error:
                # Then the others are of no use either, most likely: it was the server, or something on the way.
                if connection.broken or isinstance(error, errors.ReadOnlySqlTransaction):
                    self._drop(pool)
                raise

    def _new_pool(self) -> Pool:
        with self._lock:
            self._pool = self._pool or Pool(self._open)
            return self._pool

    def _drop(self, pool: Pool) -> None:
        with self._lock:
            if self._pool is pool:
                self._pool = None
        pool.retire()

    def _open(self) -> Connection:
        connection = psycopg.Connection.connect(
            self._conninfo, autocommit=True, row_factory=dict_row, cursor_factory=psycopg.RawCursor
        )
        try:
            _configure(connection)
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def _execute(connection: Connection, statements: Sequence[Statement]) -> list[Rows]:
    if len(statements) == 1:
        return [_rows(_sent(connection, *statements[0]))]
    try:
        with connection.pipeline():  # without a transaction of its own, all up to its end is one
            cursors = [_sent(connection, *statement) for statement in statements]
    except psycopg.Error:
        connection.close()  # psycopg takes for prepared what the server, after the error, did not prepare any more
        raise
    return [_rows(cursor) for cursor in cursors]


def _sent(connection: Connection, text: str, values: Mapping[str, Any]) -> psycopg.Cursor[dict[str, Any]]:
    query, names = _numbered(text)
    return connection.execute(query, [values[name] for name in names])


@cache
def _numbered(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a statement with its values as `$1`, and their names in order: other marks are read anew each time."""
    names = tuple(dict.fromkeys(_NAME.findall(text)))
    return _NAME.sub(lambda name: f"${names.index(name[1]) + 1}", text), names


def _rows(cursor: psycopg.Cursor[dict[str, Any]]) -> Rows:
    return cursor.fetchall() if cursor.pgresult and cursor.pgresult.nfields else []


def _configure(connection: Connection) -> None:
    for command in SESSION:
        connection.execute(command)


def _worth_another_try(error: psycopg.Error) -> bool:
    waited = isinstance(error, PoolTimeout | errors.LockNotAvailable | errors.QueryCanceled)
    return isinstance(error, _AGAIN) or (isinstance(error, _LOST) and not waited and not _refused(error))


def _refused(error: psycopg.Error) -> bool:
    """Tell whether the server has answered, and said no; while connecting, only its words tell."""
    return "authentication failed" in str(error) or "does not exist" in str(error)


def _translated(error: psycopg.Error, place: str) -> StoreError:
    text = f"the PostgreSQL store at {place}"
    if isinstance(error, errors.UndefinedTable | errors.InvalidSchemaName | errors.UndefinedColumn):
        return StoreError(f"{text} has another schema than this onejob expects ({error}): run `onejob migrate status`")
    if isinstance(error, errors.LockNotAvailable):
        return StoreBusyError(f"{text} has a row that somebody else holds: {error}")
    if isinstance(error, _AGAIN):
        return StoreUnavailableError(f"{text} is too busy with the same rows: {error}")
    if isinstance(error, _LOST) and not _refused(error):
        return StoreUnavailableError(f"{text} did not answer: {error}")
    return StoreError(f"{text} refused: {error}")


def conninfo_of(url: str) -> str:
    """Return libpq's connection string for a URL; SQLAlchemy's `postgresql+driver://` is understood, too.

    Raises `ConfigurationError`.
    """
    scheme, _, rest = url.partition("://")
    try:
        given = conninfo.conninfo_to_dict(f"{scheme.partition('+')[0]}://{rest}")
    except psycopg.ProgrammingError:
        msg = (
            "the URL of the PostgreSQL store cannot be read: write postgresql://user:password@host:5432/database, "
            "with its password percent-encoded, and only options that libpq knows"
        )
        raise ConfigurationError(msg) from None
    return conninfo.make_conninfo(**(DEFAULTS | given))


def place_of(info: str) -> str:
    """Name a database without its password."""
    given = conninfo.conninfo_to_dict(info)
    return f"{given.get('host', 'localhost')}:{given.get('port', 5432)}/{given.get('dbname') or given.get('user', '')}"


def _after_fork_in_child() -> None:
    for each in list(_all):
        each.forget()


_all: WeakSet[Connections] = WeakSet()
_buried: list[Pool | None] = []
os.register_at_fork(after_in_child=_after_fork_in_child)

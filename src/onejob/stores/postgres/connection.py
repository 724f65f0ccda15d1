"""The connections to one PostgreSQL: pooled, replaced when broken, safe to fork, driver errors translated to ours."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, partial
from itertools import chain, cycle, groupby
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import quote

import psycopg
from psycopg import conninfo
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus

from onejob.errors import ConfigurationError, StoreError
from onejob.stores.carrier import Pending, carrier
from onejob.stores.forks import abandon_in_children
from onejob.stores.postgres.errors import rule_of, translate
from onejob.stores.postgres.statements import Rows, Sharing, Statement
from onejob.stores.verdicts import AWAY, Verdict
from onejob.transactions.sessions import PARAMETER

T = TypeVar("T")

MAX_CONNECTIONS = 10
"""The limit per process; each thread uses one during an operation."""
WAIT_SECONDS = 5.0
"""How long an operation waits for a connection."""
SILENCE = 35.0
"""After how many seconds without a byte a connection is given up: the server ends a statement before it."""
HEARTBEAT_SILENCE = 10.0
"""The `SILENCE` of connections for signals, and of statements that keep leases: both wait for no lock."""
RETRY_DELAYS = (0.05, 0.2, 0.5)
"""Seconds before each retry of an operation. A retry is safe because every operation is idempotent."""
DEFAULTS: dict[str, Any] = {
    "application_name": "onejob",
    "connect_timeout": 5,
    "keepalives_idle": 30,
    "tcp_user_timeout": 10_000,
    "client_encoding": "utf8",  # not that of the server, which may have none: SQL_ASCII
}
"""The default options of libpq, which the query of the URL may override."""
SESSION = (
    # An open transaction of a user that has submitted a job may hold a row lock.
    "set lock_timeout = '10s'",
    "set statement_timeout = '30s'",
    # Where a limit is a parameter, estimates are high, and compiling a statement takes longer than all of its work.
    "set jit = off",
    # Otherwise the null in an array is a text, which is no number.
    "set array_nulls = on",
    # A completion that the server has acknowledged must survive a crash of the server. And the limits above are enough:
    # that of a transaction (PostgreSQL 17) would end a submission that waits for an equal one.
    """select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') = 'off'
    union all
    select set_config('transaction_timeout', '0', false) where current_setting('transaction_timeout', true) <> '0'""",
)
POOLED = (
    "select set_config('lock_timeout', '10s', true), set_config('statement_timeout', '30s', true), "
    "set_config('jit', 'off', true), set_config('array_nulls', 'on', true), "
    "case when current_setting('synchronous_commit') = 'off' then set_config('synchronous_commit', 'on', true) end, "
    "case when current_setting('transaction_timeout', true) <> '0' "
    "then set_config('transaction_timeout', '0', true) end"
)
"""The settings of `SESSION` for one transaction: behind a pooler, the next transaction may get another session."""
_POOLER = re.compile(r"(?<=[?&])pooler=([^&#]*)&?")
_MISREAD = re.compile(r"[^/?]*@[^/?]*@|[^@/?]*/[^?]*@")
"""The beginning of a URL whose password has a plain `@` or `/`: libpq would take a part of the password for the host,
and name it in errors."""
UNPREPARED = "/* unprepared */"
"""The beginning of statements whose plan depends on their values: prepared, they would get a generic plan after five
executions."""
IDLE_SECONDS = 600.0
"""After how many idle seconds a connection is closed instead of used."""
SHARED_LOCK_WAIT: Statement = ("select set_config('lock_timeout', '100ms', true)", {})
"""The limit of a transaction that several callers share: while it waits for a lock of one, it keeps those of all."""
MANY_ROWS = 100
"""How many rows a cursor may return that is used again: it keeps the rows in memory."""


class Connection(psycopg.Connection[Any]):
    """A connection with one cursor for all statements: making a cursor takes as long as a short statement."""

    cursor_in_use: psycopg.Cursor[Any] | None = None
    silence = SILENCE

    def wait(self, gen: PQGen[T], *args: Any, **options: Any) -> T:
        """Wait for the server in place of psycopg's method, which waits for ever. Raises `SilentServer`."""
        return super().wait(_limit_silence(gen, self.silence), *args, **options)

    def send_at_once(self) -> Sending:
        """Let the next pipeline of the connection send its statements together, once it is complete."""
        sending = Sending(self)
        self._pipeline = sending
        return sending

    def run(self, text: str, values: Mapping[str, Any]) -> Rows:
        """Execute a statement, and return its rows."""
        cursor = self.cursor_in_use = self.cursor_in_use or self.cursor()
        prepare = False if text.startswith(UNPREPARED) else None
        rows = _fetch_rows(cursor.execute(*_positional(text, values), prepare=prepare), text)
        if len(rows) > MANY_ROWS:
            self.cursor_in_use = None
        return rows


class Sending(psycopg.Pipeline):
    """A pipeline that sends nothing before it is complete.

    Else the server would run the first statements while the process is busy with the others, and keep their locks as
    long: for minutes if the process is frozen then.
    """

    is_complete = False

    def _communicate_gen(self) -> PQGen[None]:
        if not self.is_complete:
            return
        commands = [*self.command_queue]
        self.command_queue.clear()

        def write_all() -> None:
            for command in commands:
                command()

        self.command_queue.append(write_all)  # into the buffer of libpq
        yield from super()._communicate_gen()

    def _fetch_gen(self, *, flush: bool) -> PQGen[None]:
        if self.is_complete:
            yield from super()._fetch_gen(flush=flush)


class PoolTimeout(psycopg.OperationalError):
    """All connections of the process are in use."""


class SilentServer(psycopg.OperationalError):
    """A connection is open, but no answer comes: a proxy or a frozen server acknowledges statements and runs none."""


def _limit_silence(waiting: PQGen[T], limit: float) -> PQGen[T]:
    since = time.monotonic()
    try:
        wanted = next(waiting)
        while True:
            ready = yield wanted
            if ready:
                since = time.monotonic()
            elif time.monotonic() - since > limit:
                raise SilentServer(f"no answer within {limit:g} s")
            wanted = waiting.send(ready)
    except StopIteration as end:
        return cast("T", end.value)


class Pool:
    """The idle connections of a process, and a limit of all. A thread that finds none idle opens a connection itself.

    A signal handler may raise an exception anywhere in here, even between the end of a call and the assignment of what
    it returned. It may lose a connection, but never a slot of the limit: handlers run in the main thread only, which
    needs one connection at a time and takes no slot for it.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._slots = Slots(MAX_CONNECTIONS - 1)  # and one for the main thread
        self._waiting_slots = Slots(MAX_CONNECTIONS // 2)
        self._idle: list[tuple[float, Connection]] = []
        self._retired = False

    @contextmanager
    def connection(self, *, wait_for_locks: bool) -> Iterator[Connection]:
        """Yield an exclusive connection. Operations that may wait for locks get at most half of all connections."""
        with self._waiting_slots if wait_for_locks else nullcontext(), self._slots:
            connection = self._take()
            try:
                yield connection
            finally:
                # After an interrupted operation it is not idle: its unread reply must not answer another one.
                driver = connection.pgconn
                if driver.transaction_status == TransactionStatus.IDLE and not driver.pipeline_status:
                    self._idle.append((time.monotonic(), connection))
                    if self._retired:
                        self.retire()
                else:
                    connection.close()

    def retire(self) -> None:
        """Close the idle connections now, and the connections in use at the end of their operations."""
        self._retired = True
        while self._idle:
            self._idle.pop()[1].close()

    def __del__(self) -> None:
        """Close the connections of a store that was not closed."""
        with suppress(Exception):
            self.retire()

    def _take(self) -> Connection:
        while True:
            try:
                since, connection = self._idle.pop()
            except IndexError:
                return self._connect()
            if time.monotonic() - since < IDLE_SECONDS:
                return connection
            connection.close()


class Slots:
    """A limit of the threads that do something at a time. The main thread does not count: see `Pool`."""

    def __init__(self, count: int) -> None:
        self.free = threading.Semaphore(count)

    def __enter__(self) -> None:
        if not _in_main_thread() and not self.free.acquire(timeout=WAIT_SECONDS):
            raise PoolTimeout("all connections of this process are in use")

    def __exit__(self, *_: object) -> None:
        if not _in_main_thread():
            self.free.release()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class Group(NamedTuple):
    """The statements of a transaction, and how they run."""

    statements: Sequence[Statement]
    wait_for_locks: bool = False
    silence: float = SILENCE
    is_shared: bool = False
    """Whether several callers share the transaction: an error of one ends it for all."""


class Connections:
    """Runs statements on the database at `url`. `prepare` is called with each new connection.

    With `?pooler=transaction` no statement is prepared, and no setting outlives its transaction.
    """

    def __init__(self, url: str, prepare: Callable[[Connection], None]) -> None:
        self.conninfo = conninfo_of(url)
        self.is_pooled = is_pooled(url)
        self._prepare = prepare
        self._pool: Pool | None = None
        self._lock = threading.Lock()
        self.address = address_of(self.conninfo)
        abandon_in_children(self)

    def run(
        self, statements: Sequence[Statement], *, wait_for_locks: bool = False, keeps_leases: bool = False,
        sharing: Sharing = Sharing.NONE,
    ) -> list[Rows]:  # fmt: skip
        """Run statements as one transaction, in one round trip, as `Runner.run` does. Raises `StoreError`."""
        group = Group(statements, wait_for_locks, HEARTBEAT_SILENCE if keeps_leases else SILENCE)
        if (by := carrier()) is not None:
            rows: list[Rows] = by.carry(self._process_of(sharing), group)
            return rows
        return self._run(group)

    def _process_of(self, sharing: Sharing) -> Callable[[Sequence[Group]], Sequence[Any]]:
        """Return the function that runs groups of a kind: its carrier takes those of one function together."""
        if sharing is Sharing.NONE:
            return self._run_apart
        return self._run_synchronized if sharing is Sharing.SYNCHRONIZED else self._run_unsynchronized

    def _run_apart(self, groups: Sequence[Group]) -> list[Pending[list[Rows]]]:
        """Return the rows of several callers' groups as the results of threads of their own."""
        return [Pending(partial(self._run, group)) for group in groups]

    def _run_unsynchronized(self, groups: Sequence[Group]) -> Sequence[list[Rows] | Pending[list[Rows]]]:
        """Run groups of several callers as a transaction whose commit need not wait for the disk."""
        return self._run_together(groups)

    def _run_synchronized(self, groups: Sequence[Group]) -> Sequence[list[Rows] | Pending[list[Rows]]]:
        """Run groups of several callers as a transaction whose commit waits for the disk."""
        return self._run_together(groups)

    def _run_together(self, groups: Sequence[Group]) -> Sequence[list[Rows] | Pending[list[Rows]]]:
        """Run groups of several callers as one transaction, or if one of them fails, each as its own.

        Nothing was written then, or it was, and only the acknowledgement is missing: each operation is idempotent.
        """
        ordered = sorted(groups, key=_job_of)  # so that transactions which have the same jobs do not deadlock
        shared = [SHARED_LOCK_WAIT, *chain.from_iterable(group.statements for group in ordered)]
        try:
            found = iter(self._run(Group(shared, is_shared=True))[1:])
        except Exception as error:
            if isinstance(error, StoreError) and rule_of(error.__cause__ or error) is AWAY:
                raise  # each alone would find the same
            return self._run_apart(groups)
        rows = {id(group): [next(found) for _ in group.statements] for group in ordered}
        return [rows[id(group)] for group in groups]

    def _run(self, group: Group) -> list[Rows]:
        start = time.monotonic()
        for delay in (*RETRY_DELAYS, None):
            try:
                return self._attempt(group)
            except (psycopg.Error, UnicodeEncodeError) as error:
                rule = rule_of(error)
                # A statement may have waited for the end of the change of the schema that made it stale.
                late = time.monotonic() - start > WAIT_SECONDS and rule.verdict is not Verdict.STALE
                repeats = rule.repeats and not (group.is_shared and rule.verdict is Verdict.BUSY)
                if delay is None or late or not repeats:
                    raise translate(error, self.address) from error
                time.sleep(delay)
        raise AssertionError  # pragma: no cover - the last attempt returns or raises

    def close(self) -> None:
        """Close the idle connections now, the others after their operations. The next operation opens new ones."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.retire()

    def abandon(self) -> Pool | None:
        """Drop the inherited pool in a forked child, unclosed: the parent uses its sockets; its locks may be held."""
        pool, self._pool = self._pool, None
        self._lock = threading.Lock()
        return pool

    def _attempt(self, group: Group) -> list[Rows]:
        pool = self._pool or self._new_pool()
        with pool.connection(wait_for_locks=group.wait_for_locks) as connection:
            connection.silence = group.silence
            try:
                if self.is_pooled:
                    return _execute(connection, [(POOLED, {}), *group.statements])[1:]
                return _execute(connection, group.statements)
            except psycopg.Error as error:
                # The others are most likely useless, too: the server restarted, or their statements are as old.
                if connection.broken or rule_of(error).verdict in {Verdict.OUTAGE, Verdict.STALE}:
                    with self._lock:
                        self._pool = None if self._pool is pool else self._pool
                    pool.retire()
                raise

    def _new_pool(self) -> Pool:
        with self._lock:
            self._pool = self._pool or Pool(self._open)
            return self._pool

    def _open(self) -> Connection:
        threshold = None if self.is_pooled else 0
        connection = Connection.connect(
            self.conninfo, autocommit=True, prepare_threshold=threshold, cursor_factory=psycopg.RawCursor
        )
        try:
            for command in () if self.is_pooled else SESSION:
                connection.execute(command)
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def _job_of(group: Group) -> str:
    """Return the id of the job whose row a group locks; "" without one."""
    return str(group.statements[0][1].get("job_id", ""))


def _execute(connection: Connection, statements: Sequence[Statement]) -> list[Rows]:
    if len(statements) == 1:
        return [connection.run(*statements[0])]
    sending = connection.send_at_once()
    try:
        with connection.pipeline():  # an implicit transaction, up to its end
            try:
                cursors = [_send(connection, [*equal]) for _, equal in groupby(statements, itemgetter(0))]
            except BaseException as error:
                if getattr(error, "sqlstate", None) is None:  # ours: the pipeline would commit what came before
                    connection.close()
                raise
            finally:
                sending.is_complete = True
    except psycopg.Error:
        connection.close()  # psycopg's cache has prepared statements that the server skipped after the error
        raise
    results = chain.from_iterable(cursor.results() for cursor in cursors)
    return [_fetch_rows(cursor, text) for cursor, (text, _) in zip(results, statements, strict=True)]


def _send(connection: Connection, statements: Sequence[Statement]) -> psycopg.Cursor[Any]:
    """Send statements with the same text, and return the cursor of their results: psycopg converts the text once."""
    if len(statements) == 1:
        return connection.execute(*_positional(*statements[0]))
    given = [_positional(*statement) for statement in statements]
    cursor = connection.cursor()
    cursor.executemany(given[0][0], [values for _, values in given], returning=True)
    return cursor


def _positional(text: str, values: Mapping[str, Any]) -> tuple[str, list[Any]]:
    query, names, states_at = _number_parameters(text)
    given = [values[name] for name in names]
    if states_at is not None:
        given[states_at] = _array_of(tuple(given[states_at]))
    return query, given


@cache
def _number_parameters(text: str) -> tuple[str, tuple[str, ...], int | None]:
    """Return a statement with parameters as `$1`, their names, and the index of the states, if it has them.

    psycopg parses other placeholders on every call.
    """
    names = tuple(dict.fromkeys(PARAMETER.findall(text)))
    numbered = PARAMETER.sub(lambda name: f"${names.index(name[1]) + 1}", text)
    return numbered, names, names.index("sources") if "sources" in names else None


@cache
def _array_of(states: tuple[str, ...]) -> str:
    """Return PostgreSQL's literal for an array of states: for lists psycopg takes longer than for all other values."""
    return f"{{{','.join(states)}}}"


_columns: dict[str, list[str]] = {}
"""The columns of each statement, which never change: the driver takes longer to tell them than to read a row."""


def _fetch_rows(cursor: psycopg.Cursor[Any], text: str) -> Rows:
    if not (cursor.pgresult and cursor.pgresult.nfields):
        return []
    columns = _columns.get(text)
    if columns is None:
        columns = _columns[text] = [column.name for column in cursor.description or ()]
    return [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]


def conninfo_of(url: str) -> str:
    """Return libpq's connection string for `postgresql://` or `postgresql+driver://`. Raises `ConfigurationError`."""
    is_pooled(url)
    scheme, _, rest = _POOLER.sub("", url).rstrip("?&").partition("://")
    invalid = ConfigurationError(
        "the URL of the PostgreSQL store is invalid: write postgresql://user:password@host:5432/database, "
        "with its password percent-encoded, and only options of libpq"
    )
    if _MISREAD.match(rest):
        raise invalid
    try:
        options = conninfo.conninfo_to_dict(f"{scheme.partition('+')[0]}://{rest}")
    except psycopg.ProgrammingError:
        raise invalid from None
    return conninfo.make_conninfo(**(DEFAULTS | options))


def is_pooled(url: str) -> bool:
    """Return whether a URL has `pooler=transaction`. Raises `ConfigurationError` for another pooler."""
    found = _POOLER.search(url)
    if found is not None and found[1] != "transaction":
        msg = f"pooler={found[1]} in the URL of the PostgreSQL store: write pooler=transaction, or nothing without one"
        raise ConfigurationError(msg)
    return found is not None


def address_of(info: str) -> str:
    """Return the address of a database as a part of a URL, without the password: for messages and commands."""
    options = conninfo.conninfo_to_dict(info)
    hosts, ports = (str(options.get(name) or "").split(",") for name in ("host", "port"))
    names = [f"[{host}]" if ":" in host else quote(host or "localhost", safe="") for host in hosts]
    servers = ",".join(f"{name}:{port or 5432}" for name, port in zip(names, cycle(ports), strict=False))
    return f"{servers}/{quote(str(options.get('dbname') or options.get('user', '')), safe='')}"


def user_of(info: str) -> str:
    """Return the user of a connection string as it stands in a URL before the host; "" without one."""
    user = conninfo.conninfo_to_dict(info).get("user")
    return f"{quote(str(user), safe='')}@" if user else ""

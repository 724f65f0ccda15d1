"""Adapts the application's database sessions and connections to one interface, `OpenTransaction`.

Supports SQLAlchemy (sessions and connections), Django, psycopg, psycopg2 and sqlite3, and imports none of them: a
session object exists only if its library is already in `sys.modules`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import cache, partial
from typing import Any, NamedTuple

from onejob.errors import ConfigurationError

PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
Rows = list[dict[str, Any]]
_OPEN = frozenset({1, 2, 3})
"""libpq's status of a transaction while a command runs, between two commands, and after a failed command."""


class OpenTransaction:
    """An open transaction on a SQL database, which the application commits or rolls back."""

    dialect = "postgresql"
    """`postgresql`, `sqlite`, or the library's name of another database."""

    def rows(self, sql: str, values: Mapping[str, Any]) -> Rows:
        """Execute a statement with `:name` placeholders; return its rows as dicts. Raises the driver's own errors."""
        raise NotImplementedError

    reports_commit = False
    """Whether the library calls back after each commit that is final."""
    has_callbacks = False
    """Whether `after_commit` can be called."""

    def after_commit(self, call: Callable[[], object], *, sends: bool = False) -> None:
        """Register a callback for after the commit; only with `has_callbacks`.

        With `sends` it sends a message and returns whether the broker accepted it; after a refusal, the remaining
        callbacks with `sends` are not called.
        """
        raise NotImplementedError

    @property
    def autocommits(self) -> bool:
        """Whether the connection is in autocommit mode, without an open transaction."""
        return False

    def drop_statements(self) -> None:
        """Make psycopg prepare its statements anew, outside of a transaction; other drivers do so by themselves."""
        psycopg = sys.modules.get("psycopg")
        if psycopg is not None and isinstance(self.connection, psycopg.BaseConnection):
            self.rows("deallocate all", {})

    @property
    def connection(self) -> object:
        """The driver's connection, which stays on one database as long as it exists."""
        raise NotImplementedError

    def watch(self) -> Callable[[], bool]:
        """Return a function for any thread that returns whether a transaction of this connection is open."""
        return partial(_has_transaction, self.connection)


def transaction_of(session: object) -> OpenTransaction:
    """Return the transaction of a session or connection. Raises `ConfigurationError` for an unsupported object."""
    if isinstance(session, OpenTransaction):
        return session
    for library, name, adapter in _ADAPTERS:
        supported = getattr(sys.modules.get(library), name, None)
        if supported is not None and isinstance(session, supported):
            return adapter(session)
    if hasattr(session, "on_commit") and hasattr(session, "vendor"):  # django.db.connection is a proxy object
        return _Django(session)
    if any(base.__module__.startswith("sqlalchemy.ext.asyncio") for base in type(session).__mro__):
        raise ConfigurationError(
            "an asynchronous session cannot be used in a synchronous call: await task.asubmit(..., session=session), "
            "await job.acomplete_in(session, result), "
            "or for a fence await session.run_sync(onejob.fence, job, 'name'). Of an async_scoped_session pass what a "
            "call of it returns: session=scoped()"
        )
    raise ConfigurationError(
        f"session= takes a session or connection of SQLAlchemy, Django's connection, or a connection of psycopg, "
        f"psycopg2 or sqlite3, not {type(session).__module__}.{type(session).__qualname__}"
    )


def sqlstate_of(error: BaseException) -> str:
    """Return the SQLSTATE of an error of any driver, or of a library's error around it; "" if there is none."""
    cause: BaseException | None = error
    while cause is not None:
        for code in (getattr(cause, "sqlstate", None), getattr(cause, "pgcode", None)):
            if isinstance(code, str):
                return code
        cause = getattr(cause, "orig", None) or cause.__cause__
    return ""


# --- SQLAlchemy -----------------------------------------------------------------------------------------------------


class _Connection(OpenTransaction):
    """A connection of SQLAlchemy. Its `commit` event fires before the commit, so that `reports_commit` is False."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.dialect = str(connection.dialect.name)

    def rows(self, sql: str, values: Mapping[str, Any]) -> Rows:
        result = self._connection.execute(_text(sql), dict(values))
        return [dict(row) for row in result.mappings()] if result.returns_rows else []

    @property
    def connection(self) -> object:
        return self._connection.connection.driver_connection

    @property
    def autocommits(self) -> bool:
        driver = self._connection.connection.dbapi_connection
        return sqlite_autocommits(driver) if self.dialect == "sqlite" else bool(getattr(driver, "autocommit", False))

    def watch(self) -> Callable[[], bool]:
        transaction = self._connection.get_transaction()
        return lambda: transaction is not None and bool(transaction.is_active)


class _Session(_Connection):
    """A session of SQLAlchemy; its savepoints can be rolled back separately."""

    has_callbacks = True

    def __init__(self, session: Any) -> None:
        self._session = session() if callable(session) else session  # a scoped session
        sqlalchemy = sys.modules["sqlalchemy"]
        try:
            super().__init__(self._session.connection())
        except sqlalchemy.exc.UnboundExecutionError as error:
            msg = "this session has no default bind: pass session.connection(bind_arguments=...)"
            raise ConfigurationError(msg) from error
        # The commit of a session that was bound to a connection can be rolled back on that connection.
        self.reports_commit = not isinstance(self._session.get_bind(), sqlalchemy.Connection)

    def after_commit(self, call: Callable[[], object], *, sends: bool = False) -> None:
        transaction = self._session.get_nested_transaction() or self._session.get_transaction()
        _pending(self._session).append(_PendingCall(transaction, call, sends))


class _PendingCall(NamedTuple):
    """A callback for after the commit, and the transaction or savepoint it was registered in."""

    transaction: Any
    call: Callable[[], object]
    sends: bool


def _pending(session: Any) -> list[_PendingCall]:
    """Return the pending callbacks of a session; the first call registers the event listeners."""
    pending: list[_PendingCall] | None = session.info.get("onejob")
    if pending is None:
        pending = session.info["onejob"] = []
        event = sys.modules["sqlalchemy"].event
        event.listen(session, "after_commit", _on_commit)
        event.listen(session, "after_transaction_end", _on_transaction_end)
    return pending


def _on_commit(session: Any) -> None:
    """Run the callbacks of a committed transaction; move those of a released savepoint to its parent."""
    pending = _pending(session)
    savepoint = session.get_nested_transaction()
    if savepoint is not None:
        pending[:] = [
            callback._replace(transaction=savepoint.parent) if callback.transaction is savepoint else callback
            for callback in pending
        ]
        return
    broker_accepts = True
    for callback in [*pending]:
        if callback.sends:  # after a refusal the sweeper publishes the remaining messages
            broker_accepts = broker_accepts and bool(callback.call())
        else:
            callback.call()


def _on_transaction_end(session: Any, transaction: Any) -> None:
    """Remove the callbacks that have run, or that were rolled back with their savepoint."""
    pending, is_outermost = _pending(session), transaction.parent is None
    pending[:] = [each for each in pending if not is_outermost and each.transaction is not transaction]


@cache
def _text(sql: str) -> Any:
    return sys.modules["sqlalchemy"].text(sql)


# --- Django and plain drivers ---------------------------------------------------------------------------------------


class _Cursor(OpenTransaction):
    """A DB-API connection whose placeholders are `%(name)s` (pyformat)."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def rows(self, sql: str, values: Mapping[str, Any]) -> Rows:
        with self._cursor() as cursor:
            cursor.execute(pyformat(sql), values)
            return _by_column(cursor)

    @property
    def connection(self) -> object:
        return self._connection

    def _cursor(self) -> Any:
        """Return a cursor whose rows are tuples, whatever the row factory of the connection."""
        return self._connection.cursor()


class PsycopgTransaction(_Cursor):
    """A connection of psycopg."""

    def _cursor(self) -> Any:
        self.check_pipeline()
        psycopg = sys.modules["psycopg"]
        return psycopg.Cursor(self._connection, row_factory=psycopg.rows.tuple_row)

    def check_pipeline(self) -> None:
        """Raise `ConfigurationError` for a connection in pipeline mode."""
        if self._connection.pgconn.pipeline_status:
            msg = "a connection of psycopg in pipeline mode returns no rows yet: leave the pipeline first"
            raise ConfigurationError(msg)

    @property
    def autocommits(self) -> bool:
        """Whether the connection is in autocommit mode, without an open transaction."""
        idle = self._connection.info.transaction_status == 0
        return bool(self._connection.autocommit and idle)


class _Psycopg2(PsycopgTransaction):
    def _cursor(self) -> Any:
        return self._connection.cursor(cursor_factory=sys.modules["psycopg2.extensions"].cursor)


class _Django(_Cursor):
    """A connection of Django: `django.db.connection` or one of `django.db.connections`."""

    def __init__(self, connection: Any) -> None:
        if isinstance(connection, sys.modules["django.utils.connection"].ConnectionProxy):
            connection = sys.modules["django.db"].connections[connection.alias]  # this connection also in other threads
        super().__init__(connection)
        self.dialect = str(connection.vendor)
        # After `transaction.set_autocommit(False)`, outside `atomic()`, Django refuses callbacks.
        self.reports_commit = self.has_callbacks = connection.in_atomic_block or connection.get_autocommit()

    def after_commit(self, call: Callable[[], object], *, sends: bool = False) -> None:  # noqa: ARG002 - Django runs all callbacks
        self._connection.on_commit(call)

    @property
    def connection(self) -> object:
        self._connection.ensure_connection()
        return self._connection.connection

    @property
    def autocommits(self) -> bool:
        return bool(self._connection.get_autocommit() and not self._connection.in_atomic_block)


class _SQLite(_Cursor):
    dialect = "sqlite"

    def rows(self, sql: str, values: Mapping[str, Any]) -> Rows:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return _by_column(cursor.execute(sql, values))

    @property
    def autocommits(self) -> bool:
        return sqlite_autocommits(self._connection)

    def watch(self) -> Callable[[], bool]:
        databases = {row["name"]: row["file"] for row in self.rows("pragma database_list", {})}
        if getattr(self._connection, "autocommit", None) is False and databases["main"]:
            return _WriteWatch(databases["main"]).is_open
        return super().watch()


class _WriteWatch:
    """Tells whether a transaction that has written is open, on a connection that always has an open transaction."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._is_over = False

    def is_open(self) -> bool:
        """Return whether the transaction may be open."""
        self._is_over = self._is_over or self._can_write()
        return not self._is_over

    def _can_write(self) -> bool:
        sqlite3 = sys.modules["sqlite3"]
        try:
            with closing(sqlite3.connect(self._file, timeout=0.0, isolation_level=None)) as connection:
                connection.execute("begin immediate")
                connection.execute("rollback")
        except sqlite3.Error:
            return False
        return True


def sqlite_autocommits(connection: Any) -> bool:
    """Return whether a connection of sqlite3 is in autocommit mode, without an open transaction."""
    # `autocommit` was added in Python 3.12; in legacy transaction mode it is LEGACY_TRANSACTION_CONTROL, a number.
    autocommit = connection.isolation_level is None or getattr(connection, "autocommit", None) is True
    return autocommit and not connection.in_transaction


def _has_transaction(connection: Any) -> bool:
    """Return whether a connection of psycopg, psycopg2 or sqlite3 has an open transaction."""
    if hasattr(connection, "info"):
        return connection.info.transaction_status in _OPEN
    try:
        return bool(connection.in_transaction)
    except sys.modules["sqlite3"].ProgrammingError:  # it is closed
        return False


def _by_column(cursor: Any) -> Rows:
    if cursor.description is None:
        return []
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


@cache
def pyformat(sql: str) -> str:
    """Return a statement with `%(name)s` placeholders instead of `:name`."""
    return PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))


_ADAPTERS: tuple[tuple[str, str, Callable[[Any], OpenTransaction]], ...] = (
    ("sqlalchemy.orm", "Session", _Session),
    ("sqlalchemy.orm", "scoped_session", _Session),
    ("sqlalchemy", "Connection", _Connection),
    ("psycopg", "Connection", PsycopgTransaction),
    ("psycopg2.extensions", "connection", _Psycopg2),
    ("sqlite3", "Connection", _SQLite),
)

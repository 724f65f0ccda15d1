"""Database sessions of users, whatever library they come from, as one thing: an open transaction.

SQLAlchemy (sessions and connections), Django, psycopg, psycopg2 and sqlite3 are known. None of them is imported here:
an object of a library that this process has not loaded cannot be handed in.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from onejob.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_NAME = re.compile(r"(?<![:\w]):([a-z_]+)")
Rows = list[dict[str, Any]]


class OpenTransaction:
    """An open transaction on a SQL database; its owner commits it or rolls it back."""

    dialect = "postgresql"
    """The kind of the database: `postgresql`, `sqlite`, or what the library calls another."""

    def rows(self, sql: str, values: Mapping[str, Any]) -> Rows:
        """Execute a statement with its values as `:name`; return its rows by column. Errors are the driver's own."""
        raise NotImplementedError

    reports_commit = False
    """Whether the library can tell that a transaction has been committed."""

    def after_commit(self, call: Callable[[], object], *, sends: bool = False) -> None:
        """Have something called when the transaction has been committed; only where `reports_commit`.

        `sends`: it sends a message, and returns whether the broker has taken it; if not, no other message is tried.
        """
        raise NotImplementedError

    @property
    def autocommits(self) -> bool:
        """Whether every statement is committed by itself: then there is no transaction to take part in."""
        return False


def transaction_of(session: object) -> OpenTransaction:
    """Return the transaction of a user's session or connection. Raises `ConfigurationError` for anything else."""
    for library, name, kind in _KNOWN:
        known = getattr(sys.modules.get(library), name, None)
        if known is not None and isinstance(session, known):
            return kind(session)
    if hasattr(session, "on_commit") and hasattr(session, "vendor"):  # django.db.connection is a proxy of its own class
        return _Django(session)
    if any(base.__module__.startswith("sqlalchemy.ext.asyncio") for base in type(session).__mro__):
        msg = (
            "an asynchronous session cannot be used by a plain call: "
            "await session.run_sync(lambda s: task.submit(..., session=s))"
        )
        raise ConfigurationError(msg)
    msg = (
        f"session= takes a session or connection of SQLAlchemy, Django's connection, or a connection of psycopg or "
        f"psycopg2, not {type(session).__module__}.{type(session).__qualname__}"
    )
    raise ConfigurationError(msg)


# --- SQLAlchemy -----------------------------------------------------------------------------------------------------


class _Connection(OpenTransaction):
    """A connection of SQLAlchemy. It tells of a commit before it happens, which is too early."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.dialect = str(connection.dialect.name)

    def rows(self, sql: str, values: Mapping[str, Any]) -> Rows:
        result = self._connection.execute(_text(sql), dict(values))
        return [dict(row) for row in result.mappings()] if result.returns_rows else []

    @property
    def autocommits(self) -> bool:
        driver = self._connection.connection.dbapi_connection
        return _sqlite_autocommits(driver) if self.dialect == "sqlite" else bool(getattr(driver, "autocommit", False))


class _Session(_Connection):
    """A session of SQLAlchemy, whose savepoints may be rolled back by themselves."""

    def __init__(self, session: Any) -> None:
        self._session = session() if callable(session) else session  # a scoped session
        sqlalchemy = sys.modules["sqlalchemy"]
        try:
            super().__init__(self._session.connection())
        except sqlalchemy.exc.UnboundExecutionError as error:
            msg = "this session has a database for each table: hand in session.connection(bind_arguments=...)"
            raise ConfigurationError(msg) from error
        # The commit of a session on somebody's connection may be undone by that somebody.
        self.reports_commit = not isinstance(self._session.get_bind(), sqlalchemy.Connection)

    def after_commit(self, call: Callable[[], object], *, sends: bool = False) -> None:
        within = self._session.get_nested_transaction() or self._session.get_transaction()
        _pending(self._session).append(_Waiting(within, call, sends))


class _Waiting(NamedTuple):
    """What waits for a commit, and in which transaction or savepoint."""

    within: Any
    call: Callable[[], object]
    sends: bool


def _pending(session: Any) -> list[_Waiting]:
    """Return what waits for the commit of a session; the first time, listen to the session."""
    waiting: list[_Waiting] | None = session.info.get("onejob")
    if waiting is None:
        waiting = session.info["onejob"] = []
        event = sys.modules["sqlalchemy"].event
        event.listen(session, "after_commit", _committed)
        event.listen(session, "after_transaction_end", _ended)
    return waiting


def _committed(session: Any) -> None:
    """Call what waits in the transaction; what waits in a savepoint waits in what encloses it from now on."""
    waiting = _pending(session)
    savepoint, whole = session.get_nested_transaction(), session.get_transaction()
    if savepoint is not None:
        waiting[:] = [each._replace(within=savepoint.parent) if each.within is savepoint else each for each in waiting]
        return
    # What still waits in a savepoint was rolled back with it; a session that is just closed tells of no rollback.
    broker_takes = True
    for each in [each for each in waiting if each.within is whole]:
        if each.sends:  # once the broker is away, the sweepers publish the rest
            broker_takes = broker_takes and bool(each.call())
        else:
            each.call()


def _ended(session: Any, transaction: Any) -> None:
    if transaction.parent is None:
        _pending(session).clear()


@cache
def _text(sql: str) -> Any:
    return sys.modules["sqlalchemy"].text(sql)


# --- Django and plain drivers ---------------------------------------------------------------------------------------


class _Cursor(OpenTransaction):
    """A connection with a cursor whose values stand as `%(name)s`."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def rows(self, sql: str, values: Mapping[str, Any]) -> Rows:
        with self._cursor() as cursor:
            cursor.execute(pyformat(sql), values)
            return _by_column(cursor)

    def _cursor(self) -> Any:
        """Return a cursor whose rows are tuples, whatever rows the connection makes for its owner."""
        return self._connection.cursor()


class _Psycopg(_Cursor):
    """A connection of psycopg."""

    def _cursor(self) -> Any:
        psycopg = sys.modules["psycopg"]
        if self._connection.pgconn.pipeline_status:
            msg = "a connection of psycopg in pipeline mode has no answers yet: leave the pipeline first"
            raise ConfigurationError(msg)
        return psycopg.Cursor(self._connection, row_factory=psycopg.rows.tuple_row)

    @property
    def autocommits(self) -> bool:
        idle = self._connection.info.transaction_status == 0
        return bool(self._connection.autocommit and idle)


class _Psycopg2(_Psycopg):
    """A connection of psycopg2."""

    def _cursor(self) -> Any:
        return self._connection.cursor(cursor_factory=sys.modules["psycopg2.extensions"].cursor)


class _Django(_Cursor):
    """A connection of Django: `django.db.connection` or one of `django.db.connections`."""

    reports_commit = True

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self.dialect = str(connection.vendor)

    def after_commit(self, call: Callable[[], object], *, sends: bool = False) -> None:  # noqa: ARG002 - Django calls all
        self._connection.on_commit(call)

    @property
    def autocommits(self) -> bool:
        return bool(self._connection.get_autocommit() and not self._connection.in_atomic_block)


class _SQLite(OpenTransaction):
    """A connection of the standard library's sqlite3."""

    dialect = "sqlite"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def rows(self, sql: str, values: Mapping[str, Any]) -> Rows:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return _by_column(cursor.execute(sql, values))

    @property
    def autocommits(self) -> bool:
        return _sqlite_autocommits(self._connection)


def _sqlite_autocommits(connection: Any) -> bool:
    # `autocommit` came with Python 3.12; for the older way its value is a number.
    by_itself = connection.isolation_level is None or getattr(connection, "autocommit", None) is True
    return by_itself and not connection.in_transaction


def _by_column(cursor: Any) -> Rows:
    if cursor.description is None:
        return []
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


@cache
def pyformat(sql: str) -> str:
    """Return a statement with its values as `%(name)s` instead of `:name`."""
    return _NAME.sub(r"%(\1)s", sql.replace("%", "%%"))


_KNOWN: tuple[tuple[str, str, Callable[[Any], OpenTransaction]], ...] = (
    ("sqlalchemy.orm", "Session", _Session),
    ("sqlalchemy.orm", "scoped_session", _Session),
    ("sqlalchemy", "Connection", _Connection),
    ("psycopg", "Connection", _Psycopg),
    ("psycopg2.extensions", "connection", _Psycopg2),
    ("sqlite3", "Connection", _SQLite),
)

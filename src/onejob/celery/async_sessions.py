"""Adapts the application's asynchronous sessions and connections, so that synchronous code works in their transactions.

Supports SQLAlchemy (asynchronous sessions and connections), `psycopg.AsyncConnection` and asyncpg, and imports none of
them. The driver always works in the event loop of its connection.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import cache, partial
from inspect import isawaitable
from typing import Any, Protocol, TypeVar

from onejob.celery.async_calls import run_in_thread
from onejob.errors import ConfigurationError
from onejob.transactions.sessions import PARAMETER, OpenTransaction, PsycopgTransaction, Rows, pyformat

T = TypeVar("T")
S_co = TypeVar("S_co", covariant=True)
_SMALL = 2**31
_TYPES = {bool: "boolean", float: "double precision", str: "text"}


class Engine(Protocol[S_co]):
    """An `AsyncEngine`, or what else opens a connection by `connect()`."""

    def connect(self) -> Awaitable[S_co]:
        """Open a connection."""


class AsyncSession(Protocol):
    """A session or connection whose transaction is ended by coroutines."""

    async def commit(self) -> None:
        """Commit the transaction."""

    async def rollback(self) -> None:
        """Roll the transaction back."""


class AsyncTransaction:
    """The transaction of an asynchronous session or connection, by default one of SQLAlchemy."""

    def __init__(self, session: Any) -> None:
        self.session = session

    async def begin(self) -> None:
        """Begin the transaction, where the first statement does not."""

    async def call(self, use: Callable[[Any], T]) -> T:
        """Return the result of synchronous code, which gets what `transaction_of` takes. Raises its exception."""
        result: T = await self.session.run_sync(use)
        return result

    async def commit(self) -> None:
        """Commit the transaction."""
        await self.session.commit()

    async def rollback(self) -> None:
        """Roll the transaction back."""
        await self.session.rollback()

    async def close(self) -> None:
        """Close the session."""
        await self.session.close()


def async_transaction_of(session: Any) -> AsyncTransaction | None:
    """Return the transaction of an asynchronous session or connection; None for any other object."""
    if hasattr(session, "run_sync"):
        return AsyncTransaction(session)
    if _is_a(session, "psycopg", "AsyncConnection"):
        return _Psycopg(session)
    if _is_a(session, "asyncpg", "Connection") or _is_a(session, "asyncpg.pool", "PoolConnectionProxy"):
        return _Asyncpg(session)
    return None


def checked_transaction_of(session: Any) -> AsyncTransaction:
    """Return the transaction of an asynchronous session. Raises `ConfigurationError` for any other object."""
    transaction = async_transaction_of(session)
    if transaction is not None:
        return transaction
    if hasattr(session, "on_commit") and hasattr(session, "vendor"):
        raise ConfigurationError(
            "Django has no asynchronous transactions: write the block as a function with transaction.atomic() and "
            "current_job().complete_in(connection, result), and await sync_to_async(function)()"
        )
    kind = f"{type(session).__module__}.{type(session).__qualname__}"
    raise ConfigurationError(
        "an asynchronous transaction takes an AsyncSession or AsyncConnection of SQLAlchemy, a psycopg.AsyncConnection "
        f"or a connection of asyncpg, not {kind}; a synchronous session is one of job.transaction and job.complete_in"
    )


@asynccontextmanager
async def opened(source: Any) -> AsyncIterator[AsyncTransaction]:
    """Open the session of a factory or an engine, and close it at the end; a session that is given stays open.

    The factory returns a session, an awaitable of one, or an asynchronous context manager.
    """
    async with AsyncExitStack() as stack:
        transaction = async_transaction_of(source)
        if transaction is None:
            transaction = await _open(source, stack)
        await transaction.begin()
        yield transaction


async def _open(source: Any, stack: AsyncExitStack) -> AsyncTransaction:
    is_engine = hasattr(source, "connect") and not hasattr(source, "vendor")  # a connection of Django connects, too
    found = source() if callable(source) else source.connect() if is_engine else source
    if async_transaction_of(found) is None and hasattr(found, "__aenter__"):
        return checked_transaction_of(await stack.enter_async_context(found))
    transaction = checked_transaction_of(await found if isawaitable(found) else found)
    stack.push_async_callback(_close, transaction)
    return transaction


async def _close(transaction: AsyncTransaction) -> None:
    with suppress(Exception):
        await transaction.close()


def _is_a(session: object, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(session, kind)


# --- plain drivers ----------------------------------------------------------------------------------------------------


class _Driver(AsyncTransaction):
    """A connection of a driver: the synchronous code has a thread, and its statements are awaited in the loop."""

    adapter: Callable[[Any, Callable[[Awaitable[Any]], Any]], OpenTransaction]

    async def call(self, use: Callable[[Any], T]) -> T:
        loop = asyncio.get_running_loop()

        def wait_for(awaitable: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(awaitable, loop).result()

        return await run_in_thread(partial(use, type(self).adapter(self.session, wait_for)))


class _PsycopgStatements(PsycopgTransaction):
    """The statements of a `psycopg.AsyncConnection`."""

    def __init__(self, connection: Any, wait_for: Callable[[Awaitable[Any]], Any]) -> None:
        super().__init__(connection)
        self._wait_for = wait_for

    def rows(self, sql: str, values: Mapping[str, Any]) -> Rows:
        self.check_pipeline()
        rows: Rows = self._wait_for(self._fetch(pyformat(sql), values))
        return rows

    async def _fetch(self, sql: str, values: Mapping[str, Any]) -> Rows:
        psycopg = sys.modules["psycopg"]
        async with psycopg.AsyncCursor(self._connection, row_factory=psycopg.rows.dict_row) as cursor:
            await cursor.execute(sql, values)
            return [] if cursor.description is None else await cursor.fetchall()


class _Psycopg(_Driver):
    adapter = _PsycopgStatements


class _AsyncpgStatements(OpenTransaction):
    """The statements of a connection of asyncpg."""

    def __init__(self, connection: Any, wait_for: Callable[[Awaitable[Any]], Any]) -> None:
        self._connection = connection
        self._wait_for = wait_for

    def rows(self, sql: str, values: Mapping[str, Any]) -> Rows:
        names = _names(sql)
        types = tuple(_type_of(values[name]) for name in names)
        return [dict(each) for each in self._wait_for(self._fetch(_numbered(sql, types), [values[n] for n in names]))]

    async def _fetch(self, sql: str, values: list[Any]) -> Any:
        return await self._connection.fetch(sql, *values)

    @property
    def connection(self) -> object:
        return getattr(self._connection, "_con", self._connection)  # of a proxy of a pool

    @property
    def autocommits(self) -> bool:
        return not self._connection.is_in_transaction()

    def watch(self) -> Callable[[], bool]:
        connection: Any = self.connection
        return lambda: not connection.is_closed() and connection.is_in_transaction()


class _Asyncpg(_Driver):
    """A connection of asyncpg, which commits each statement unless a transaction has begun."""

    adapter = _AsyncpgStatements
    _transaction: Any = None

    async def begin(self) -> None:
        self._transaction = self.session.transaction()
        await self._transaction.start()

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        if self._transaction is not None:
            await self._transaction.rollback()
        elif self.session.is_in_transaction():
            await self.session.execute("rollback")


def _type_of(value: object) -> str:
    """Return the type of a value in PostgreSQL, which asyncpg does not tell; "" for one that the statement knows."""
    if type(value) is int:
        return "integer" if -_SMALL <= value < _SMALL else "bigint"
    return _TYPES.get(type(value), "")


@cache
def _names(sql: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(PARAMETER.findall(sql)))


@cache
def _numbered(sql: str, types: tuple[str, ...]) -> str:
    """Return a statement with `$1` placeholders instead of `:name`, and their types."""
    names = _names(sql)
    texts = {
        name: f"${number}{kind and f'::{kind}'}"
        for number, (name, kind) in enumerate(zip(names, types, strict=True), 1)
    }
    return PARAMETER.sub(lambda match: texts[match[1]], sql)

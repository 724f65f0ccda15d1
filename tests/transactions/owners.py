"""Owners of transactions: every kind of session and connection that users have, with one interface."""

from __future__ import annotations

import asyncio
from collections.abc import Callable  # noqa: TC003 - a field of a tuple
from functools import partial
from typing import Any, NamedTuple, TypeVar

import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

T = TypeVar("T")


class Owner:
    """The owner of a transaction. `handle` is passed to onejob."""

    hooked = False
    """Whether the library tells of a commit, so that a job is published at once."""
    handle: Any

    def call(self, use: Callable[[Any], T]) -> T:
        """Call something with the handle."""
        return use(self.handle)

    def submit(self, task: Any, *args: Any, **options: Any) -> Any:
        """Submit in the transaction."""
        return self.call(lambda session: task.apply_async(args, session=session, **options))

    def execute(self, sql: str) -> None:
        """Run a statement in the transaction."""
        self.handle.execute(sql)

    def commit(self) -> None:
        """Commit."""
        self.handle.commit()

    def rollback(self) -> None:
        """Roll back."""
        self.handle.rollback()

    def savepoint(self) -> Savepoint:
        """Begin a savepoint."""
        self.execute("savepoint here")
        release, rollback = "release savepoint here", "rollback to savepoint here"
        return Savepoint(partial(self.execute, release), partial(self.execute, rollback))

    def close(self) -> None:
        """Close."""
        self.handle.close()


class Savepoint(NamedTuple):
    """A savepoint of an owner: what keeps, and what undoes, all that was done since."""

    release: Callable[[], object]
    rollback: Callable[[], object]


# --- plain drivers --------------------------------------------------------------------------------------------------


class Psycopg(Owner):
    """A connection of psycopg."""

    def __init__(self, url: str) -> None:
        self.handle = psycopg.connect(url)


class Psycopg2(Owner):
    """A connection of psycopg2."""

    def __init__(self, url: str) -> None:
        import psycopg2  # type: ignore[import-untyped] # ships no types

        self.handle = psycopg2.connect(url)

    def execute(self, sql: str) -> None:
        with self.handle.cursor() as cursor:
            cursor.execute(sql)


# --- SQLAlchemy -----------------------------------------------------------------------------------------------------


class SQLAlchemySession(Owner):
    """A session of SQLAlchemy."""

    hooked = True
    driver = "psycopg"

    def __init__(self, url: str) -> None:
        self.engine = create_engine(url.replace("://", f"+{self.driver}://"), poolclass=NullPool)
        self.handle = self.opened()

    def opened(self) -> Any:
        return Session(self.engine)

    def execute(self, sql: str) -> None:
        self.handle.execute(text(sql))

    def savepoint(self) -> Savepoint:
        nested = self.handle.begin_nested()
        return Savepoint(nested.commit, nested.rollback)


class SQLAlchemySessionOnPsycopg2(SQLAlchemySession):
    """A session of SQLAlchemy on another driver."""

    driver = "psycopg2"


class ScopedSession(SQLAlchemySession):
    """A session of SQLAlchemy that belongs to the thread."""

    def opened(self) -> Any:
        return scoped_session(sessionmaker(self.engine))

    def close(self) -> None:
        self.handle.remove()


class SQLAlchemyConnection(SQLAlchemySession):
    """A connection of SQLAlchemy, which does not report commits."""

    hooked = False

    def opened(self) -> Any:
        return self.engine.connect()


class Asynchronous(Owner):
    """An asynchronous session of SQLAlchemy, used through `run_sync`."""

    hooked = True
    driver = "asyncpg"

    def __init__(self, url: str) -> None:
        self.runner = asyncio.Runner()
        self.engine = create_async_engine(url.replace("://", f"+{self.driver}://"), poolclass=NullPool)
        self.handle = AsyncSession(self.engine)

    def call(self, use: Callable[[Any], T]) -> T:
        answer: T = self.runner.run(self.handle.run_sync(use))
        return answer

    def execute(self, sql: str) -> None:
        self.runner.run(self.handle.execute(text(sql)))

    def commit(self) -> None:
        self.runner.run(self.handle.commit())

    def rollback(self) -> None:
        self.runner.run(self.handle.rollback())

    def savepoint(self) -> Savepoint:
        run = self.runner.run
        nested = run(_begun(self.handle))
        return Savepoint(lambda: run(nested.commit()), lambda: run(nested.rollback()))

    def close(self) -> None:
        self.runner.run(self.handle.close())
        self.runner.run(self.engine.dispose())
        self.runner.close()


async def _begun(session: AsyncSession) -> Any:
    return await session.begin_nested()


class AsynchronousOnPsycopg(Asynchronous):
    """An asynchronous session on another driver."""

    driver = "psycopg"


# --- Django ---------------------------------------------------------------------------------------------------------


class Django(Owner):
    """Django's connection, in `transaction.atomic()`; a savepoint is an inner one."""

    hooked = True

    def __init__(self, url: str) -> None:
        configure_django(url)
        from django.db import connection, transaction

        self.handle = connection
        self.transaction = transaction
        self.atomic: Any = None

    def begin(self) -> None:
        """Begin, unless it has begun."""
        if self.atomic is None:
            self.atomic = self.transaction.atomic()
            self.atomic.__enter__()

    def call(self, use: Callable[[Any], T]) -> T:
        self.begin()
        return use(self.handle)

    def execute(self, sql: str) -> None:
        self.begin()
        with self.handle.cursor() as cursor:
            cursor.execute(sql)

    def commit(self) -> None:
        atomic, self.atomic = self.atomic, None
        if atomic is not None:
            atomic.__exit__(None, None, None)

    def rollback(self) -> None:
        if self.atomic is not None:
            self.transaction.set_rollback(True)
            self.commit()

    def savepoint(self) -> Savepoint:
        self.begin()
        inner = self.transaction.atomic()
        inner.__enter__()

        def roll_back() -> None:
            self.transaction.set_rollback(True)
            inner.__exit__(None, None, None)

        return Savepoint(lambda: inner.__exit__(None, None, None), roll_back)

    def close(self) -> None:
        self.rollback()
        self.handle.close()


def configure_django(url: str) -> None:
    """Give this process Django's settings, once: all tests of a session share one server."""
    import django
    from django.conf import settings

    if not settings.configured:
        info = psycopg.conninfo.conninfo_to_dict(url)
        places = {"HOST": info["host"], "PORT": info["port"], "USER": info["user"], "NAME": info["dbname"]}
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **places}}, USE_TZ=True)
        django.setup()


KINDS: dict[str, Callable[[str], Owner]] = {
    "psycopg": Psycopg,
    "psycopg2": Psycopg2,
    "sqlalchemy-session": SQLAlchemySession,
    "sqlalchemy-session-psycopg2": SQLAlchemySessionOnPsycopg2,
    "sqlalchemy-scoped-session": ScopedSession,
    "sqlalchemy-connection": SQLAlchemyConnection,
    "sqlalchemy-async-asyncpg": Asynchronous,
    "sqlalchemy-async-psycopg": AsynchronousOnPsycopg,
    "django": Django,
}

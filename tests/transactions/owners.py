"""Owners of transactions: every kind of session and connection that users have, with one interface."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

if TYPE_CHECKING:
    from collections.abc import Callable

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
        return PlainSavepoint(self)

    def close(self) -> None:
        """Close."""
        self.handle.close()


class Savepoint:
    """A savepoint of an owner."""

    def __init__(self, savepoint: Any) -> None:
        self.savepoint = savepoint

    def release(self) -> None:
        """Keep what was done since."""
        self.savepoint.commit()

    def rollback(self) -> None:
        """Undo what was done since."""
        self.savepoint.rollback()


# --- plain drivers --------------------------------------------------------------------------------------------------


class PlainSavepoint(Savepoint):
    """A savepoint by statements."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        owner.execute("savepoint here")

    def release(self) -> None:
        self.owner.execute("release savepoint here")

    def rollback(self) -> None:
        self.owner.execute("rollback to savepoint here")


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
        return Savepoint(self.handle.begin_nested())


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
        return AsynchronousSavepoint(self)

    def close(self) -> None:
        self.runner.run(self.handle.close())
        self.runner.run(self.engine.dispose())
        self.runner.close()


class AsynchronousSavepoint(Savepoint):
    """A savepoint of an asynchronous session."""

    def __init__(self, owner: Asynchronous) -> None:
        self.run = owner.runner.run
        self.savepoint = self.run(_begun(owner.handle))

    def release(self) -> None:
        self.run(self.savepoint.commit())

    def rollback(self) -> None:
        self.run(self.savepoint.rollback())


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
        return DjangoSavepoint(self.transaction)

    def close(self) -> None:
        self.rollback()
        self.handle.close()


class DjangoSavepoint(Savepoint):
    """An inner `atomic`."""

    def __init__(self, transaction: Any) -> None:
        self.transaction = transaction
        self.atomic = transaction.atomic()
        self.atomic.__enter__()

    def release(self) -> None:
        self.atomic.__exit__(None, None, None)

    def rollback(self) -> None:
        self.transaction.set_rollback(True)
        self.release()


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

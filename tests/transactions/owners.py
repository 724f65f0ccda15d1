"""Owners of transactions: every kind of session and connection that users have, with one interface."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

T = TypeVar("T")


class Savepoint(NamedTuple):
    release: Callable[[], object]
    rollback: Callable[[], object]


class Owner:
    """The owner of a transaction, by default a connection of a driver. `handle` is passed to onejob."""

    hooked = False
    """Whether the library tells of a commit, so that a job is published at once."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def call(self, use: Callable[[Any], T]) -> T:
        return use(self.handle)

    def submit(self, task: Any, *args: Any, **options: Any) -> Any:
        return self.call(lambda session: task.apply_async(args, session=session, **options))

    def execute(self, sql: str) -> None:
        with self.handle.cursor() as cursor:
            cursor.execute(sql)

    def commit(self) -> None:
        self.handle.commit()

    def rollback(self) -> None:
        self.handle.rollback()

    def savepoint(self) -> Savepoint:
        self.execute("savepoint here")
        release, rollback = "release savepoint here", "rollback to savepoint here"
        return Savepoint(partial(self.execute, release), partial(self.execute, rollback))

    def close(self) -> None:
        self.handle.close()


class SQLAlchemy(Owner):
    """A session of SQLAlchemy, or a connection, which does not report commits."""

    def __init__(self, handle: Any) -> None:
        super().__init__(handle)
        self.hooked = isinstance(handle, Session | scoped_session)

    def execute(self, sql: str) -> None:
        self.handle.execute(text(sql))

    def savepoint(self) -> Savepoint:
        nested = self.handle.begin_nested()
        return Savepoint(nested.commit, nested.rollback)


class Asynchronous(Owner):
    """An asynchronous session of SQLAlchemy, used through `run_sync`."""

    hooked = True

    def __init__(self, handle: Any) -> None:
        super().__init__(handle)
        self.runner = asyncio.Runner()

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
        nested = self.call(lambda session: session.begin_nested())
        return Savepoint(lambda: self.call(lambda _: nested.commit()), lambda: self.call(lambda _: nested.rollback()))

    def close(self) -> None:
        self.runner.run(self.handle.close())
        self.runner.close()


class Django(Owner):
    """Django's connection, in `transaction.atomic()`; a savepoint is an inner one."""

    hooked = True

    def __init__(self, url: str) -> None:
        configure_django(url)
        from django.db import connection, transaction

        super().__init__(connection)
        self.transaction = transaction
        self.atomic: Any = None

    def begin(self) -> None:
        if self.atomic is None:
            self.atomic = self.transaction.atomic()
            self.atomic.__enter__()

    def call(self, use: Callable[[Any], T]) -> T:
        self.begin()
        return use(self.handle)

    def execute(self, sql: str) -> None:
        self.begin()
        super().execute(sql)

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
        end = partial(inner.__exit__, None, None, None)
        return Savepoint(end, lambda: (self.transaction.set_rollback(True), end()))

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


def engine_of(url: str, driver: str = "psycopg", create: Callable[..., Any] = create_engine, **options: Any) -> Any:
    return create(url.replace("://", f"+{driver}://"), poolclass=NullPool, **options)


def connect_psycopg2(url: str, *, autocommit: bool = False, **options: Any) -> Any:
    import psycopg2  # type: ignore[import-untyped] # ships no types

    connection = psycopg2.connect(url, **options)
    connection.autocommit = autocommit
    return connection


def _asynchronous(url: str, driver: str) -> Owner:
    return Asynchronous(AsyncSession(engine_of(url, driver, create_async_engine)))


KINDS: dict[str, Callable[[str], Any]] = {
    "psycopg": lambda url: Owner(psycopg.connect(url)),
    "psycopg2": lambda url: Owner(connect_psycopg2(url)),
    "sqlalchemy-session": lambda url: SQLAlchemy(Session(engine_of(url))),
    "sqlalchemy-session-psycopg2": lambda url: SQLAlchemy(Session(engine_of(url, "psycopg2"))),
    "sqlalchemy-scoped-session": lambda url: SQLAlchemy(scoped_session(sessionmaker(engine_of(url)))),
    "sqlalchemy-connection": lambda url: SQLAlchemy(engine_of(url).connect()),
    "sqlalchemy-async-asyncpg": lambda url: _asynchronous(url, "asyncpg"),
    "sqlalchemy-async-psycopg": lambda url: _asynchronous(url, "psycopg"),
    "django": Django,
}

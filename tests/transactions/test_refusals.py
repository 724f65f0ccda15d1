"""Unsupported sessions and stores are refused, with messages that say what to do."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import TYPE_CHECKING, Any

import celery
import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

import onejob
from onejob import ConfigurationError, InvalidPayloadError
from onejob.celery.app_state import app_state_of
from onejob.celery.current_job import RunningJob
from onejob.celery.submission import build_submission
from tests.transactions.owners import Django, Psycopg, SQLAlchemySession

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.transactions.place import Place


class TeamSession(AsyncSession):
    """A subclass of an asynchronous session."""


def of_store(url: str, namespace: str) -> tuple[celery.Celery, Any]:
    """Return an app with a ledger elsewhere, and a task."""
    app = celery.Celery(
        "elsewhere",
        broker="memory://",
        changes={"onejob_store": url, "onejob_namespace": namespace},
        set_as_current=False,
    )

    @app.task(name="effect", shared=False, base=onejob.Task)
    def effect(key: str) -> None:
        """Do nothing."""

    return app, effect


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_ledger_outside_of_postgresql_is_refused(
    request: pytest.FixtureRequest, place: Place, tmp_path: Path, kind: str
) -> None:
    """A ledger elsewhere refuses to join a transaction of PostgreSQL, and the message names two alternatives."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}" if kind == "sqlite" else request.getfixturevalue("redis_url")
    app, task = of_store(url, request.getfixturevalue("redis_prefix"))
    owner = Psycopg(place.url)
    ledger = app_state_of(app).ledger
    with pytest.raises(ConfigurationError, match=r"onejob_store='postgresql://.*onejob\.fence"):
        owner.submit(task, "a")
    run = RunningJob(_claimed(ledger, task), ledger, app_state_of(app).settings.limits)
    with pytest.raises(ConfigurationError, match=r"onejob_store='postgresql://.*onejob\.fence"):
        run.complete_in(owner.handle)
    owner.close()
    ledger.close()
    app.close()


def _claimed(ledger: Any, task: Any) -> Any:
    ledger.submit(build_submission(task, ("b",), {}, {}, task_id="b"))
    return ledger.claim("b", nonce="nonce", node="test").job


@pytest.mark.parametrize("kind", [AsyncSession, TeamSession])
def test_an_asynchronous_session_is_refused(place: Place, kind: type[AsyncSession]) -> None:
    """An asynchronous session is refused, and the message says how to use it."""
    session = kind(create_async_engine(place.url.replace("://", "+asyncpg://")))
    with pytest.raises(ConfigurationError, match=r"await task\.asubmit\(\.\.\., session=session\)"):
        place.effect.submit("a", session=session)
    asyncio.run(session.close())


@pytest.mark.parametrize("thing", [object(), "postgresql://", sessionmaker(), create_engine("sqlite://")])
def test_an_unsupported_session_is_refused(place: Place, thing: object) -> None:
    """An unsupported object is refused with the name of its class, and nothing is stored."""
    with pytest.raises(ConfigurationError, match=rf"not {type(thing).__module__}\.{type(thing).__qualname__}"):
        place.effect.submit("a", session=thing)
    assert place.rows("jobs") == 0


def _psycopg(url: str) -> Any:
    return psycopg.connect(url, autocommit=True)


def _psycopg2(url: str) -> Any:
    import psycopg2  # type: ignore[import-untyped] # ships no types

    connection = psycopg2.connect(url)
    connection.autocommit = True
    return connection


def _engine(url: str, driver: str) -> Any:
    return create_engine(url.replace("://", f"+{driver}://"), isolation_level="AUTOCOMMIT", poolclass=NullPool)


AUTOCOMMITTING: dict[str, Callable[[str], Any]] = {
    "psycopg": _psycopg,
    "psycopg2": _psycopg2,
    "sqlalchemy-session": lambda url: Session(_engine(url, "psycopg")),
    "sqlalchemy-connection": lambda url: _engine(url, "psycopg2").connect(),
    "django": lambda url: Django(url).handle,
}


@pytest.mark.parametrize("kind", AUTOCOMMITTING)
def test_no_completion_without_a_transaction(place: Place, kind: str) -> None:
    """`complete_in` refuses a connection in autocommit mode."""
    job = place.claim(place.effect.delay("a").id)
    run = RunningJob(job, place.ledger, place.limits)
    session = AUTOCOMMITTING[kind](place.url)
    for refused in (lambda: run.complete_in(session), lambda: onejob.fence(session, run)):
        with pytest.raises(ConfigurationError, match="autocommit mode"):
            refused()
    session.close()
    assert place.ledger.get(job.id) == job
    assert not run.completes_in_transaction


def test_a_transaction_on_an_autocommitting_connection_counts(place: Place) -> None:
    """A block of psycopg's `transaction()` is accepted on an autocommit connection."""
    job = place.claim(place.effect.delay("a").id)
    run = RunningJob(job, place.ledger, place.limits)
    with psycopg.connect(place.url, autocommit=True) as connection, connection.transaction():
        run.complete_in(connection, 1)
    assert place.ledger.get(job.id).result == "1"


def test_arguments_are_checked_before_the_transaction(place: Place) -> None:
    """A submission that cannot be stored does not abort the caller's transaction."""
    owner = SQLAlchemySession(place.url)
    owner.execute(place.stage.insert("a"))
    with pytest.raises(InvalidPayloadError):
        owner.submit(place.effect, float("nan"))
    with pytest.raises(TypeError):
        owner.submit(place.effect, "a", "b", "c")
    owner.commit()
    owner.close()
    assert (place.notes("a"), place.rows("jobs")) == (1, 0)


def test_a_sqlite_connection_is_refused_by_a_postgresql_ledger(place: Place) -> None:
    """A ledger in PostgreSQL refuses a connection to another kind of database."""
    connection = sqlite3.connect(":memory:")
    with pytest.raises(ConfigurationError, match="a transaction of sqlite"):
        place.effect.submit("a", session=connection)
    connection.close()
    assert place.rows("jobs") == 0

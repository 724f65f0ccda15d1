"""Unsupported sessions and stores, and other databases than the ledger's, are refused: messages say what to do."""

from __future__ import annotations

import secrets
import sqlite3
from functools import partial
from typing import TYPE_CHECKING, Any

import celery
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker

import onejob
from onejob import ConfigurationError, InvalidPayloadError
from onejob.celery.app_state import app_state_of
from onejob.celery.current_job import RunningJob
from tests.cases import for_each
from tests.conftest import make_ledger
from tests.submissions import submission_of
from tests.transactions.owners import KINDS, Django, connect_psycopg2, engine_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.services import PostgresServer
    from tests.transactions.owners import Owner
    from tests.transactions.place import Place


def of_store(url: str, namespace: str) -> tuple[celery.Celery, Any]:
    changes = {"onejob_store": url, "onejob_namespace": namespace}
    app = celery.Celery("elsewhere", broker="memory://", changes=changes, set_as_current=False)

    @app.task(name="effect", shared=False, base=onejob.Task)
    def effect(key: str) -> None:
        """Do nothing."""

    return app, effect


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_ledger_outside_of_postgresql_is_refused(
    request: pytest.FixtureRequest, plain: Owner, tmp_path: Path, kind: str
) -> None:
    """A ledger elsewhere refuses to join a transaction of PostgreSQL, and the message names two alternatives."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}" if kind == "sqlite" else request.getfixturevalue("redis_url")
    app, task = of_store(url, request.getfixturevalue("redis_prefix"))
    ledger = app_state_of(app).ledger
    with pytest.raises(ConfigurationError, match=r"onejob_store='postgresql://.*onejob\.fence"):
        plain.submit(task, "a")
    run = RunningJob(_claimed(ledger, task), ledger, app_state_of(app).settings.limits)
    with pytest.raises(ConfigurationError, match=r"onejob_store='postgresql://.*onejob\.fence"):
        run.complete_in(plain.handle)
    ledger.close()
    app.close()


def _claimed(ledger: Any, task: Any) -> Any:
    ledger.submit(submission_of(task, args=("b",), task_id="b"))
    return ledger.claim("b", nonce="nonce", node="test").job


def test_an_unsupported_session_is_refused(place: Place) -> None:
    """An asynchronous session, one of another database, or any other object is refused, and nothing is stored."""
    asynchronous, other = KINDS["sqlalchemy-async-asyncpg"](place.url), sqlite3.connect(":memory:")
    for thing in (object(), "postgresql://", sessionmaker(), create_engine("sqlite://")):
        with pytest.raises(ConfigurationError, match=rf"not {type(thing).__module__}\.{type(thing).__qualname__}"):
            place.effect.submit("a", session=thing)
    with pytest.raises(ConfigurationError, match=r"await task\.asubmit\(\.\.\., session=session\)"):
        place.effect.submit("a", session=asynchronous.handle)
    with pytest.raises(ConfigurationError, match="a transaction of sqlite"):
        place.effect.submit("a", session=other)
    asynchronous.close()
    other.close()
    assert place.rows("jobs") == 0


def _psycopg2(url: str) -> Any:
    connection = connect_psycopg2(url)
    connection.autocommit = True
    return connection


_AUTO: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"}
AUTOCOMMITTING: dict[str, Callable[[str], Any]] = {
    "psycopg": partial(psycopg.connect, autocommit=True),
    "psycopg2": _psycopg2,
    "sqlalchemy-session": lambda url: Session(engine_of(url, **_AUTO)),
    "sqlalchemy-connection": lambda url: engine_of(url, "psycopg2", **_AUTO).connect(),
    "django": lambda url: Django(url).handle,
}


@for_each("kind", AUTOCOMMITTING)
def test_no_completion_without_a_transaction(place: Place, kind: str) -> None:
    """`complete_in` refuses a connection in autocommit mode."""
    run = place.started(kind)
    session = AUTOCOMMITTING[kind](place.url)
    for refused in (lambda: run.complete_in(session), lambda: onejob.fence(session, run)):
        with pytest.raises(ConfigurationError, match="autocommit mode"):
            refused()
    session.close()
    assert place.ledger.get(run.id) == run.job
    assert not run.completes_in_transaction


def test_a_transaction_on_an_autocommitting_connection_counts(place: Place) -> None:
    """A block of psycopg's `transaction()` is accepted on an autocommit connection."""
    run = place.started()
    with psycopg.connect(place.url, autocommit=True) as connection, connection.transaction():
        run.complete_in(connection, 1)
    assert place.ledger.get(run.id).result == "1"


def test_a_pipeline_is_refused(place: Place, plain: Owner) -> None:
    """A connection of psycopg in pipeline mode is refused, and accepted after the pipeline."""
    with plain.handle.pipeline(), pytest.raises(ConfigurationError, match="leave the pipeline first"):
        plain.submit(place.effect, "a")
    plain.submit(place.effect, "a")
    plain.commit()
    assert place.rows("jobs") == 1


def test_arguments_are_checked_before_the_transaction(place: Place, plain: Owner) -> None:
    """A submission that cannot be stored does not abort the caller's transaction."""
    plain.execute(place.stage.insert("a"))
    with pytest.raises(InvalidPayloadError):
        plain.submit(place.effect, float("nan"))
    with pytest.raises(TypeError):
        plain.submit(place.effect, "a", "b", "c")
    plain.commit()
    assert (place.notes("a"), place.rows("jobs")) == (1, 0)


@pytest.fixture
def new_database(postgres_server: PostgresServer) -> Iterator[Callable[[str], str]]:
    made: list[str] = []

    def create(template: str = "template1") -> str:
        made.append(f"other_{secrets.token_hex(4)}")
        with psycopg.connect(postgres_server.url, autocommit=True) as connection:
            connection.execute(f"create database {made[-1]} template {template}".encode())
        return postgres_server.url.rpartition("/")[0] + f"/{made[-1]}"

    yield create
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        for name in made:
            connection.execute(f"drop database {name} with (force)".encode())


def _jobs(url: str, schema: str) -> int:
    with psycopg.connect(url) as connection:
        (found,) = connection.execute(f"select count(*) from {schema}.jobs".encode()).fetchone() or (0,)  # noqa: S608 - ours
    return int(found)


@pytest.fixture
def url_of_another(place: Place, new_database: Callable[[], str]) -> str:
    make_ledger(url := new_database(), place.schema)
    return url


@for_each("kind", sorted(KINDS))
def test_another_ledger_is_refused(place: Place, url_of_another: str, kind: str) -> None:
    """A submission in a session of any kind on the database of another ledger is refused, and nothing is written."""
    place.app.conf.onejob_store = url_of_another
    owner = KINDS[kind](place.url)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=f"which has another ledger in its schema '{place.schema}'"):
            owner.submit(place.effect, "a")
    owner.commit()
    owner.close()
    assert (_jobs(url_of_another, place.schema), place.rows("jobs")) == (0, 0)


def test_a_database_without_a_ledger_is_refused(place: Place, new_database: Callable[[], str]) -> None:
    """A session on a database without a ledger is refused, and its transaction can go on."""
    owner = KINDS["psycopg"](new_database())
    owner.execute("create table own (key text)")
    with pytest.raises(ConfigurationError, match=f"which has no ledger in its schema '{place.schema}'"):
        owner.submit(place.effect, "a")
    owner.execute("insert into own values ('a')")
    owner.commit()
    owner.close()


def test_a_completion_in_another_ledger_is_refused(place: Place, url_of_another: str) -> None:
    """`complete_in` refuses a session on the database of another ledger, and the run goes on."""
    run, owner = place.started(), KINDS["sqlalchemy-session"](url_of_another)
    with pytest.raises(ConfigurationError, match="another ledger"):
        owner.call(lambda session: run.complete_in(session, 1))
    owner.close()
    assert (place.ledger.get(run.id), run.completes_in_transaction) == (run.job, False)


def test_another_schema_is_another_ledger(place: Place, plain: Owner) -> None:
    """A session reaches the ledger in the schema of the app, whatever other ledgers its database has."""
    make_ledger(place.url, other := f"other_{secrets.token_hex(4)}")
    plain.execute(f"set search_path to {other}")
    plain.submit(place.effect, "a")
    plain.commit()
    plain.execute(f"drop schema {other} cascade")
    plain.commit()
    assert place.rows("jobs") == 1


def test_a_copy_of_the_database_is_another_one(new_database: Callable[..., str], place: Place) -> None:
    """A session on a copy of the ledger's database, which has the same id of the ledger, is refused."""
    url = new_database()
    make_ledger(url, "onejob")
    copy = new_database(conninfo_to_dict(url)["dbname"])
    place.app.conf.update(onejob_store=url, onejob_namespace="onejob")
    owner = KINDS["psycopg"](copy)
    with pytest.raises(ConfigurationError, match="another ledger"):
        owner.submit(place.effect, "a")
    owner.close()


def test_a_connection_is_checked_once(place: Place, plain: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many submissions on one connection, only the first checks the database."""
    store: Any = place.ledger.store
    checks: list[object] = []
    check = store._check_ledger

    def counted(joined: object) -> None:
        checks.append(joined)
        check(joined)

    monkeypatch.setattr(store, "_check_ledger", counted)
    for key in "abc":
        plain.submit(place.effect, key)
        plain.commit()
    assert (len(checks), place.rows("jobs")) == (1, 3)

"""Unsupported sessions and stores, and other databases than the ledger's, are refused: messages say what to do."""

import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, cast

import celery
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker

import onejob
from onejob.celery.app_state import app_state_of
from onejob.celery.run import Run
from onejob.errors import ConfigurationError, InvalidPayloadError
from onejob.jobs.model import JobRow
from onejob.stores.postgres import PostgresStore
from tests.cases import for_each
from tests.conftest import make_ledger
from tests.services import PostgresServer
from tests.transactions.cluster import PostgresCluster
from tests.transactions.owners import KINDS, Django, Owner, connect_psycopg2, engine_of


def _nothing(key: str) -> None:
    pass


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_ledger_outside_of_postgresql_is_refused(
    request: pytest.FixtureRequest, plain: Owner, tmp_path: Path, kind: str
) -> None:
    """A ledger elsewhere refuses to join a transaction of PostgreSQL, and the message names two alternatives."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}" if kind == "sqlite" else request.getfixturevalue("redis_url")
    changes = {"onejob_store": url, "onejob_namespace": request.getfixturevalue("redis_prefix")}
    with celery.Celery("elsewhere", broker="memory://", changes=changes, set_as_current=False) as app:
        define: Any = app.task
        task = define(_nothing, name="effect", shared=False, base=onejob.Task)
        state = app_state_of(app)
        job = state.ledger.claim(task.delay("b").id, nonce="nonce", node="test").job
        run = Run(cast("JobRow", job), state.ledger, state.settings.limits)
        for refused in (lambda: plain.submit(task, "a"), lambda: run.complete_in(plain.handle, None)):
            with pytest.raises(ConfigurationError, match=r"onejob_store='postgresql://.*onejob\.fence"):
                refused()
        state.ledger.close()


def test_an_unsupported_session_is_refused(cluster: PostgresCluster) -> None:
    """An asynchronous session, one of another database, or any other object is refused, and nothing is stored."""
    with (
        closing(KINDS["sqlalchemy-async-asyncpg"](cluster.url)) as asynchronous,
        closing(sqlite3.connect(":memory:")) as other,
    ):
        for session, message in {
            asynchronous.handle: r"await task\.asubmit\(\.\.\., session=session\).*run_sync\(onejob\.fence.*=scoped",
            other: "a transaction of sqlite",
            **{
                each: rf"not {type(each).__module__}\.{type(each).__qualname__}"
                for each in (object(), "postgresql://", sessionmaker(), create_engine("sqlite://"))
            },
        }.items():
            with pytest.raises(ConfigurationError, match=message):
                cluster.effect.submit("a", session=session)
    assert cluster.rows("jobs") == 0


_AUTO: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"}
AUTOCOMMITTING: dict[str, Callable[[str], Any]] = {
    "psycopg": partial(psycopg.connect, autocommit=True),
    "psycopg2": partial(connect_psycopg2, autocommit=True),
    "sqlalchemy-session": lambda url: Session(engine_of(url, **_AUTO)),
    "sqlalchemy-connection": lambda url: engine_of(url, "psycopg2", **_AUTO).connect(),
    "django": lambda url: Django(url).handle,
}


@for_each("kind", AUTOCOMMITTING)
def test_no_completion_without_a_transaction(cluster: PostgresCluster, kind: str) -> None:
    """`complete_in` refuses a connection in autocommit mode, but not in a block of psycopg's `transaction()`."""
    run = cluster.started(kind)
    with closing(AUTOCOMMITTING[kind](cluster.url)) as session:
        for refused in (lambda: run.complete_in(session, None), lambda: onejob.fence(session, run.job)):
            with pytest.raises(ConfigurationError, match="autocommit mode"):
                refused()
        assert cluster.ledger.get(run.id) == run.job
        assert not run.completes_in_transaction
        if kind == "psycopg":
            with session.transaction():
                run.complete_in(session, 1)
            assert cluster.ledger.get(run.id).result == "1"


def test_a_pipeline_is_refused(cluster: PostgresCluster, plain: Owner) -> None:
    """A connection of psycopg in pipeline mode is refused, and accepted after the pipeline."""
    with plain.handle.pipeline(), pytest.raises(ConfigurationError, match="leave the pipeline first"):
        plain.submit(cluster.effect, "a")
    plain.submit(cluster.effect, "a")
    plain.commit()
    assert cluster.rows("jobs") == 1


def test_arguments_are_checked_before_the_transaction(cluster: PostgresCluster, plain: Owner) -> None:
    """A submission that cannot be stored does not abort the caller's transaction."""
    plain.execute(cluster.effects.insert("a"))
    with pytest.raises(InvalidPayloadError):
        plain.submit(cluster.effect, float("nan"))
    with pytest.raises(TypeError):
        plain.submit(cluster.effect, "a", "b", "c")
    plain.commit()
    assert (cluster.notes("a"), cluster.rows("jobs")) == (1, 0)


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


@pytest.fixture
def url_of_another(cluster: PostgresCluster, new_database: Callable[[], str]) -> str:
    make_ledger(url := new_database(), cluster.schema)
    return url


@for_each("kind", sorted(KINDS))
def test_another_ledger_is_refused(cluster: PostgresCluster, url_of_another: str, kind: str) -> None:
    """A submission in a session of any kind on the database of another ledger is refused, and nothing is written."""
    cluster.app.conf.onejob_store = url_of_another
    with closing(KINDS[kind](cluster.url)) as owner:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=f"which has another ledger in its schema '{cluster.schema}'"):
                owner.submit(cluster.effect, "a")
        owner.commit()
    with psycopg.connect(url_of_another) as connection:
        assert connection.execute(f"select from {cluster.schema}.jobs".encode()).fetchall() == []
    assert cluster.rows("jobs") == 0


def test_a_database_without_a_ledger_is_refused(cluster: PostgresCluster, new_database: Callable[[], str]) -> None:
    """A session on a database without a ledger is refused, and its transaction can go on."""
    with closing(KINDS["psycopg"](new_database())) as owner:
        owner.execute("create table own (key text)")
        with pytest.raises(ConfigurationError, match=f"which has no ledger in its schema '{cluster.schema}'"):
            owner.submit(cluster.effect, "a")
        owner.execute("insert into own values ('a')")
        owner.commit()


@for_each("kind", ["psycopg", "sqlalchemy-session"])
def test_a_session_without_an_encoding_is_refused(cluster: PostgresCluster, kind: str) -> None:
    """A session that returns texts as bytes is refused for that reason, and not for its ledger, which is right."""
    with closing(KINDS[kind](cluster.url)) as owner:
        owner.execute("set client_encoding = 'SQL_ASCII'")
        with pytest.raises(ConfigurationError, match="client_encoding SQL_ASCII"):
            owner.submit(cluster.effect, "a")
        owner.execute("set client_encoding = 'UTF8'")
        owner.submit(cluster.effect, "a")
        owner.commit()
    assert cluster.rows("jobs") == 1


def test_a_completion_in_another_ledger_is_refused(cluster: PostgresCluster, url_of_another: str) -> None:
    """`complete_in` refuses a session on the database of another ledger, and the run goes on."""
    run = cluster.started()
    with (
        closing(KINDS["sqlalchemy-session"](url_of_another)) as owner,
        pytest.raises(ConfigurationError, match="another ledger"),
    ):
        owner.call(lambda session: run.complete_in(session, 1))
    assert cluster.ledger.get(run.id) == run.job
    assert not run.completes_in_transaction


def test_another_schema_is_another_ledger(cluster: PostgresCluster, plain: Owner) -> None:
    """A session reaches the ledger in the schema of the app, whatever other ledgers its database has."""
    make_ledger(cluster.url, other := f"other_{secrets.token_hex(4)}")
    plain.execute(f"set search_path to {other}")
    plain.submit(cluster.effect, "a")
    plain.commit()
    plain.execute(f"drop schema {other} cascade")
    plain.commit()
    assert cluster.rows("jobs") == 1


def test_a_copy_of_the_database_is_another_one(new_database: Callable[..., str], cluster: PostgresCluster) -> None:
    """A session on a copy of the ledger's database, which has the same id of the ledger, is refused."""
    url = new_database()
    make_ledger(url, "onejob")
    copy = new_database(conninfo_to_dict(url)["dbname"])
    cluster.app.conf.update(onejob_store=url, onejob_namespace="onejob")
    with closing(KINDS["psycopg"](copy)) as owner, pytest.raises(ConfigurationError, match="another ledger"):
        owner.submit(cluster.effect, "a")


def test_a_connection_is_checked_once(cluster: PostgresCluster, plain: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many submissions on one connection, only the first checks the database."""
    checks: list[object] = []
    check = PostgresStore._check_ledger
    monkeypatch.setattr(PostgresStore, "_check_ledger", lambda *args: checks.append(check(*args)))
    for key in "abc":
        plain.submit(cluster.effect, key)
        plain.commit()
    assert (len(checks), cluster.rows("jobs")) == (1, 3)

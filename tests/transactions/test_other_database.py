"""A session on another database than that of the ledger is refused, also if that database has a ledger of its own."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from onejob import ConfigurationError
from onejob.celery.current_job import RunningJob
from tests.conftest import make_ledger
from tests.transactions.owners import KINDS, Psycopg, SQLAlchemySession

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.services import PostgresServer
    from tests.transactions.place import Place


@pytest.fixture
def new_database(postgres_server: PostgresServer) -> Iterator[Callable[[str], str]]:
    """Return a way to create a database from a template; returns its URL."""
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


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_another_ledger_is_refused(place: Place, new_database: Callable[[], str], kind: str) -> None:
    """A submission in a session of any kind on the database of another ledger is refused, and nothing is written."""
    make_ledger(url := new_database(), place.schema)
    place.app.conf.onejob_store = url
    owner = KINDS[kind](place.url)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=f"which has another ledger in its schema '{place.schema}'"):
            owner.submit(place.effect, "a")
    owner.commit()
    owner.close()
    assert (_jobs(url, place.schema), place.rows("jobs")) == (0, 0)


def test_a_database_without_a_ledger_is_refused(place: Place, new_database: Callable[[], str]) -> None:
    """A session on a database without a ledger is refused, and its transaction can go on."""
    owner = Psycopg(new_database())
    owner.execute("create table own (key text)")
    with pytest.raises(ConfigurationError, match=f"which has no ledger in its schema '{place.schema}'"):
        owner.submit(place.effect, "a")
    owner.execute("insert into own values ('a')")
    owner.commit()
    owner.close()


def test_a_completion_in_another_ledger_is_refused(place: Place, new_database: Callable[[], str]) -> None:
    """`complete_in` refuses a session on the database of another ledger, and the run goes on."""
    url = new_database()
    make_ledger(url, place.schema)
    run = RunningJob(place.claim(place.effect.delay("a").id), place.ledger, place.limits)
    owner = SQLAlchemySession(url)
    with pytest.raises(ConfigurationError, match="another ledger"):
        owner.call(lambda session: run.complete_in(session, 1))
    owner.close()
    assert (place.ledger.get(run.id), run.completes_in_transaction) == (run.job, False)


def test_another_schema_is_another_ledger(place: Place) -> None:
    """A session reaches the ledger in the schema of the app, whatever other ledgers its database has."""
    make_ledger(place.url, other := f"other_{secrets.token_hex(4)}")
    owner = Psycopg(place.url)
    owner.execute(f"set search_path to {other}")
    owner.submit(place.effect, "a")
    owner.commit()
    owner.execute(f"drop schema {other} cascade")
    owner.commit()
    owner.close()
    assert place.rows("jobs") == 1


def test_a_copy_of_the_database_is_another_one(new_database: Callable[..., str], place: Place) -> None:
    """A session on a copy of the ledger's database, which has the same id of the ledger, is refused."""
    url = new_database()
    make_ledger(url, "onejob")
    copy = new_database(conninfo_to_dict(url)["dbname"])
    place.app.conf.update(onejob_store=url, onejob_namespace="onejob")
    owner = Psycopg(copy)
    with pytest.raises(ConfigurationError, match="another ledger"):
        owner.submit(place.effect, "a")
    owner.close()


def test_a_connection_is_checked_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many submissions on one connection, only the first checks the database."""
    store: Any = place.ledger.store
    checks: list[object] = []
    check = store._check_ledger

    def counted(joined: object) -> None:
        checks.append(joined)
        check(joined)

    monkeypatch.setattr(store, "_check_ledger", counted)
    owner = Psycopg(place.url)
    for key in "abc":
        owner.submit(place.effect, key)
        owner.commit()
    owner.close()
    assert (len(checks), place.rows("jobs")) == (1, 3)

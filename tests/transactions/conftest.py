"""The fixtures of the tests in transactions: ledgers in PostgreSQL, and sessions of every kind."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from onejob.observability.events import JobEvent
from tests.conftest import make_ledger
from tests.services import PostgresServer, RedisServer
from tests.transactions.owners import KINDS, Owner
from tests.transactions.place import Place
from tests.webhooks.receiver import SECRET


def place_at(url: str, schema: str, broker: RedisServer, directory: Path) -> Place:
    settings = {"onejob_store": url, "onejob_namespace": schema, "onejob_webhook_secrets": [SECRET]}
    return Place(directory, broker, "postgresql", settings)


@pytest.fixture
def place(
    postgres_server: PostgresServer, postgres_schema: str, broker: RedisServer, tmp_path: Path
) -> Iterator[Place]:
    place = place_at(postgres_server.url, postgres_schema, broker, tmp_path)
    place.app.set_current()
    yield place
    place.close()


@pytest.fixture(scope="session")
def worker_place(
    postgres_server: PostgresServer, broker: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    make_ledger(postgres_server.url, "with_a_worker")
    place = place_at(postgres_server.url, "with_a_worker", broker, tmp_path_factory.mktemp("place"))
    place.worker("--pool", "threads", "-c", "4")
    yield place
    place.close()


@pytest.fixture
def working(worker_place: Place) -> Place:
    """Return the place with a worker; each test has keys of its own there."""
    worker_place.app.set_current()
    return worker_place


@pytest.fixture(params=sorted(KINDS))
def owner(request: pytest.FixtureRequest, place: Place) -> Iterator[Owner]:
    with closing(KINDS[request.param](place.url)) as owner:
        yield owner


@pytest.fixture
def plain(place: Place) -> Iterator[Owner]:
    """Return a connection of psycopg, which does not report commits."""
    with closing(KINDS["psycopg"](place.url)) as owner:
        yield owner


@pytest.fixture
def session(place: Place) -> Iterator[Owner]:
    """Return a session of SQLAlchemy, which reports commits."""
    with closing(KINDS["sqlalchemy-session"](place.url)) as owner:
        yield owner


@pytest.fixture
def emitted(place: Place, monkeypatch: pytest.MonkeyPatch) -> list[JobEvent]:
    emitted: list[JobEvent] = []
    monkeypatch.setattr(place.ledger, "emit", emitted.append)
    return emitted

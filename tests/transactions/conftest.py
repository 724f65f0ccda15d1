"""The fixtures of the tests in transactions: ledgers in PostgreSQL, and sessions of every kind."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from onejob.observability.events import JobEvent
from tests.conftest import make_ledger
from tests.services import PostgresServer, RedisServer
from tests.transactions.cluster import PostgresCluster
from tests.transactions.owners import KINDS, Owner
from tests.webhooks.receiver import SECRET


def cluster_at(url: str, schema: str, broker: RedisServer, directory: Path) -> PostgresCluster:
    settings = {"onejob_store": url, "onejob_namespace": schema, "onejob_webhook_secrets": [SECRET]}
    return PostgresCluster(directory, broker, "postgresql", settings)


@pytest.fixture
def cluster(
    postgres_server: PostgresServer, postgres_schema: str, broker: RedisServer, tmp_path: Path
) -> Iterator[PostgresCluster]:
    cluster = cluster_at(postgres_server.url, postgres_schema, broker, tmp_path)
    cluster.app.set_current()
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def worker_cluster(
    postgres_server: PostgresServer, broker: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PostgresCluster]:
    make_ledger(postgres_server.url, "with_a_worker")
    cluster = cluster_at(postgres_server.url, "with_a_worker", broker, tmp_path_factory.mktemp("cluster"))
    cluster.worker("--pool", "threads", "-c", "4")
    yield cluster
    cluster.close()


@pytest.fixture
def working(worker_cluster: PostgresCluster) -> PostgresCluster:
    """Return the cluster with a worker; each test has keys of its own there."""
    worker_cluster.app.set_current()
    return worker_cluster


@pytest.fixture(params=sorted(KINDS))
def owner(request: pytest.FixtureRequest, cluster: PostgresCluster) -> Iterator[Owner]:
    with closing(KINDS[request.param](cluster.url)) as owner:
        yield owner


@pytest.fixture
def plain(cluster: PostgresCluster) -> Iterator[Owner]:
    """Return a connection of psycopg, which does not report commits."""
    with closing(KINDS["psycopg"](cluster.url)) as owner:
        yield owner


@pytest.fixture
def session(cluster: PostgresCluster) -> Iterator[Owner]:
    """Return a session of SQLAlchemy, which reports commits."""
    with closing(KINDS["sqlalchemy-session"](cluster.url)) as owner:
        yield owner


@pytest.fixture
def emitted(cluster: PostgresCluster, monkeypatch: pytest.MonkeyPatch) -> list[JobEvent]:
    emitted: list[JobEvent] = []
    monkeypatch.setattr(cluster.ledger, "emit", emitted.append)
    return emitted

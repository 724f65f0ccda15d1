"""The fixtures of the tests with workers: clusters of one's own, and one cluster that tests share."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection

from tests.celery.harness import Cluster
from tests.conftest import DATABASES, make_ledger
from tests.quiet import assert_quiet
from tests.services import PostgresServer, RedisServer, rabbitmq_url, start_redis


@pytest.fixture(scope="session")
def build_cluster(broker: RedisServer, postgres_server: PostgresServer) -> Callable[..., Cluster]:
    """Return a way to build a cluster in a directory, with a store of a kind, and settings."""

    def build(directory: Path, kind: str, **settings: Any) -> Cluster:
        if kind != "postgresql":
            return Cluster(directory, broker, kind, settings)
        schema = f"cluster_{secrets.token_hex(4)}"
        make_ledger(postgres_server.url, schema)
        where = {"onejob_store": postgres_server.url, "onejob_namespace": schema}
        return Cluster(directory, broker, kind, settings | where)

    return build


@pytest.fixture
def new_cluster(build_cluster: Callable[..., Cluster], tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Return a way to build clusters in the test's folder, or one below it, that are closed whatever fails in it."""
    built: list[Cluster] = []

    def build(kind: str = "sqlite", folder: str = ".", **settings: Any) -> Cluster:
        (tmp_path / folder).mkdir(exist_ok=True)
        built.append(build_cluster(tmp_path / folder, kind, **settings))
        built[-1].app.set_current()
        return built[-1]

    yield build
    for cluster in built:
        cluster.close()


@pytest.fixture
def cluster(request: pytest.FixtureRequest, new_cluster: Callable[..., Cluster]) -> Cluster:
    """Return a cluster without a worker, on SQLite unless the test names another store."""
    return new_cluster(getattr(request, "param", "sqlite"))


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Return a way to build a cluster with a broker of its own, which the test may stop, freeze and fill."""
    with ExitStack() as stack:

        def build(kind: str = "sqlite", **settings: Any) -> Cluster:
            server = start_redis(tmp_path, "--databases", str(DATABASES))
            stack.callback(server.stop)
            cluster = Cluster(tmp_path, server, kind, settings)
            stack.callback(cluster.close)
            cluster.app.set_current()
            return cluster

        yield build


@pytest.fixture(scope="session")
def clusters(
    build_cluster: Callable[..., Cluster], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Cluster]]:
    """Return the clusters that tests share, by the kind of their store."""
    built: dict[str, Cluster] = {}

    def of(kind: str) -> Cluster:
        if kind not in built:
            built[kind] = build_cluster(tmp_path_factory.mktemp(f"shared-{kind}"), kind)
            built[kind].worker("-c", "4", forked=False)
        return built[kind]

    yield of
    for cluster in built.values():
        cluster.close()


@pytest.fixture
def shared(request: pytest.FixtureRequest, clusters: Callable[[str], Cluster]) -> Iterator[Cluster]:
    """Return a cluster with a prefork worker that no test may kill; after the test nothing may be left over in it."""
    cluster = clusters(getattr(request, "param", "sqlite"))
    cluster.app.set_current()
    cluster.clear()
    yield cluster
    cluster.assert_quiet()
    assert_quiet(request.node)


# --- RabbitMQ -------------------------------------------------------------------------------------------------------


@pytest.fixture
def channel() -> Iterator[Any]:
    """Return a channel of a connection of the test's own."""
    with Connection(rabbitmq_url()) as connection:
        yield connection.default_channel


@pytest.fixture
def queue(channel: Any) -> Iterator[str]:
    """Return the name of a queue that does not exist yet; it and its exchange are deleted at the end."""
    name = f"onejob-test-{secrets.token_hex(8)}"
    yield name
    channel.queue_delete(name)
    channel.exchange_delete(name)


@pytest.fixture
def rabbit(queue: str, new_cluster: Callable[..., Cluster]) -> Cluster:
    """Return a cluster without a worker whose messages go through RabbitMQ."""
    own = {"task_default_queue": queue, "control_exchange": queue}  # tests of other processes have a worker w1, too
    return new_cluster(broker_url=rabbitmq_url(), broker_transport_options={}, **own)

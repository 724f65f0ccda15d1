"""The fixtures of the tests with workers: houses of one's own, and one house that tests share."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection

from tests.celery.harness import House
from tests.conftest import DATABASES, make_ledger
from tests.quiet import assert_quiet
from tests.services import PostgresServer, RedisServer, rabbitmq_url, start_redis


@pytest.fixture(scope="session")
def build_house(broker: RedisServer, postgres_server: PostgresServer) -> Callable[..., House]:
    """Return a way to build a house in a directory, with a store of a kind, and settings."""

    def build(directory: Path, kind: str, **settings: Any) -> House:
        if kind != "postgresql":
            return House(directory, broker, kind, settings)
        schema = f"house_{secrets.token_hex(4)}"
        make_ledger(postgres_server.url, schema)
        where = {"onejob_store": postgres_server.url, "onejob_namespace": schema}
        return House(directory, broker, kind, settings | where)

    return build


@pytest.fixture
def new_house(build_house: Callable[..., House], tmp_path: Path) -> Iterator[Callable[..., House]]:
    """Return a way to build houses in the test's folder, or one below it, that are closed whatever fails in it."""
    built: list[House] = []

    def build(kind: str = "sqlite", folder: str = ".", **settings: Any) -> House:
        (tmp_path / folder).mkdir(exist_ok=True)
        built.append(build_house(tmp_path / folder, kind, **settings))
        built[-1].app.set_current()
        return built[-1]

    yield build
    for house in built:
        house.close()


@pytest.fixture
def house(request: pytest.FixtureRequest, new_house: Callable[..., House]) -> House:
    """Return a house without a worker, on SQLite unless the test names another store."""
    return new_house(getattr(request, "param", "sqlite"))


@pytest.fixture
def own_house(tmp_path: Path) -> Iterator[Callable[..., House]]:
    """Return a way to build a house with a broker of its own, which the test may stop, freeze and fill."""
    with ExitStack() as stack:

        def build(kind: str = "sqlite", **settings: Any) -> House:
            server = start_redis(tmp_path, "--databases", str(DATABASES))
            stack.callback(server.stop)
            house = House(tmp_path, server, kind, settings)
            stack.callback(house.close)
            house.app.set_current()
            return house

        yield build


@pytest.fixture(scope="session")
def houses(
    build_house: Callable[..., House], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], House]]:
    """Return the houses that tests share, by the kind of their store."""
    built: dict[str, House] = {}

    def of(kind: str) -> House:
        if kind not in built:
            built[kind] = build_house(tmp_path_factory.mktemp(f"shared-{kind}"), kind)
            built[kind].worker("-c", "4", forked=False)
        return built[kind]

    yield of
    for house in built.values():
        house.close()


@pytest.fixture
def shared(request: pytest.FixtureRequest, houses: Callable[[str], House]) -> Iterator[House]:
    """Return a house with a prefork worker that no test may kill; after the test nothing may be left over in it."""
    house = houses(getattr(request, "param", "sqlite"))
    house.app.set_current()
    house.clear()
    yield house
    house.assert_quiet()
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
def rabbit(queue: str, new_house: Callable[..., House]) -> House:
    """Return a house without a worker whose messages go through RabbitMQ."""
    own = {"task_default_queue": queue, "control_exchange": queue}  # tests of other processes have a worker w1, too
    return new_house(broker_url=rabbitmq_url(), broker_transport_options={}, **own)

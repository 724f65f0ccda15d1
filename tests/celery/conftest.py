"""The fixtures of the tests with workers: a broker, houses of one's own, and one house that tests share."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import pytest

from tests.celery.harness import DATABASES, House
from tests.conftest import make_ledger
from tests.quiet import assert_quiet
from tests.services import start_redis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.services import PostgresServer, RedisServer


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Return the server in which every house has databases of its own."""
    server = start_redis(tmp_path_factory.mktemp("broker"), "--databases", str(DATABASES))
    yield server
    server.stop()


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
    """Return a way to build houses that are closed after the test, whatever fails in it."""
    built: list[House] = []

    def build(*args: Any, **settings: Any) -> House:
        built.append(build_house(*args, **settings))
        return built[-1]

    yield build
    for house in built:
        house.close()


@pytest.fixture
def house(request: pytest.FixtureRequest, new_house: Callable[..., House], tmp_path: Path) -> House:
    """Return a house without a worker, on SQLite unless the test names another store."""
    house = new_house(tmp_path, getattr(request, "param", "sqlite"))
    house.app.set_current()
    return house


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

"""The fixtures of the tests with workers: a broker, houses of one's own, and one house that tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.celery.harness import DATABASES, House
from tests.services import start_redis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.services import RedisServer


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Return the server in which every house has databases of its own."""
    server = start_redis(tmp_path_factory.mktemp("broker"), "--databases", str(DATABASES))
    yield server
    server.stop()


@pytest.fixture
def house(request: pytest.FixtureRequest, broker: RedisServer, tmp_path: Path) -> Iterator[House]:
    """Return a house without a worker, on SQLite unless the test asks for another store."""
    house = House(tmp_path, broker, getattr(request, "param", "sqlite"))
    house.app.set_current()
    yield house
    house.close()


@pytest.fixture(scope="session")
def houses(broker: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], House]]:
    """Return the houses that tests share, by the kind of their store."""
    built: dict[str, House] = {}

    def of(kind: str) -> House:
        if kind not in built:
            built[kind] = House(tmp_path_factory.mktemp(f"shared-{kind}"), broker, kind)
            built[kind].worker("-c", "4")
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

"""A store that is away for longer than a lease costs no healthy run."""

from __future__ import annotations

import sqlite3
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from onejob import State
from tests.celery.harness import LEASE, PATIENCE, House, await_, pause_until
from tests.conftest import make_ledger
from tests.services import start_postgres, start_redis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.services import RedisServer, Server

KEYS = ("one", "two", "three", "four")
AWAY = 2 * LEASE
"""Seconds that the store is away."""


@contextmanager
def _server_away(server: Server) -> Iterator[None]:
    server.stop()
    yield
    server.start()


@contextmanager
def _file_locked(path: Path) -> Iterator[None]:
    """Lock a ledger's file, as a backup or a forgotten transaction would."""
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("begin exclusive")
        yield
        connection.execute("rollback")
    connection.close()


@pytest.fixture
def new_place(tmp_path: Path, broker: RedisServer) -> Iterator[Callable[[str], tuple[House, Callable[[], Any]]]]:
    """Return a way to build a house with a store of its own, and a context in which that store is away."""
    with ExitStack() as stack:

        def build(kind: str) -> tuple[House, Callable[[], Any]]:
            settings: dict[str, Any] = {"onejob_lease": LEASE, "onejob_heartbeat": 1.0}
            if kind != "sqlite":
                server: Any = start_postgres() if kind == "postgresql" else start_redis(tmp_path, "--appendonly", "yes")
                stack.callback(server.remove if kind == "postgresql" else server.stop)
                settings |= {"onejob_store": server.url, "onejob_namespace": "outage"}
                if kind == "postgresql":
                    make_ledger(server.url, "outage")
            house = House(tmp_path, broker, kind, settings)
            stack.callback(house.close)
            house.app.set_current()
            if kind == "sqlite":
                return house, lambda: _file_locked(tmp_path / "ledger.db")
            return house, lambda: _server_away(server)

        yield build


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "redis"])
def test_an_outage_longer_than_a_lease_costs_no_run(
    new_place: Callable[[str], tuple[House, Callable[[], Any]]], kind: str
) -> None:
    """After an outage longer than a lease each run of each worker goes on: one attempt, no crash, one result."""
    house, away = new_place(kind)
    house.two_workers("-c", "4")  # each could run all: a worker reserves more than it runs
    results = {key: house.play.delay(key, ["hold"]) for key in KEYS}
    for key in KEYS:
        house.await_mark(key)
    with away():
        pause_until(time.monotonic() + AWAY)
        house.open(KEYS[0])  # this one's body ends while the store is away
        house.await_mark(KEYS[0], "end")
    back = time.time()
    await_(lambda: all((house.job(results[key]).lease_until or 0.0) > back + LEASE for key in KEYS[1:]))
    for key in KEYS[1:]:
        house.open(key)
    for key, result in results.items():
        assert result.get(PATIENCE) == key
        job = house.assert_ran(result, State.COMPLETED, key, 1)
        assert (job.attempt, job.crashes) == (1, 0)
    house.assert_quiet()

"""A store that is away for longer than a lease costs no healthy run."""

from __future__ import annotations

import sqlite3
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from onejob import State, StoreUnavailableError
from onejob.stores.redis.client import ATTEMPTS
from tests.celery.harness import LEASE, PATIENCE, House, Proxy, await_, pause_until
from tests.conftest import make_ledger
from tests.quiet import provokes
from tests.services import start_postgres, start_redis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


@contextmanager
def _snapshot_failed(server: RedisServer) -> Iterator[None]:
    """Have a Redis refuse writes, as it does after a snapshot for which the disk had no room."""
    with redis.Redis.from_url(server.url) as client:
        file = Path(client.config_get("dir")["dir"]) / "dump.rdb"
        client.config_set("save", "3600 1")
        file.mkdir()
        client.bgsave()
        await_(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
        yield
        file.rmdir()
        client.bgsave()
        await_(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "ok")


@contextmanager
def _password_changed(server: RedisServer) -> Iterator[None]:
    """Have a Redis demand a password that no worker has."""
    with redis.Redis.from_url(server.url) as client:
        client.config_set("requirepass", "changed")
        client.client_kill_filter(_type="normal", skipme=True)
        yield
        client.config_set("requirepass", "")


AWAYS: dict[str, Callable[[Any], Any]] = {"snapshot": _snapshot_failed, "password": _password_changed}


@pytest.fixture
def new_place(tmp_path: Path, broker: RedisServer) -> Iterator[Callable[[str], tuple[House, Callable[[], Any]]]]:
    """Return a way to build a house with a store of its own, and a context in which that store is away."""
    with ExitStack() as stack:

        def build(place: str) -> tuple[House, Callable[[], Any]]:
            settings: dict[str, Any] = {"onejob_lease": LEASE, "onejob_heartbeat": 1.0}
            kind, _, fault = place.partition(", ")
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
            return house, lambda: AWAYS.get(fault, _server_away)(server)

        yield build


@pytest.mark.deep
@pytest.mark.parametrize("place", ["sqlite", "postgresql", "redis", "redis, password"])
@provokes(logs=["failed, and goes on"], because="the store is away")
def test_an_outage_longer_than_a_lease_costs_no_run(
    new_place: Callable[[str], tuple[House, Callable[[], Any]]], place: str
) -> None:
    """After an outage longer than a lease each run of each worker goes on: one attempt, no crash, one result."""
    house, away = new_place(place)
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


@provokes(logs=["failed, and goes on"], because="the store refuses writes")
def test_a_run_waits_for_a_store_that_refuses_writes(
    new_place: Callable[[str], tuple[House, Callable[[], Any]]],
) -> None:
    """A run that ends while the store refuses writes records its end afterwards; a submission meanwhile is told so."""
    house, away = new_place("redis, snapshot")
    worker = house.worker("-c", "1")
    result = house.play.delay("waits", ["hold"])
    house.await_mark("waits")
    with away():
        house.open("waits")
        with pytest.raises(StoreUnavailableError, match="MISCONF"):
            house.play.delay("meanwhile", ["return"])
        worker.await_text(f"job {result.id}: its run waits for the store")
    assert result.get(PATIENCE) == "waits"
    job = house.assert_ran(result, State.COMPLETED, "waits", 1)
    assert (job.attempt, job.crashes) == (1, 0)
    house.assert_quiet()


@pytest.mark.parametrize("house", ["redis"], indirect=True)
def test_an_end_whose_reply_was_lost_is_recognised(house: House) -> None:
    """A run whose end is recorded, but whose replies were lost, recognises it: Celery has its result, too."""
    proxy = Proxy(house.server.port, marker=b'"recorded"')
    store = house.config["onejob_store"].replace(f":{house.server.port}/", f":{proxy.port}/")
    house.worker("-c", "1", onejob_store=store)
    house.play.delay("first", ["return"]).get(PATIENCE)  # so that the server has the script
    proxy.arm("before the reply", cuts=ATTEMPTS + 1)  # so that also the operation is repeated
    result = house.play.delay("lost", ["return:recorded"])
    assert result.get(PATIENCE) == "recorded"
    await_(lambda: house.app.backend.get_state(result.id) == "SUCCESS")
    assert not proxy.cuts
    house.assert_ran(result, State.COMPLETED, "lost", 1)
    house.assert_quiet()
    proxy.close()

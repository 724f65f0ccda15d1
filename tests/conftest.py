"""The fixtures of the whole suite: private servers, stores of every kind, and a clock that tests move."""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from celery import _state as celery_state
from hypothesis import settings

from onejob.ledger.ledger import Ledger
from onejob.observability.meter import write_all
from onejob.stores.migrate import sql
from onejob.stores.protocol import Store
from tests.cases import further
from tests.services import PostgresServer, RedisServer, start_postgres, start_redis
from tests.stores.support import START, ManualClock, StoreAddress

pytest_plugins = ["tests.quiet", "tests.tiers", "tests.webhooks.receiver"]
settings.register_profile("search", deadline=None)  # a busy machine breaks no law
settings.register_profile("tests", settings.get_profile("search"), derandomize=True)
settings.load_profile("tests")
STORES = ("sqlite", "postgresql", "redis")
every_store = pytest.mark.parametrize("fresh_address", STORES, indirect=True)
"""Runs a test on each kind of store: only for what a store itself can break."""
on_every_store = pytest.mark.parametrize("fresh_address", [STORES[0], *further(*STORES[1:])], indirect=True)
"""Runs a test of what stands above the stores on SQLite, and in the deep tier on the other kinds."""
DATABASES = 2000
"""The databases of a Redis server in which clusters have two each."""
KEPT_TABLES = ("schema_version", "ledger_info")
"""The tables of a ledger whose rows belong to the ledger itself."""


@cache
def _ledger_sql() -> str:
    return sql("postgresql://nowhere", "the_ledger")


def make_ledger(url: str, schema: str) -> None:
    """Make an empty ledger in a PostgreSQL by the SQL that `onejob migrate` prints."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_ledger_sql().replace("the_ledger", schema).encode())


@pytest.fixture(autouse=True)
def own_shared_tasks() -> Iterator[None]:
    """Keep the tasks that a test shares, as `app.task` does by default, from the apps of later tests."""
    finalizers: set[Any] = celery_state._on_app_finalizers  # type: ignore[attr-defined] # Celery's own
    before = {*finalizers}
    yield
    finalizers.intersection_update(before)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Return the session's private Redis server. The processes of the tests take turns with the kinds that are here."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        server.number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        server.start()
        yield server


@pytest.fixture
def redis_prefix() -> str:
    """Return the prefix that every key of this test must have."""
    return f"test-{secrets.token_hex(4)}"


@pytest.fixture
def redis_url(redis_server: RedisServer, redis_prefix: str) -> Iterator[str]:
    """Return the URL of a Redis server; after the test, no key may be found outside `redis_prefix`."""
    yield redis_server.url
    write_all()  # the counts of this test, before those of the next one
    mine = (redis_prefix.encode(), b"{" + redis_prefix.encode() + b"}")
    with redis.Redis.from_url(redis_server.url) as client:
        stray = [key for key in client.scan_iter(count=1000) if not key.startswith(mine)]
        client.flushdb()
        left = client.dbsize()
    assert not stray, f"keys outside the prefix {redis_prefix}: {stray[:10]}"
    assert left == 0, "somebody still writes to Redis after the test"


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Return the session's Redis server in which every cluster has databases of its own."""
    with start_redis(tmp_path_factory.mktemp("broker"), "--databases", str(DATABASES)) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Return the session's private PostgreSQL server."""
    server = start_postgres()
    yield server
    server.remove()


class SpareLedgers:
    """Empty ledgers in a PostgreSQL, for one test after the other: to empty one is far quicker than to make one."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._kept: psycopg.Connection | None = None
        self._spare: list[str] = []
        self._made: dict[str, list[tuple[str, str]]] = {}

    def take(self) -> str:
        """Return the schema of an empty ledger."""
        if self._spare:
            return self._spare.pop()
        name = f"test_{secrets.token_hex(4)}"
        make_ledger(self._url, name)
        self._made[name] = self._relations(name)
        return name

    def refund(self, name: str) -> None:
        """Empty a ledger; one whose tables have been changed goes."""
        relations = self._relations(name)
        if relations != self._made.pop(name):
            self._connection().execute(f"drop schema {name} cascade".encode())
            return
        tables = [table for table, kind in relations if kind == "r" and table not in KEPT_TABLES]
        self._connection().execute("; ".join(f"delete from {name}.{table}" for table in tables).encode())  # noqa: S608 - ours
        self._made[name] = relations
        self._spare.append(name)

    def close(self) -> None:
        """Close the connection."""
        if self._kept is not None:
            self._kept.close()

    def _connection(self) -> psycopg.Connection:
        """Return the connection of all ledgers; a test may have restarted the server, or ended its connections."""
        with suppress(psycopg.OperationalError):
            if self._kept is not None:
                self._kept.execute("select 1")
                return self._kept
        self._kept = psycopg.connect(self._url, autocommit=True)
        return self._kept

    def _relations(self, name: str) -> list[tuple[str, str]]:
        query = "select relname::text, relkind::text from pg_class where relnamespace = %s::regnamespace order by 1"
        return self._connection().execute(query, [name]).fetchall()


@pytest.fixture(scope="session")
def spare_ledgers(postgres_server: PostgresServer) -> Iterator[SpareLedgers]:
    """Return the ledgers that tests in the private PostgreSQL take turns in."""
    ledgers = SpareLedgers(postgres_server.url)
    yield ledgers
    ledgers.close()


@pytest.fixture
def postgres_schema(spare_ledgers: SpareLedgers) -> Iterator[str]:
    """Return the name of an empty ledger's schema in the private PostgreSQL, which is this test's alone."""
    name = spare_ledgers.take()
    yield name
    spare_ledgers.refund(name)


def address_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> StoreAddress:
    """Return where a store of a kind can be that nobody has opened yet; other processes can open it, too."""
    if kind == "sqlite":
        return StoreAddress(f"sqlite:///{tmp_path / 'ledger.db'}", "unused")
    if kind == "postgresql":
        schema = request.getfixturevalue("postgres_schema")
        return StoreAddress(request.getfixturevalue("postgres_server").url, schema)
    return StoreAddress(request.getfixturevalue("redis_url"), request.getfixturevalue("redis_prefix"))


def on_stores(*kinds: Any) -> Any:
    """Return the fixture `fresh_address` of tests that run on these kinds of stores."""

    @pytest.fixture(params=kinds)
    def fresh_address(request: pytest.FixtureRequest, tmp_path: Path) -> StoreAddress:
        """Return where a store can be that nobody has opened yet."""
        return address_of(request.param, request, tmp_path)

    return fresh_address


fresh_address = on_stores(STORES[0], *further(*STORES[1:]))
"""SQLite, and in the deep tier the others; `tests/stores`, whose laws are those of stores, has them all in both."""


@pytest.fixture(scope="session")
def blank_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a SQLite file with an empty ledger: to copy one is ten times as fast as to make one."""
    path = tmp_path_factory.mktemp("blank") / "ledger.db"
    with StoreAddress(f"sqlite:///{path}", "unused").opened() as store:
        store.get_many(["any"])
    return path


@pytest.fixture
def store_address(request: pytest.FixtureRequest, fresh_address: StoreAddress, tmp_path: Path) -> StoreAddress:
    """Return where an empty store of each kind is."""
    if fresh_address.kind == "sqlite":
        shutil.copy(request.getfixturevalue("blank_ledger"), tmp_path / "ledger.db")
    return fresh_address


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock that the test moves. A test that asks for it gets its stores on this clock."""
    return ManualClock()


@pytest.fixture
def store_factory(request: pytest.FixtureRequest, store_address: StoreAddress) -> Iterator[Callable[[], Store]]:
    """Return a way to open the same store once more, as another process would."""
    clock = request.getfixturevalue("clock") if "clock" in request.fixturenames else None
    opened: list[Store] = []

    def another() -> Store:
        opened.append(store_address.open(clock))
        return opened[-1]

    yield another
    for store in opened:
        store.close()


@pytest.fixture
def store(store_factory: Callable[[], Store]) -> Store:
    """Return a fresh store of each kind."""
    return store_factory()


@pytest.fixture
def fresh_stores(
    clock: ManualClock, request: pytest.FixtureRequest, tmp_path: Path, blank_ledger: Path
) -> Iterator[Callable[..., dict[str, Store]]]:
    """Return a function that empties the stores of these kinds, or all, sets their clock back, and returns them."""
    file = shutil.copy(blank_ledger, tmp_path / "ledger.db")
    addresses = {kind: address_of(kind, request, tmp_path) for kind in STORES}
    stores = {kind: address.open(clock) for kind, address in addresses.items()}
    schema = addresses["postgresql"].namespace
    with (
        closing(sqlite3.connect(file, isolation_level=None)) as sqlite,
        psycopg.connect(addresses["postgresql"].url, autocommit=True) as postgres,
        redis.Redis.from_url(addresses["redis"].url) as server,
    ):
        names = sqlite.execute("select name from sqlite_master where type = 'table'")
        of_sqlite = [name for (name,) in names if name not in KEPT_TABLES]
        query = "select relname::text from pg_class where relkind = 'r' and relnamespace = %s::regnamespace"
        of_postgres = [name for (name,) in postgres.execute(query, [schema]) if name not in KEPT_TABLES]

        def fresh(*kinds: str) -> dict[str, Store]:
            if "sqlite" in (kinds or stores):
                for name in of_sqlite:
                    sqlite.execute(f"delete from {name}")  # noqa: S608 - ours
            if "postgresql" in (kinds or stores):
                postgres.execute("; ".join(f"delete from {schema}.{name}" for name in of_postgres).encode())  # noqa: S608 - ours
            if "redis" in (kinds or stores):
                server.flushdb()
                stores["redis"]._holder_cache.clear()  # type: ignore[attr-defined] # so that a seed repeats its sequence
            clock.now = START
            return stores

        yield fresh
    for store in stores.values():
        store.close()


@pytest.fixture
def ledger(store: Store) -> Ledger:
    """Return a ledger with the default settings on a fresh store of each kind."""
    return Ledger(store)

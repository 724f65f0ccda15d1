"""The stores that are compared with the model."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import redis

from onejob.stores.protocol import Store
from tests.conftest import KEPT_TABLES
from tests.contract.lockstep import LockStep
from tests.contract.support import START, ManualClock, StoreAddress


@pytest.fixture
def lockstep(clock: ManualClock, fresh_stores: Callable[..., dict[str, Store]]) -> Callable[[], LockStep]:
    """Return a function that begins anew with an empty store of each kind."""
    return lambda: LockStep(clock, fresh_stores())


@pytest.fixture
def fresh_stores(
    clock: ManualClock, request: pytest.FixtureRequest, tmp_path: Path, blank_ledger: Path, postgres_schema: str
) -> Iterator[Callable[..., dict[str, Store]]]:
    """Return a function that empties the stores of these kinds, or all, sets their clock back, and returns them."""
    address = request.getfixturevalue("postgres_server").url
    redis_url, redis_prefix = request.getfixturevalue("redis_url"), request.getfixturevalue("redis_prefix")
    file = tmp_path / "ledger.db"
    file.write_bytes(blank_ledger.read_bytes())
    stores = {
        "sqlite": StoreAddress(f"sqlite:///{file}", "unused").open(clock),
        "postgresql": StoreAddress(address, postgres_schema).open(clock),
        "redis": StoreAddress(redis_url, redis_prefix).open(clock),
    }
    with (
        closing(sqlite3.connect(file, isolation_level=None)) as sqlite,
        psycopg.connect(address, autocommit=True) as postgres,
        redis.Redis.from_url(redis_url) as server,
    ):
        of_sqlite = [
            name
            for (name,) in sqlite.execute("select name from sqlite_master where type = 'table'")
            if name not in KEPT_TABLES
        ]
        query = "select relname::text from pg_class where relkind = 'r' and relnamespace = %s::regnamespace"
        of_postgres = [name for (name,) in postgres.execute(query, [postgres_schema]) if name not in KEPT_TABLES]

        def fresh(*kinds: str) -> dict[str, Store]:
            if "sqlite" in (kinds or stores):
                for name in of_sqlite:
                    sqlite.execute(f"delete from {name}")  # noqa: S608 - ours
            if "postgresql" in (kinds or stores):
                deletions = "; ".join(f"delete from {postgres_schema}.{name}" for name in of_postgres)  # noqa: S608 - ours
                postgres.execute(deletions.encode())
            if "redis" in (kinds or stores):
                server.flushdb()
                stores["redis"]._holder_cache.clear()  # type: ignore[attr-defined] # so that a seed repeats its sequence
            clock.now = START
            return stores

        yield fresh
    for store in stores.values():
        store.close()

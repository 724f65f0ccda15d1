"""The stores that are compared with the model."""

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import redis

from onejob.stores.protocol import Store
from tests.conftest import KEPT_TABLES, STORES, address_of
from tests.contract.lockstep import LockStep
from tests.contract.support import START, ManualClock


@pytest.fixture
def lockstep(clock: ManualClock, fresh_stores: Callable[..., dict[str, Store]]) -> Callable[[], LockStep]:
    """Return a function that begins anew with an empty store of each kind."""
    return lambda: LockStep(clock, fresh_stores())


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

"""What every contract test asserts in the end: a sweep looks at every job, and each state has exactly its jobs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest
import redis

from onejob.errors import OneJobError
from onejob.jobs.lifecycle import State
from onejob.jobs.records import Query
from onejob.stores.protocol import INDEXED_STATES
from tests.conftest import KEPT_TABLES
from tests.contract.lockstep import LockStep
from tests.contract.support import START, StoreAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from onejob.jobs.model import Job
    from onejob.stores.protocol import Store
    from tests.contract.support import ManualClock

LIMIT = 10_000


@pytest.fixture(autouse=True)
def every_job_is_in_its_indexes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever operations a test runs, in the end a job has a `wake_at` until it ends, and is found by its state."""
    store: Store | None = request.getfixturevalue("store") if "store" in request.fixturenames else None
    yield
    if store is None or not hasattr(store, "find"):
        return
    try:
        jobs = store.find(Query(limit=LIMIT))
    except OneJobError:  # the test has stopped the server, or broken the store
        return
    assert [job for job in jobs if job.wake_at is None and not job.state.final] == []
    assert_states_have_their_jobs(store, jobs)


def assert_states_have_their_jobs(store: Store, jobs: list[Job]) -> None:
    """Assert that the index of each state has the jobs in this state, newest first, and no others."""
    listed = {state: [job.id for job in jobs if job.state is state] for state in State}
    counted = store.count_states(limit=LIMIT)
    for state in INDEXED_STATES:
        of_state = store.find(Query(states=frozenset({state}), limit=LIMIT, light=True))
        assert ([job.id for job in of_state], counted[state]) == (listed[state], len(listed[state]))
    if all(is_regular(job) for job in jobs):
        assert counted == {state: len(ids) for state, ids in listed.items()}
        running = store.find(Query(states=frozenset({State.RUNNING}), limit=LIMIT, light=True))
        assert [job.id for job in running] == listed[State.RUNNING]


def is_regular(job: Job) -> bool:
    """Return whether a job is as the lifecycle makes it, which some tests do not follow, and no canvas waits for it."""
    has_times = (job.lease_until is not None, job.finished_at is not None)
    return has_times == (job.state is State.RUNNING, job.state.final) and not (job.canvas_pending and job.state.final)


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
            clock.now = START
            return stores

        yield fresh
    for store in stores.values():
        store.close()

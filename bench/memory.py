"""The stage `memory`: what one job takes, in bytes and keys, while it is queued and after its end."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import redis

from bench.contenders import FailedError
from bench.runs import Runner

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bench.contenders import Contender
    from bench.servers import Servers

LONGEST = 600.0
"""Seconds for all jobs to run."""
_RELATIONS = """
select coalesce(index.relname, heap.relname), pg_total_relation_size(coalesce(index.oid, heap.oid))
  - case when index.oid is null then pg_indexes_size(heap.oid) else 0 end
from pg_class as heap join pg_namespace as schema on schema.oid = heap.relnamespace and schema.nspname = 'onejob'
cross join lateral (
  select null::oid as oid, null::name as relname
  union all
  select pg_class.oid, relname from pg_index join pg_class on pg_class.oid = indexrelid where indrelid = heap.oid
) as index
where heap.relkind = 'r'
"""


def measure(servers: Servers, contenders: Sequence[Contender], jobs: int) -> list[dict[str, Any]]:
    """Return the sizes per job of each contender, by what takes it."""
    found: list[dict[str, Any]] = []
    for contender in contenders:
        try:
            for state, sizes in _states(servers, contender, jobs):
                found.append({"contender": contender.name, "state": state, "jobs": jobs, "sizes": sizes})
        except FailedError as error:
            found.append({"contender": contender.name, "failure": str(error)})
    return found


def _states(servers: Servers, contender: Contender, jobs: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the sizes per job when the jobs are queued, and when they have ended."""
    runner = Runner(contender, servers)
    try:
        runner.prepare()
        runner.submit(1)  # what does not grow with the jobs is there now
        empty = _sizes(runner)
        runner.submit(jobs)
        yield "queued", _per_job(empty, _sizes(runner), jobs)
        runner.run_all(jobs + 1, LONGEST)
        yield "ended", _per_job(empty, _sizes(runner), jobs)
        if contender.store == "postgresql":
            _vacuum(runner.store, "vacuum full")
            yield "ended, packed", _per_job(empty, _sizes(runner), jobs)
    finally:
        runner.close()


def _per_job(before: Mapping[str, float], after: Mapping[str, float], jobs: int) -> dict[str, float]:
    return {name: (after[name] - before.get(name, 0)) / jobs for name in after}


def _sizes(runner: Runner) -> dict[str, float]:
    sizes = _redis_sizes(runner.broker)
    if runner.store.startswith("sqlite"):
        sizes["SQLite file"] = _sqlite_size(runner.store.removeprefix("sqlite:///"))
    if runner.store.startswith("postgresql"):
        sizes |= _postgres_sizes(runner.store)
    return sizes


def _redis_sizes(url: str) -> dict[str, float]:
    with redis.Redis.from_url(url) as server:
        queue = int(server.memory_usage("celery", samples=0) or 0)
        used: Any = server.info("memory")
        keys = int(server.dbsize()) - bool(queue)
    return {"Redis": used["used_memory"] - queue, "Redis, message": queue, "keys": keys}


def _sqlite_size(path: str) -> int:
    if not Path(path).exists():
        return 0
    connection = sqlite3.connect(path)
    connection.execute("pragma wal_checkpoint(truncate)")
    connection.close()
    return Path(path).stat().st_size


def _postgres_sizes(url: str) -> dict[str, float]:
    _vacuum(url, "vacuum")
    with psycopg.connect(url) as connection:
        rows = connection.execute(_RELATIONS).fetchall()
    sizes = {str(name): float(size) for name, size in rows}
    return {"PostgreSQL": sum(sizes.values())} | dict(sorted(sizes.items()))


def _vacuum(url: str, command: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(command.encode())

"""Listing jobs: pages of ids by the time of their submission, then as few whole rows as the answer needs.

Rows can be large, so a filter sees four of their fields first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.stores.redis.operations import PAGE, Operation, Operations, Read

if TYPE_CHECKING:
    from onejob.job import Job, Query
    from onejob.stores.redis.keys import Keys


def find(keys: Keys, query: Query) -> Operation[list[Job]]:
    """Return jobs, newest first."""
    found: list[Job] = []
    newest, skip = _start(query), 0
    while len(found) < query.limit:
        ids, times = yield from _page(keys, newest, skip)
        if not ids:
            break
        behind = [job_id for job_id, at in zip(ids, times, strict=True) if _comes_after(query, job_id, at)]
        found += yield from _matching(keys, query, behind, query.limit - len(found))
        # The next page begins at this page's last time, behind the ids of that time which were seen.
        skip = times.count(times[-1]) + (skip if times[-1] == newest else 0)
        newest = times[-1]
    return found


def _start(query: Query) -> str:
    """Return the largest time to look at, as Redis writes it: "(" excludes the time itself."""
    if query.before is None:
        return "+inf"
    return f"({query.before}" if query.before_id is None else str(query.before)


def _comes_after(query: Query, job_id: str, at: str) -> bool:
    """Tell whether a job at or before the time of `before` comes after the job to continue from."""
    return query.before_id is None or float(at) != query.before or job_id < query.before_id


def _page(keys: Keys, newest: str, skip: int) -> Operation[tuple[list[str], list[str]]]:
    command = ("ZREVRANGEBYSCORE", keys.jobs, newest, "-inf", "WITHSCORES", "LIMIT", str(skip), str(PAGE))
    (flat,) = yield Read([command])
    return flat[::2], flat[1::2]


def _matching(keys: Keys, query: Query, ids: list[str], wanted: int) -> Operation[list[Job]]:
    found: list[Job] = []
    left = yield from _candidates(keys, query, ids)
    while left and len(found) < wanted:
        count = wanted - len(found)
        jobs = yield from Operations(keys).rows(left[:count])
        found += [job for job in jobs if _fits(query, job.state, job.task, job.identity, job.reason)]
        left = left[count:]
    return found


def _candidates(keys: Keys, query: Query, ids: list[str]) -> Operation[list[str]]:
    if not query.states and query.task is None and query.identity is None and query.reason is None:
        return ids
    looks = yield Read([("HMGET", keys.job(job_id), "state", "task", "identity", "reason") for job_id in ids])
    return [job_id for job_id, look in zip(ids, looks, strict=True) if _fits(query, *look)]


def _fits(query: Query, state: str | None, task: str | None, identity: str | None, reason: str | None) -> bool:
    return (
        (not query.states or state in query.states)
        and query.task in (None, task)
        and query.identity in (None, identity)
        and (query.reason is None or query.reason.lower() in (reason or "").lower())
    )

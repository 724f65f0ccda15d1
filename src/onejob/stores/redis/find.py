"""Listing and counting jobs: pages of ids by the time of their submission, then as few whole rows as an answer needs.

Rows can be large, so a filter sees six of their fields first. A rare filter looks at every job of the time that is asked
for, a page in each request: it may take long, and holds up nobody else.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from onejob.job import Query
from onejob.lifecycle import State
from onejob.stores.redis.operations import PAGE, Operation, Operations, Read

if TYPE_CHECKING:
    from onejob.job import Job
    from onejob.stores.redis.keys import Keys


class _Look(NamedTuple):
    """What a filter sees of a job."""

    state: str | None
    task: str | None
    identity: str | None
    reason: str | None
    submitter: str | None


class _Walk:
    """Goes through the ids of the time that a query is about, the newest first, a page at a time."""

    def __init__(self, keys: Keys, query: Query) -> None:
        self._keys = keys
        self._query = query
        self._newest, self._oldest = _times(query)
        self._skip = 0

    def page(self) -> Operation[list[str] | None]:
        """Return the next ids; None at the end."""
        times = (self._newest, self._oldest)
        command = ("ZREVRANGEBYSCORE", self._keys.jobs, *times, "WITHSCORES", "LIMIT", str(self._skip), str(PAGE))
        (flat,) = yield Read([command])
        ids, found = flat[::2], flat[1::2]
        if not ids:
            return None
        # The next page begins at this page's last time, behind the ids of that time which were seen.
        self._skip = found.count(found[-1]) + (self._skip if found[-1] == self._newest else 0)
        self._newest = found[-1]
        return [job_id for job_id, at in zip(ids, found, strict=True) if _comes_after(self._query, job_id, at)]


def find(keys: Keys, query: Query) -> Operation[list[Job]]:
    """Return jobs, newest first."""
    found: list[Job] = []
    walk, passed_over = _Walk(keys, query), 0
    while len(found) < query.limit and (ids := (yield from walk.page())) is not None:
        left = ids if _takes_all(query) else [job_id for job_id, _ in (yield from _matching(keys, query, ids))]
        skipped = min(query.offset - passed_over, len(left))
        passed_over += skipped
        found += yield from _rows(keys, query, left[skipped:], query.limit - len(found))
    return found


def counts(keys: Keys, query: Query) -> Operation[dict[State, int]]:
    """Return how many jobs match, by state."""
    walk, found = _Walk(keys, replace(query, before=None, before_id=None)), Counter[State]()
    while (ids := (yield from walk.page())) is not None:
        found.update([State(look.state) for _, look in (yield from _matching(keys, query, ids)) if look.state])
    return dict(found)


def _times(query: Query) -> tuple[str, str]:
    """Return the largest and the smallest time to look at, as Redis writes it: "(" excludes the time itself."""
    newest = "+inf" if query.until is None else f"({query.until}"
    if query.before is not None and (query.until is None or query.before < query.until):
        newest = f"({query.before}" if query.before_id is None else str(query.before)
    return newest, "-inf" if query.since is None else str(query.since)


def _comes_after(query: Query, job_id: str, at: str) -> bool:
    """Tell whether a job at or before the time of `before` comes after the job to continue from."""
    return query.before_id is None or float(at) != query.before or job_id < query.before_id


def _takes_all(query: Query) -> bool:
    return (query.states, query.task, query.identity, query.reason, query.submitter) == (frozenset(), *[None] * 4)


def _matching(keys: Keys, query: Query, ids: list[str]) -> Operation[list[tuple[str, _Look]]]:
    """Return the ids of the jobs that match, each with what was seen of it."""
    looks = yield Read([("HMGET", keys.job(job_id), *_Look._fields) for job_id in ids])
    seen = [(job_id, _Look(*look)) for job_id, look in zip(ids, looks, strict=True)]
    return [(job_id, look) for job_id, look in seen if _fits(query, look)]


def _rows(keys: Keys, query: Query, ids: list[str], wanted: int) -> Operation[list[Job]]:
    """Return at most so many jobs; one that has changed meanwhile may match no longer."""
    found: list[Job] = []
    while ids and len(found) < wanted:
        count = wanted - len(found)
        jobs = yield from Operations(keys).rows(ids[:count])
        found += [job for job in jobs if _fits(query, job)]
        ids = ids[count:]
    return found


def _fits(query: Query, look: _Look | Job) -> bool:
    return (
        (not query.states or look.state in query.states)
        and query.task in (None, look.task)
        and query.identity in (None, look.identity)
        and query.submitter in (None, look.submitter or "")
        and (query.reason is None or query.reason.lower() in (look.reason or "").lower())
    )

"""Listing and counting jobs: pages of ids by the time of their submission, then as few whole rows as an answer needs.

A rare filter looks at every job of the time that is asked for, and so does a count. Each request is about one page, so
that nobody else has to wait for the whole.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from onejob.jobs.lifecycle import State
from onejob.stores.redis.operations import Call, Operation, Read, rows

if TYPE_CHECKING:
    from onejob.jobs.model import Job, Query
    from onejob.stores.redis.keys import Keys

LOOKS = 250
"""How many jobs one request looks at, at most: the server is held up for less than a millisecond."""


class _Walk:
    """Goes through the ids of the time that a query is about, the newest first, a page at a time."""

    def __init__(self, keys: Keys, query: Query) -> None:
        self._keys = keys
        self._query = query
        self._newest, self._oldest = _times(query)
        self._skip = 0

    def page(self) -> Operation[list[str] | None]:
        """Return the next ids; None at the end."""
        place = (self._newest, self._oldest, "WITHSCORES", "LIMIT", str(self._skip), str(LOOKS))
        (flat,) = yield Read([("ZREVRANGEBYSCORE", self._keys.jobs, *place)])
        ids, times = flat[::2], flat[1::2]
        if not ids:
            return None
        # The next page begins at this page's last time, behind the ids of that time which were seen.
        self._skip = times.count(times[-1]) + (self._skip if times[-1] == self._newest else 0)
        self._newest = times[-1]
        return [job_id for job_id, at in zip(ids, times, strict=True) if _comes_after(self._query, job_id, at)]


def find(keys: Keys, query: Query) -> Operation[list[Job]]:
    """Return jobs, newest first."""
    found: list[Job] = []
    walk, left = _Walk(keys, query), query.offset
    while len(found) < query.limit and (ids := (yield from walk.page())) is not None:
        if _filters(query):
            looks = yield from _look(keys, query, ids)
            ids = [job_id for job_id, state in zip(ids, looks, strict=True) if state]
        passed_over, left = left, max(left - len(ids), 0)
        found += yield from _rows(keys, query, ids[passed_over:], query.limit - len(found))
    return found


def counts(keys: Keys, query: Query) -> Operation[dict[State, int]]:
    """Return how many jobs match, by state."""
    walk, found = _Walk(keys, replace(query, before=None, before_id=None)), Counter[str]()
    while (ids := (yield from walk.page())) is not None:
        found.update((yield from _look(keys, query, ids)))
    return {State(state): count for state, count in found.items() if state}


def _times(query: Query) -> tuple[str, str]:
    """Return the largest and the smallest time to look at, as Redis writes it: "(" excludes the time itself."""
    newest = "+inf" if query.until is None else f"({query.until}"
    if query.before is not None and (query.until is None or query.before < query.until):
        newest = f"({query.before}" if query.before_id is None else str(query.before)
    return newest, "-inf" if query.since is None else str(query.since)


def _comes_after(query: Query, job_id: str, at: str) -> bool:
    """Tell whether a job at or before the time of `before` comes after the job to continue from."""
    return query.before_id is None or float(at) != query.before or job_id < query.before_id


def _filters(query: Query) -> bool:
    return bool(query.states) or (query.task, query.identity, query.submitter, query.reason) != (None,) * 4


def _look(keys: Keys, query: Query, ids: list[str]) -> Operation[list[str]]:
    """Return the states of those jobs that match, and "" for each other one."""
    wanted = {name: getattr(query, name) for name in ("states", "task", "identity", "submitter", "reason")}
    looks: list[str] = yield Call("filter_jobs", tuple(map(keys.job, ids)), wanted)
    return looks


def _rows(keys: Keys, query: Query, ids: list[str], wanted: int) -> Operation[list[Job]]:
    """Return at most so many jobs; one that has changed its state meanwhile may match no longer."""
    found: list[Job] = []
    while ids and len(found) < wanted:
        count = wanted - len(found)
        jobs = yield from rows(keys, ids[:count])
        found += [job for job in jobs if not query.states or job.state in query.states]
        ids = ids[count:]
    return found

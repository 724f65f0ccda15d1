"""Listing and counting jobs: pages of ids ordered by `created_at`, then only the rows that are returned.

A filter that matches few jobs reads every job of the time range, and so does a count. Each request reads one page, so
that other clients do not wait for the whole scan.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from onejob.jobs.lifecycle import State
from onejob.stores.redis.operations import Call, Operation, Read, read_jobs
from onejob.stores.redis.row import format_value

if TYPE_CHECKING:
    from onejob.jobs.model import Job
    from onejob.jobs.records import Query
    from onejob.stores.redis.keys import Keys

_FILTERS = ("task", "tasks", "identity", "submitter", "reason")
PAGE_SIZE = 250
"""How many jobs one request filters at most: it blocks the server for less than a millisecond."""


class _IdPages:
    """Iterates over the ids in the time range of a query, newest first, a page at a time."""

    def __init__(self, keys: Keys, query: Query) -> None:
        self._keys = keys
        self._query = query
        self._newest, self._oldest = _time_range(query)
        self._skip = 0

    def next_page(self) -> Operation[list[str] | None]:
        """Return the next ids; None after the last page."""
        arguments = (self._newest, self._oldest, "WITHSCORES", "LIMIT", str(self._skip), str(PAGE_SIZE))
        (flat,) = yield Read([("ZREVRANGEBYSCORE", self._keys.jobs, *arguments)])
        ids, times = flat[::2], flat[1::2]
        if not ids:
            return None
        # The next page starts at the last time of this page, after the ids of that time that were returned.
        self._skip = times.count(times[-1]) + (self._skip if times[-1] == self._newest else 0)
        self._newest = times[-1]
        return [job_id for job_id, at in zip(ids, times, strict=True) if _is_after(self._query, job_id, at)]


def find(keys: Keys, query: Query) -> Operation[list[Job]]:
    """Return jobs, newest first."""
    found: list[Job] = []
    pages, to_skip = _IdPages(keys, query), query.offset
    while len(found) < query.limit and (ids := (yield from pages.next_page())) is not None:
        if _has_filter(query):
            states = yield from _filter_jobs(keys, query, ids)
            ids = [job_id for job_id, state in zip(ids, states, strict=True) if state]
        skipped, to_skip = to_skip, max(to_skip - len(ids), 0)
        found += yield from _read_jobs(keys, query, ids[skipped:], query.limit - len(found))
    return found


def counts(keys: Keys, query: Query, *, limit: int | None = None) -> Operation[dict[State, int]]:
    """Return how many jobs match, by state; with `limit` of the newest so many."""
    pages, found = _IdPages(keys, replace(query, before=None, before_id=None)), Counter[str]()
    while (limit is None or found.total() < limit) and (ids := (yield from pages.next_page())) is not None:
        states = [state for state in (yield from _filter_jobs(keys, query, ids)) if state]
        found.update(states[: None if limit is None else limit - found.total()])
    return {State(state): count for state, count in found.items()}


def _time_range(query: Query) -> tuple[str, str]:
    """Return the newest and the oldest time of a query in the syntax of ZRANGEBYSCORE: "(" excludes the time itself."""
    newest = "+inf" if query.until is None else f"({query.until}"
    if query.before is not None and (query.until is None or query.before < query.until):
        newest = f"({query.before}" if query.before_id is None else str(query.before)
    return newest, "-inf" if query.since is None else str(query.since)


def _is_after(query: Query, job_id: str, at: str) -> bool:
    """Return whether a job, created at `before` or earlier, is listed after the job to continue from."""
    return query.before_id is None or float(at) != query.before or job_id < query.before_id


def _has_filter(query: Query) -> bool:
    return bool(query.states) or query.unsettled or any(getattr(query, name) is not None for name in _FILTERS)


def _filter_jobs(keys: Keys, query: Query, ids: list[str]) -> Operation[list[str]]:
    """Return the state of each job that matches, and "" for the others."""
    tasks = None if query.tasks is None else json.dumps(sorted(query.tasks))
    filters = (query.task, tasks, query.identity, query.submitter, query.reason)
    texts = ("" if value is None else f"={value}" for value in filters)
    values = (" ".join(query.states), format_value(query.unsettled), *texts)
    states: list[str] = yield Call("filter_jobs", tuple(map(keys.job, ids)), values)
    return states


def _read_jobs(keys: Keys, query: Query, ids: list[str], limit: int) -> Operation[list[Job]]:
    """Return at most `limit` jobs, without those whose state has changed since they were filtered."""
    found: list[Job] = []
    while ids and len(found) < limit:
        count = limit - len(found)
        jobs = yield from read_jobs(keys, ids[:count], light=query.light)
        found += [job for job in jobs if not query.states or job.state in query.states]
        ids = ids[count:]
    return found

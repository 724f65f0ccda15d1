"""Listing and counting jobs: pages of ids in the order of `created_at`, then only the rows that are returned.

A filter that matches few jobs reads every job of the time range, or of the sorted set of a state, and so does a count.
Each request reads one page, so that other clients do not wait for the whole scan.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Protocol

from onejob.jobs.lifecycle import State
from onejob.jobs.records import group_backlog
from onejob.stores.redis.operations import Batch, Call, Operation, Read, read_jobs
from onejob.stores.redis.row import format_value
from onejob.stores.state_index import indexed_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onejob.jobs.model import Job
    from onejob.jobs.records import Backlog, Query
    from onejob.stores.redis.keys import Keys

PAGE_SIZE = 250
"""How many jobs one request filters at most: it blocks the server for less than a millisecond."""


class _Pages(Protocol):
    """The ids of the jobs among which a query filters, newest first, a page at a time."""

    def next_page(self) -> Operation[list[str] | None]:
        """Return the next ids; None after the last page."""
        ...


class _SetPages:
    """The ids of a sorted set of `created_at` in the time range of a query."""

    def __init__(self, sorted_set: str, query: Query) -> None:
        self._set = sorted_set
        self._query = query
        self._newest, self._oldest = _time_range(query)
        self._skip = 0

    def next_page(self) -> Operation[list[str] | None]:
        """Return the next ids; None after the last page."""
        arguments = (self._newest, self._oldest, "WITHSCORES", "LIMIT", str(self._skip), str(PAGE_SIZE))
        (flat,) = yield Read([("ZREVRANGEBYSCORE", self._set, *arguments)])
        ids, times = flat[::2], flat[1::2]
        if not ids:
            return None
        # The next page starts at the last time of this page, after the ids of that time that were returned.
        self._skip = times.count(times[-1]) + (self._skip if times[-1] == self._newest else 0)
        self._newest = times[-1]
        return [job_id for job_id, at in zip(ids, times, strict=True) if _is_after(self._query, job_id, float(at))]


class _RunPages:
    """The ids of the running jobs in the time range of a query. They are few, so all are read first."""

    def __init__(self, keys: Keys, query: Query) -> None:
        self._keys = keys
        self._query = query
        self._ids: list[str] | None = None

    def next_page(self) -> Operation[list[str] | None]:
        """Return the next ids; None after the last page."""
        if self._ids is None:
            (ids,) = yield Read([("ZRANGEBYSCORE", self._keys.leases, "-inf", "+inf")])
            created = yield from _creation_times(self._keys, ids)
            newest_first = sorted(created, key=lambda job_id: (created[job_id], job_id), reverse=True)
            self._ids = [job_id for job_id in newest_first if _is_in_range(self._query, job_id, created[job_id])]
        page, self._ids = self._ids[:PAGE_SIZE], self._ids[PAGE_SIZE:]
        return page or None


def find(keys: Keys, query: Query) -> Operation[list[Job]]:
    """Return jobs, newest first."""
    found: list[Job] = []
    pages, to_skip = _pages(keys, query), query.offset
    while len(found) < query.limit and (ids := (yield from pages.next_page())) is not None:
        if query.filters:
            states = yield from _filter_jobs(keys, query, ids)
            ids = [job_id for job_id, state in zip(ids, states, strict=True) if state]
        skipped, to_skip = to_skip, max(to_skip - len(ids), 0)
        found += yield from _read_jobs(keys, query, ids[skipped:], query.limit - len(found))
    return found


def counts(keys: Keys, query: Query, *, limit: int | None = None) -> Operation[dict[State, int]]:
    """Return how many jobs match, by state; with `limit` of the newest so many."""
    pages, found = _pages(keys, replace(query, before=None, before_id=None)), Counter[str]()
    while (limit is None or found.total() < limit) and (ids := (yield from pages.next_page())) is not None:
        states = [state for state in (yield from _filter_jobs(keys, query, ids)) if state]
        found.update(states[: None if limit is None else limit - found.total()])
    return {State(state): count for state, count in found.items()}


def count_states(keys: Keys, *, limit: int) -> Operation[dict[State, int]]:
    """Return how many jobs are in each state, each up to `limit`, by the sizes of the sorted sets."""
    sets = [keys.jobs, keys.leases, keys.ended, *keys.state_sets.values()]
    jobs, running, ended, *sizes = yield Read([("ZCARD", sorted_set) for sorted_set in sets])
    found = dict(zip(keys.state_sets, sizes, strict=True)) | {State.RUNNING: running}
    found[State.QUEUED] = jobs - running - ended - found[State.RETRYING]
    found[State.COMPLETED] = ended - found[State.FAILED] - found[State.CANCELED]
    return {state: min(max(found[state], 0), limit) for state in State}


def edge(keys: Keys, query: Query, *, skip: int) -> Operation[float | None]:
    """Return when the job was created that is `skip` places after the position of a query."""
    newest, oldest = _time_range(query)
    equal: list[str] = []
    if newest == str(query.before):  # the jobs of that time before the position are skipped, too
        (equal,) = yield Read([("ZRANGEBYSCORE", keys.jobs, newest, newest)])
        skip += sum(not _is_after(query, job_id, float(newest)) for job_id in equal)
    command = ("ZREVRANGEBYSCORE", keys.jobs, newest, oldest, "WITHSCORES", "LIMIT", str(skip), "1")
    (flat,) = yield Read([command])
    return float(flat[1]) if flat else None


def backlog(keys: Keys, *, tasks: frozenset[str], limit: int, submitter: str | None = None) -> Operation[list[Backlog]]:
    """Return the waiting jobs by task, queue and state."""
    due_first = ("-inf", "+inf", "LIMIT", "0", str(limit))
    found = yield Read([("ZRANGEBYSCORE", keys.wake(task), *due_first) for task in sorted(tasks)])
    ids = [job_id for each in found for job_id in each]
    values = ("" if submitter is None else f"={submitter}",)
    pages = [tuple(map(keys.job, ids[start : start + PAGE_SIZE])) for start in range(0, len(ids), PAGE_SIZE)]
    replies = yield Batch([Call("backlog", page, values) for page in pages])
    return group_backlog(flat[start : start + 5] for flat in replies for start in range(0, len(flat), 5))


def followers(keys: Keys, job_id: str, *, limit: int) -> Operation[list[Job]]:
    """Return the jobs that follow a job, oldest first. The key of its followers has some that do no more."""
    (flat,) = yield Read([("HGETALL", keys.followers(job_id))])
    created = yield from _creation_times(keys, flat[::2])
    ids = sorted(created, key=lambda follower_id: (created[follower_id], follower_id))
    found: list[Job] = []
    while ids and len(found) < limit:
        count = limit - len(found)
        found += [job for job in (yield from read_jobs(keys, ids[:count])) if job.follows_id == job_id]
        ids = ids[count:]
    return found


def _pages(keys: Keys, query: Query) -> _Pages:
    state = indexed_state(query)
    if state is State.RUNNING:
        return _RunPages(keys, query)
    return _SetPages(keys.jobs if state is None else keys.state_sets[state], query)


def _creation_times(keys: Keys, ids: Sequence[str]) -> Operation[dict[str, float]]:
    """Return `created_at` of those of the jobs that exist."""
    pages = [ids[start : start + PAGE_SIZE] for start in range(0, len(ids), PAGE_SIZE)]
    replies = yield Read([("ZMSCORE", keys.jobs, *page) for page in pages])
    times = (at for reply in replies for at in reply)
    return {job_id: float(at) for job_id, at in zip(ids, times, strict=True) if at is not None}


def _time_range(query: Query) -> tuple[str, str]:
    """Return the newest and the oldest time of a query in the syntax of ZRANGEBYSCORE: "(" excludes the time itself."""
    newest = "+inf" if query.until is None else f"({query.until}"
    if query.before is not None and (query.until is None or query.before < query.until):
        newest = f"({query.before}" if query.before_id is None else str(query.before)
    return newest, "-inf" if query.since is None else str(query.since)


def _is_in_range(query: Query, job_id: str, at: float) -> bool:
    """Return whether a job is in the time range of a query, and listed after the job to continue from."""
    since, until, before = (-inf if query.since is None else query.since), query.until, query.before
    if at < since or (until is not None and at >= until):
        return False
    return before is None or at < before or (query.before_id is not None and at == before and job_id < query.before_id)


def _is_after(query: Query, job_id: str, at: float) -> bool:
    """Return whether a job, created at `before` or earlier, is listed after the job to continue from."""
    return query.before_id is None or at != query.before or job_id < query.before_id


def _filter_jobs(keys: Keys, query: Query, ids: list[str]) -> Operation[list[str]]:
    """Return the state of each job that matches, and "" for the others."""
    tasks = None if query.tasks is None else json.dumps(sorted(query.tasks))
    filters = (
        query.task, tasks, query.identity, query.submitter, query.reason, query.queue, query.node, query.arguments,
    )  # fmt: skip
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

"""Lists and counts jobs: reads pages of ids in the order of `created_at`, then only the rows that are returned.

A filter that matches few jobs reads every job of the time range in the sorted set of its submitter or its state, or of
all jobs, and so does a count.
Each request reads one page, so that other clients do not wait for the whole scan.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf

from onejob.jobs.backlog import Backlog, group_backlog
from onejob.jobs.lifecycle import State
from onejob.jobs.model import JobRow
from onejob.jobs.query import Query
from onejob.stores.protocol import Index, index_of, indexed_state, is_indexed
from onejob.stores.redis.client import Call, Part, pages_of

PAGE_SIZE = 250
"""How many jobs one request filters at most: it blocks the server for less than a millisecond."""


class Queries(Part):
    """The part of the store that finds jobs by other criteria than their ids."""

    def find(self, query: Query) -> list[JobRow]:
        found: list[JobRow] = []
        to_skip = query.offset
        for page in self._pages(query):
            ids = page
            if query.states or not is_indexed(query):
                ids = [job_id for job_id, state in zip(page, self._filter(query, page), strict=True) if state]
            skipped, to_skip = to_skip, max(to_skip - len(ids), 0)
            # The state of some may have changed since they were filtered.
            found += self._read_some(
                ids[skipped:], query.limit - len(found), lambda job: _is_still_listed(query, job), light=query.light
            )
            if len(found) >= query.limit:
                break
        return found

    def counts(self, query: Query, *, limit: int | None = None) -> dict[State, int]:
        found = Counter[str]()
        for ids in self._pages(replace(query, before=None, before_id=None)):
            states = [state for state in self._filter(query, ids) if state]
            found.update(states[: None if limit is None else limit - found.total()])
            if limit is not None and found.total() >= limit:
                break
        return {State(state): count for state, count in found.items()}

    def count_states(self, *, limit: int) -> dict[State, int]:
        keys = self._keys
        sets = [keys.jobs, keys.leases, keys.ended, *keys.state_sets.values()]
        jobs, running, ended, *sizes = self._client.read(*(("ZCARD", sorted_set) for sorted_set in sets))
        found = dict(zip(keys.state_sets, sizes, strict=True)) | {State.RUNNING: running}
        found[State.QUEUED] = jobs - running - ended - found[State.RETRYING]
        found[State.COMPLETED] = ended - found[State.FAILED] - found[State.CANCELED]
        return {state: min(max(found[state], 0), limit) for state in State}

    def is_indexed(self, query: Query) -> bool:
        return is_indexed(query)

    def edge(self, query: Query, *, skip: int) -> float | None:
        if index_of(query) is Index.RUNS:
            times = [at for job_id, at in self._runs().items() if _is_listed(query, job_id, at)]
            return times[skip] if skip < len(times) else None
        sorted_set, (newest, oldest) = self._set_of(query), _time_range(query)
        if newest == str(query.before):  # the jobs of that time before the position are skipped, too
            (equal,) = self._client.read(("ZRANGEBYSCORE", sorted_set, newest, newest))
            skip += sum(not _is_listed(query, job_id, float(newest)) for job_id in equal)
        command = ("ZREVRANGEBYSCORE", sorted_set, newest, oldest, "WITHSCORES", "LIMIT", str(skip), "1")
        (flat,) = self._client.read(command)
        return float(flat[1]) if flat else None

    def index_submitters(self) -> int:
        """Add the jobs of an earlier version to the sets of their submitters; return how many were not in them."""
        prefix, added = self._keys.submitter(""), 0
        for ids in self._pages(Query()):
            added += self._client.call("index_submitters", (prefix, *map(self._keys.job, ids)), tuple(ids))
        return added

    def backlog(self, *, tasks: frozenset[str], limit: int, submitter: str | None = None) -> list[Backlog]:
        due_first = ("-inf", "+inf", "LIMIT", "0", str(limit))
        waiting = (("ZRANGEBYSCORE", self._keys.wake(task), *due_first) for task in sorted(tasks))
        found = self._client.read(("ZRANGEBYSCORE", self._keys.leases, "-inf", "+inf"), *waiting)
        ids = list(dict.fromkeys(job_id for each in found for job_id in each))  # one may be claimed meanwhile
        values = ("" if submitter is None else f"={submitter}", *tasks)
        calls = [Call("backlog", tuple(map(self._keys.job, page)), values) for page in pages_of(ids, PAGE_SIZE)]
        replies = self._client.send(calls)
        return group_backlog(flat[start : start + 6] for flat in replies for start in range(0, len(flat), 6))

    def followers(self, job_id: str, *, limit: int) -> list[JobRow]:
        (flat,) = self._client.read(("HGETALL", self._keys.followers(job_id)))
        # The key of its followers has some that follow it no more.
        return self._read_some([*self._creation_times(flat[::2])], limit, lambda job: job.follows_id == job_id)

    def _pages(self, query: Query) -> Iterator[Sequence[str]]:
        """Yield the ids of the jobs among which a query filters, newest first, a page at a time."""
        if index_of(query) is Index.RUNS:
            runs = [job_id for job_id, at in self._runs().items() if _is_listed(query, job_id, at)]
            yield from pages_of(runs, PAGE_SIZE)
        else:
            yield from self._pages_of_set(self._set_of(query), query)

    def _set_of(self, query: Query) -> str:
        """Return the sorted set that leads to the jobs of a query, but for runs."""
        if index_of(query) is Index.SUBMITTER:
            return self._keys.submitter(query.submitter or "")
        state = indexed_state(query)
        return self._keys.jobs if state is None else self._keys.state_sets[state]

    def _runs(self) -> dict[str, float]:
        """Return the `created_at` of running jobs, newest first: they are few, so all are read."""
        (running,) = self._client.read(("ZRANGEBYSCORE", self._keys.leases, "-inf", "+inf"))
        return dict(reversed(self._creation_times(running).items()))

    def _pages_of_set(self, sorted_set: str, query: Query) -> Iterator[Sequence[str]]:
        """Yield the ids of a sorted set of `created_at` in the time range of a query."""
        newest, oldest = _time_range(query)
        skip = 0
        while True:
            arguments = (newest, oldest, "WITHSCORES", "LIMIT", str(skip), str(PAGE_SIZE))
            (flat,) = self._client.read(("ZREVRANGEBYSCORE", sorted_set, *arguments))
            ids, times = flat[::2], flat[1::2]
            if not ids:
                return
            # The next page starts at the last time of this page, after the ids of that time that were returned.
            skip = times.count(times[-1]) + (skip if times[-1] == newest else 0)
            newest = times[-1]
            yield [job_id for job_id, at in zip(ids, times, strict=True) if _is_listed(query, job_id, float(at))]

    def _creation_times(self, ids: Sequence[str]) -> dict[str, float]:
        """Return the `created_at` of the jobs that exist by id, in this order."""
        replies = self._client.read(*(("ZMSCORE", self._keys.jobs, *page) for page in pages_of(ids, PAGE_SIZE)))
        times = (at for reply in replies for at in reply)
        found = [(float(at), job_id) for job_id, at in zip(ids, times, strict=True) if at is not None]
        return {job_id: at for at, job_id in sorted(found)}

    def _filter(self, query: Query, ids: Sequence[str]) -> list[str]:
        """Return the state of each job that matches, and "" for every other job."""
        filters = json.dumps({name: getattr(query, name) for name in query.filters}, default=sorted)
        states: list[str] = self._client.call("filter_jobs", tuple(map(self._keys.job, ids)), (filters,))
        return states

    def _read_some(
        self, ids: Sequence[str], limit: int, matches: Callable[[JobRow], bool], *, light: bool = False
    ) -> list[JobRow]:
        """Return the first jobs that match, at most `limit`."""
        found: list[JobRow] = []
        while ids and len(found) < limit:
            count = limit - len(found)
            found += filter(matches, self._read_jobs(ids[:count], light=light))
            ids = ids[count:]
        return found


def _time_range(query: Query) -> tuple[str, str]:
    """Return the newest and the oldest time of a query in the syntax of ZRANGEBYSCORE: "(" excludes the time itself."""
    newest = "+inf" if query.until is None else f"({query.until}"
    if query.before is not None and (query.until is None or query.before < query.until):
        newest = f"({query.before}" if query.before_id is None else str(query.before)
    return newest, "-inf" if query.since is None else str(query.since)


def _is_still_listed(query: Query, job: JobRow) -> bool:
    """Return whether a found job still has the state and the submitter of a query; a new job may have its id."""
    is_submitters = not query.submitter or job.submitter == query.submitter
    return is_submitters and (not query.states or job.state in query.states)


def _is_listed(query: Query, job_id: str, at: float) -> bool:
    """Return whether a job is in the time range of a query, and listed after the job to continue from."""
    since, until = -inf if query.since is None else query.since, inf if query.until is None else query.until
    is_after = query.before is None or (at, job_id) < (query.before, query.before_id or "")
    return since <= at < until and is_after

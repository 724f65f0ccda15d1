"""Pages of jobs: bounded in bytes and in how many are read at once, with counts that are bounded in rows."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from anyio import CapacityLimiter, to_thread
from starlette.responses import Response

from onejob.api.batching import Batcher, PerLoop
from onejob.api.response_models import ListedJob, PageEnd, encode_cursor
from onejob.jobs.public_view import job_to_dict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from onejob.jobs.lifecycle import State
    from onejob.jobs.model import Job
    from onejob.jobs.records import Query
    from onejob.ledger.ledger import Ledger

PAGE_BYTES = 1_000_000
"""The size of the jobs of a page after which it ends; one job is always returned, however large."""
READ_AT_ONCE = 8
"""How many jobs are read at once with their large fields."""
MAX_PAGES = 4
"""How many pages a process reads at once."""
COUNT_LIMIT = 10_000
"""How many jobs are counted at most."""


class Include(StrEnum):
    """A field of a job that a list has only on request, since it may be large."""

    PROGRESS = "progress"
    RESULT = "result"


class JobPages:
    """Reads pages of jobs in threads, a few at once; counts each query once for all who request it meanwhile."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._limiters = PerLoop(lambda: CapacityLimiter(MAX_PAGES))
        self._counters: PerLoop[Batcher[Query, dict[State, int]]] = PerLoop(lambda: Batcher(self._count_all))

    async def respond(self, query: Query, include: Sequence[Include], *, count: bool = False) -> Response:
        """Respond with a page of jobs, and with `count` the number of all matching jobs."""
        counts = await self._counters.current().process(_without_page(query)) if count else None
        render = partial(self._render, query, frozenset(include), counts)
        content = await to_thread.run_sync(render, limiter=self._limiters.current())
        return Response(content, media_type="application/json")

    def _count_all(self, queries: Sequence[Query]) -> list[dict[State, int]]:
        found = {query: self._ledger.counts(query, limit=COUNT_LIMIT) for query in set(queries)}
        return [found[query] for query in queries]

    def _render(self, query: Query, include: frozenset[Include], counts: dict[State, int] | None) -> str:
        found = self._ledger.find(replace(query, light=True))
        texts: list[str] = []
        size = 0
        for job in self._with_large_fields(found) if include else found:
            text = _render_job(job, include)
            size += len(text)
            if texts and size > PAGE_BYTES:
                break
            texts.append(text)
        is_last = len(texts) == len(found) < query.limit
        end = _end_of_page(None if is_last else found[len(texts) - 1], counts)
        return f'{{"jobs":[{",".join(texts)}],{end[1:]}'

    def _with_large_fields(self, jobs: Sequence[Job]) -> Iterator[Job]:
        """Yield the jobs with their large fields; one that was deleted meanwhile has none."""
        for start in range(0, len(jobs), READ_AT_ONCE):
            page = jobs[start : start + READ_AT_ONCE]
            found = self._ledger.store.get_many([job.id for job in page])
            yield from (found.get(job.id, job) for job in page)


def _without_page(query: Query) -> Query:
    return replace(query, before=None, before_id=None, offset=0, limit=0)


def _render_job(job: Job, include: frozenset[Include]) -> str:
    fields: dict[str, Any] = job_to_dict(job)
    for name in Include:
        if name not in include:
            del fields[name]
    return ListedJob(**fields).model_dump_json(exclude_unset=True)


def _end_of_page(last: Job | None, counts: dict[State, int] | None) -> str:
    cursor = None if last is None else encode_cursor(last)
    if counts is None:
        return PageEnd(next=cursor).model_dump_json(exclude_unset=True)
    total = sum(counts.values())
    return PageEnd(next=cursor, total=total, total_is_capped=total >= COUNT_LIMIT, by_state=counts).model_dump_json()

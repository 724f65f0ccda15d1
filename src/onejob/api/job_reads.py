"""Reading jobs over HTTP: pages of them, and waiting for a change of one.

Pages are bounded in bytes and in how many are read at once, with counts that are bounded in rows. Each caller
has a limit of waits.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from enum import StrEnum
from functools import partial
from threading import Event
from typing import Any

from anyio import CapacityLimiter, to_thread
from pydantic_core import to_json
from starlette.responses import Response

from onejob.api.callers import Permissions
from onejob.api.problems import Problem
from onejob.api.response_models import Cursor, PageEnd
from onejob.celery.async_reads import Watch, Watcher
from onejob.celery.batching import Batcher, PerEventLoop, or_error
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Job
from onejob.jobs.public_view import job_to_dict
from onejob.jobs.records import Query
from onejob.ledger.ledger import Ledger
from onejob.ledger.reader import Visibility

PAGE_BYTES = 1_000_000
"""The size of the jobs of a page after which it ends; one job is always returned, however large."""
READ_AT_ONCE = 8
"""How many jobs are read at once with their large fields."""
MAX_PAGES = 4
"""How many pages a process reads at once."""
COUNT_LIMIT = 10_000


class Include(StrEnum):
    """A field of a job that a list has only on request, since it may be large."""

    PROGRESS = "progress"
    RESULT = "result"


class JobPages:
    """Reads pages of jobs in threads, a few at once; counts each query once for all who request it meanwhile."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._limiters = PerEventLoop(lambda: CapacityLimiter(MAX_PAGES))
        self._counters: PerEventLoop[Batcher[Query, dict[State, int]]] = PerEventLoop(lambda: Batcher(self._count_all))

    async def respond(
        self, query: Query, permissions: Permissions, include: Sequence[Include], *, count: bool = False
    ) -> Response:
        """Respond with a page of the jobs that the caller sees, and with `count` the number of all matching jobs.

        Raises `Problem` for a caller who may not read figures, if `count` is set.
        """
        visibility, totals = permissions.visibility, dict[str, Any]()
        narrowed = visibility.narrow(query)
        if count:
            permissions.check("statistics")
            counts = dict.fromkeys(State, 0)
            if narrowed is not None:
                counted = replace(narrowed, before=None, before_id=None, offset=0, limit=0)
                counts = await self._counters.current().process(counted)
            total = sum(counts.values())
            totals = {"total": total, "total_is_capped": total >= COUNT_LIMIT, "by_state": counts}

        def render() -> str:
            texts, cursor = ([], None) if narrowed is None else self._read_page(narrowed, visibility, include)
            end = PageEnd(next=None if cursor is None else cursor.encode(), **totals)
            return f'{{"jobs":[{",".join(texts)}],{end.model_dump_json(exclude_unset=True)[1:]}'

        content = await to_thread.run_sync(render, limiter=self._limiters.current())
        return Response(content, media_type="application/json")

    def _count_all(self, queries: Sequence[Query]) -> list[dict[State, int] | Exception]:
        found = {query: or_error(partial(self._ledger.counts, query, limit=COUNT_LIMIT)) for query in set(queries)}
        return [found[query] for query in queries]

    def _read_page(
        self, query: Query, visibility: Visibility, include: Sequence[Include]
    ) -> tuple[list[str], Cursor | None]:
        """Return the jobs of a page as JSON, and the position after them; None after the last page.

        The position is relative to the last job that the caller sees, so that it does not disclose another job.
        """
        found, hidden = self._ledger.find(replace(query, light=True)), {*Include} - {*include}
        texts, size, cursor = list[str](), 0, Cursor(query.before, query.before_id, query.offset)
        for job in self._with_large_fields(found, visibility) if include or visibility.predicate else found:
            if not visibility.includes(job):
                cursor = replace(cursor, offset=cursor.offset + 1)
                continue
            shown = {name: value for name, value in job_to_dict(job).items() if name not in hidden}
            text = to_json(shown, inf_nan_mode="null").decode()
            size += len(text)
            if texts and size > PAGE_BYTES:
                return texts, cursor
            texts.append(text)
            cursor = Cursor(job.created_at, job.id)
        return texts, None if len(found) < query.limit else cursor

    def _with_large_fields(self, jobs: Sequence[Job], visibility: Visibility) -> Iterator[Job]:
        """Yield the jobs with their large fields; one that was deleted meanwhile has none.

        A predicate needs these fields, so with one a job that was deleted is left out.
        """
        for start in range(0, len(jobs), READ_AT_ONCE):
            page = jobs[start : start + READ_AT_ONCE]
            found = self._ledger.store.get_many([job.id for job in page])
            yield from (found.get(job.id, job) for job in page if visibility.predicate is None or job.id in found)


PROGRESS_INTERVAL = 0.25
"""Seconds between two reads of the watched jobs: their ends are signaled, their progress is not."""
WAITS_PER_CALLER = 250
"""How many event streams and long polls of one caller may be open in a process."""


class JobWatcher(Watcher):
    """Reads the watched jobs of callers, each of which has a limit of waits."""

    def __init__(
        self,
        ledger: Ledger,
        interval: float = PROGRESS_INTERVAL,
        closing: Event | None = None,
        waits_per_caller: int = WAITS_PER_CALLER,
    ) -> None:
        super().__init__(ledger, interval, closing)
        self._waits_per_caller = waits_per_caller
        self._waits: Counter[str] = Counter()

    def check_waits(self, caller: str) -> None:
        """Raise `Problem` if a caller has no wait left, before a response begins that will need one."""
        if self._waits[caller] >= self._waits_per_caller:
            detail = f"{self._waits_per_caller} event streams and long polls of this caller are open"
            raise Problem("too-many-waits", detail, headers={"retry-after": "5"})

    @asynccontextmanager
    async def watch(self, job: Job, caller: str = "") -> AsyncIterator[Watch]:
        """Watch a job, whose version the caller has read, for the duration of the context."""
        with self.counted(caller):
            async with super().watch(job) as watch:
                yield watch

    @contextmanager
    def counted(self, caller: str) -> Iterator[None]:
        """Count a wait of a caller for the duration of the context."""
        self._waits[caller] += 1
        try:
            yield
        finally:
            self._waits[caller] -= 1
            if not self._waits[caller]:
                del self._waits[caller]

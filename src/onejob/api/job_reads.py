"""Reading jobs over HTTP: pages of jobs, and waiting for a change of a job.

A page is limited in bytes and in time, a count in rows, and few pages are read at once. Each caller has a limit of
waits.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from enum import StrEnum
from itertools import islice
from threading import Event
from typing import Any

from fastapi import Request
from pydantic_core import to_json
from starlette.responses import Response

from onejob.api.callers import permissions_of
from onejob.api.fair_threads import LISTS, SEARCHES, IsOver
from onejob.api.problems import Problem
from onejob.api.response_models import PageEnd
from onejob.celery.results.async_reads import Watch, Watcher
from onejob.jobs.lifecycle import State
from onejob.jobs.model import JobRow
from onejob.jobs.public_view import job_to_dict
from onejob.jobs.query import Query
from onejob.ledger.cursor import Cursor
from onejob.ledger.ledger import Ledger
from onejob.ledger.reader import Visibility
from onejob.ledger.search import count_states, read_window, windows

PAGE_BYTES = 1_000_000
"""The size of the jobs of a page after which it ends; one job is always returned, however large."""
READ_AT_ONCE = 8
"""The number of jobs that are read at once with their large fields."""
SKIPPED_AT_ONCE = 1000
"""The number of jobs that are read at once to be skipped."""
COUNT_LIMIT = 10_000
SEARCH_SECONDS = 0.25
"""The seconds for which one request may search for jobs, and count them, beyond its first step."""


class Include(StrEnum):
    """A field of a job that a list has only on request, since it may be large."""

    PROGRESS = "progress"
    RESULT = "result"


class JobPages:
    """Reads pages of jobs, and counts them, for a limited time: a search without an index takes several pages."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def respond(
        self, request: Request, query: Query, include: Sequence[Include], *, count: bool = False
    ) -> Response:
        """Respond with a page of the jobs that the caller sees, and with `count` the number of all matching jobs.

        Raises `Problem` for a caller who may not read figures, if `count` is set.
        """
        permissions = permissions_of(request)
        if count:
            permissions.check("statistics")
        visibility = permissions.visibility
        narrowed = visibility.narrow(query)

        def render(is_over: IsOver) -> str:
            texts, cursor, totals = list[str](), None, dict[str, Any]()
            if narrowed is not None:
                texts, cursor = self._read_page(narrowed, visibility, include, is_over)
            if count:
                totals = self._count(narrowed, is_over)
            end = PageEnd(next=None if cursor is None else cursor.encode(), **totals)
            return f'{{"jobs":[{",".join(texts)}],{end.model_dump_json(exclude_unset=True)[1:]}'

        is_search = count or narrowed is None or not self._ledger.is_indexed(narrowed)
        threads = (SEARCHES if is_search else LISTS).current()
        content = await threads.run(request, SEARCH_SECONDS, render)
        return Response(content, media_type="application/json")

    def _count(self, query: Query | None, is_over: IsOver) -> dict[str, Any]:
        by_state, is_complete = dict.fromkeys(State, 0), True
        if query is not None:
            counted = replace(query, before=None, before_id=None)
            by_state, is_complete = count_states(self._ledger, counted, limit=COUNT_LIMIT, is_over=is_over)
        return {"total": sum(by_state.values()), "total_is_capped": not is_complete, "by_state": by_state}

    def _read_page(
        self, query: Query, visibility: Visibility, include: Sequence[Include], is_over: IsOver
    ) -> tuple[list[str], Cursor | None]:
        """Return the jobs of a page as JSON, and the position after them; None after the last page.

        The position is relative to the last job that the caller sees, so that it does not disclose another job. When
        the time is over, the position is the time back to which all jobs were searched.
        """
        hidden, left, skip = {*Include} - {*include}, query.limit, query.offset
        texts, size, cursor = list[str](), 0, Cursor(query.before, query.before_id, query.offset)
        for window, since in windows(self._ledger, query):
            jobs, skip = self._skip(window, skip, is_last=since is None)
            found = [*islice(jobs, left)]
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
            left -= len(found)
            if left == 0:
                return texts, cursor
            if since is not None and is_over():
                return texts, Cursor(since, "", skip)
        return texts, None

    def _skip(self, window: Query, skip: int, *, is_last: bool) -> tuple[Iterator[JobRow], int]:
        """Return the jobs of a window without the first `skip`, and the number of jobs to skip after the window."""
        if is_last:
            return read_window(self._ledger, replace(window, offset=skip), window.limit), 0
        jobs = read_window(self._ledger, window, max(window.limit, min(skip, SKIPPED_AT_ONCE)))
        return jobs, skip - sum(1 for _ in islice(jobs, skip))

    def _with_large_fields(self, jobs: Sequence[JobRow], visibility: Visibility) -> Iterator[JobRow]:
        """Yield the jobs with their large fields; a job that was deleted meanwhile has none.

        With a predicate, which needs these fields, a deleted job is left out.
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
        """Raise `Problem` if a caller has no wait left, before a response begins that needs a wait."""
        if self._waits[caller] >= self._waits_per_caller:
            detail = f"{self._waits_per_caller} event streams and long polls of this caller are open"
            raise Problem("too-many-waits", detail, headers={"retry-after": "5"})

    @asynccontextmanager
    async def watch(self, job: JobRow, caller: str = "") -> AsyncIterator[Watch]:
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

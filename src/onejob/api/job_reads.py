"""Reading jobs over HTTP: pages of them, and waiting for a change of one.

Pages are bounded in bytes and in how many are read at once, with counts that are bounded in rows. Each caller
has a limit of waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from threading import Event

from anyio import CapacityLimiter, to_thread
from pydantic_core import to_json
from starlette.responses import Response

from onejob.api.callers import Permissions
from onejob.api.problems import Problem
from onejob.api.response_models import Cursor, PageEnd
from onejob.celery.batching import Batcher, PerEventLoop
from onejob.celery.coroutines import Watch, Watcher
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Job
from onejob.jobs.public_view import job_to_dict
from onejob.jobs.records import Query
from onejob.jobs.visibility import Visibility
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


_LARGE = frozenset(Include)


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
        visibility = permissions.visibility
        narrowed = visibility.narrow(query)
        if count:
            permissions.check_statistics()
        counts = await self._count(narrowed) if count else None
        render = partial(self._render, narrowed, visibility, frozenset(include), counts)
        content = await to_thread.run_sync(render, limiter=self._limiters.current())
        return Response(content, media_type="application/json")

    async def _count(self, query: Query | None) -> dict[State, int]:
        if query is None:
            return dict.fromkeys(State, 0)
        return await self._counters.current().process(replace(query, before=None, before_id=None, offset=0, limit=0))

    def _count_all(self, queries: Sequence[Query]) -> list[dict[State, int] | Exception]:
        found = {query: self._try_count(query) for query in set(queries)}
        return [found[query] for query in queries]

    def _try_count(self, query: Query) -> dict[State, int] | Exception:
        """Count, or return the error, which is that of one caller."""
        try:
            return self._ledger.counts(query, limit=COUNT_LIMIT)
        except Exception as error:  # noqa: BLE001 - the batcher raises it
            return error

    def _render(
        self,
        query: Query | None,
        visibility: Visibility,
        include: frozenset[Include],
        counts: dict[State, int] | None,
    ) -> str:
        page = _Page() if query is None else self._read_page(query, visibility, include)
        return f'{{"jobs":[{",".join(page.texts)}],{_end_of_page(page.cursor, counts)[1:]}'

    def _read_page(self, query: Query, visibility: Visibility, include: frozenset[Include]) -> _Page:
        found = self._ledger.find(replace(query, light=True))
        page = _Page(cursor=Cursor(query.before, query.before_id, query.offset))
        for job in self._with_large_fields(found, visibility) if include or visibility.predicate else found:
            if not visibility.includes(job):
                page.skip()
            elif not page.add(job, _render_job(job, include)):
                return page
        if len(found) < query.limit:
            page.cursor = None
        return page

    def _with_large_fields(self, jobs: Sequence[Job], visibility: Visibility) -> Iterator[Job]:
        """Yield the jobs with their large fields; one that was deleted meanwhile has none.

        A predicate needs these fields, so with one a job that was deleted is left out.
        """
        for start in range(0, len(jobs), READ_AT_ONCE):
            page = jobs[start : start + READ_AT_ONCE]
            found = self._ledger.store.get_many([job.id for job in page])
            yield from (found.get(job.id, job) for job in page if visibility.predicate is None or job.id in found)


@dataclass(slots=True)
class _Page:
    """The jobs of a page as JSON, and the position after them; None after the last page.

    The position is relative to the last job that the caller sees, so that the cursor does not disclose another job.
    """

    texts: list[str] = field(default_factory=list)
    cursor: Cursor | None = None
    size: int = 0

    def skip(self) -> None:
        """Move the position behind a job that the caller does not see."""
        if self.cursor is not None:
            self.cursor = replace(self.cursor, offset=self.cursor.offset + 1)

    def add(self, job: Job, text: str) -> bool:
        """Add a job, and return whether it still belongs to this page."""
        self.size += len(text)
        if self.texts and self.size > PAGE_BYTES:
            return False
        self.texts.append(text)
        self.cursor = Cursor(job.created_at, job.id)
        return True


def _render_job(job: Job, include: frozenset[Include]) -> str:
    shown = {name: value for name, value in job_to_dict(job).items() if name not in _LARGE or name in include}
    return to_json(shown, inf_nan_mode="null").decode()


def _end_of_page(cursor: Cursor | None, counts: dict[State, int] | None) -> str:
    text = None if cursor is None else cursor.encode()
    if counts is None:
        return PageEnd(next=text).model_dump_json(exclude_unset=True)
    total = sum(counts.values())
    return PageEnd(next=text, total=total, total_is_capped=total >= COUNT_LIMIT, by_state=counts).model_dump_json()


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

"""Looking at jobs: one, waiting for it to change; many, page by page; and what happened to them."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Header, Request
from fastapi import Query as QueryParameter
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from pydantic import BeforeValidator, WithJsonSchema
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from onejob.api.api_keys import Role
from onejob.api.auth import handled_by, needs
from onejob.api.batching import Batcher, Deferred
from onejob.api.job_watcher import Watcher
from onejob.api.per_loop import PerLoop
from onejob.api.problems import Problem
from onejob.api.response_models import (
    DuplicateStatsView,
    DuplicateView,
    EntryView,
    JobPage,
    cursor_of,
    duplicate_view,
    entry_view,
    matches,
    place_of,
    tag_of,
    view_of,
)
from onejob.errors import JobNotFoundError
from onejob.jobs.lifecycle import State  # noqa: TC001 - FastAPI reads the hints
from onejob.jobs.records import Query
from onejob.jobs.timestamps import parse_timestamp
from onejob.ledger.dead_letters import dead_letters
from onejob.ledger.duplicate_stats import summarize_duplicates
from onejob.stores.protocol import GroupBy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from threading import Event

    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger

ID_LIMIT = 255
LONGEST_WAIT = 30.0
LOOK = 1.0
"""Seconds after which it is seen that somebody who waits has hung up."""
PING = 15.0
"""Seconds between two signs of life of a stream of events."""
_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,6})", re.IGNORECASE)
Filter = Annotated[str | None, QueryParameter(max_length=255, pattern=r"^[^\x00]*$")]
Cursor = Annotated[str | None, QueryParameter(max_length=1000, description="`next` of the page before.")]
Prefer = Annotated[str | None, Header(description="`wait=N`: answer when there is news, after N seconds at most.")]
Known = Annotated[str | None, Header(description="The ETag of an answer that the caller has.")]
LastEvent = Annotated[str | None, Header(description="The id of the last event that the caller has.")]
Limit = Annotated[int, QueryParameter(ge=1, le=200)]
Offset = Annotated[int, QueryParameter(ge=0, le=10_000, description="How many to pass over. A cursor costs less.")]
Moment = Annotated[
    float | None,
    BeforeValidator(parse_timestamp),
    WithJsonSchema({"type": "string", "format": "date-time"}),
    QueryParameter(description="RFC 3339, with a time zone. Jobs submitted since that moment, or before it."),
]


class Reading:
    """The endpoints, on one ledger."""

    def __init__(self, ledger: Ledger, closing: Event) -> None:
        self.ledger = ledger
        self.closing = closing
        """Set when the server is about to end: then nobody waits any more."""
        self.watchers = PerLoop(lambda: Watcher(ledger, closing=closing))
        self.together: PerLoop[Batcher[str, Job]] = PerLoop(lambda: Batcher(self.found_all))

    def found(self, job_id: str) -> Job:
        """Return a job. Raises `JobNotFoundError`, also for what cannot be an id."""
        if not _may_be_id(job_id):
            raise JobNotFoundError(job_id[:ID_LIMIT])
        return self.ledger.get(job_id)

    def found_all(self, job_ids: Sequence[str]) -> list[Job | Deferred[Job]]:
        """Return jobs that are asked for together, in one round trip; one that is not there is looked for by itself."""
        found = self.ledger.store.get_many([job_id for job_id in job_ids if _may_be_id(job_id)])
        return [found.get(job_id) or Deferred(partial(self._missing, job_id)) for job_id in job_ids]

    def _missing(self, job_id: str) -> Job | Exception:
        try:
            return self.found(job_id)
        except Exception as error:  # noqa: BLE001 - it is raised where the job was asked for
            return error

    async def job(self, request: Request) -> Response:
        """Answer `GET /jobs/{job_id}`."""
        known, wanted = request.headers.get("if-none-match"), wait_of(request.headers.get("prefer"))
        job = await self.together.here().ask(request.path_params["job_id"])
        if wanted:
            job = await self._awaited(job, known, wanted, request)
        content = view_of(job).model_dump_json()
        headers = {"etag": tag_of(content), "cache-control": "no-cache"}
        if wanted:
            headers["preference-applied"] = f"wait={wanted:g}"
        if matches(known, headers["etag"]):
            return Response(status_code=304, headers=headers)
        return Response(content, 200, headers, "application/json")

    async def _awaited(self, job: Job, known: str | None, wanted: float, request: Request) -> Job:
        deadline = time.monotonic() + wanted
        async with self.watchers.here().watching(job) as watch:
            while not _is_news(watch.job, known):
                left = deadline - time.monotonic()
                if left <= 0 or self.closing.is_set() or await request.is_disconnected():
                    break
                await watch.change(min(left, LOOK))
            now = watch.job
        return now if now is not None else await run_in_threadpool(self.found, job.id)

    @needs(Role.READ)
    async def events(self, job_id: str, last_event_id: LastEvent = None) -> Response:
        """Stream a job's life as server-sent events, `state` and `progress`, until it has ended.

        Each has the whole job, so nothing is missed by who comes late, or again with `Last-Event-ID`.
        """
        job, seen = await run_in_threadpool(self.found, job_id), last_event_id
        if job.state.final and seen == _mark(job):
            return Response(status_code=204)  # which tells an EventSource to come no more
        return EventSourceResponse(self._stream(job, seen), headers={"x-accel-buffering": "no"})

    async def _stream(self, first: Job, seen: str | None) -> AsyncIterator[bytes]:
        state: State | None = None
        spoken = time.monotonic()
        async with self.watchers.here().watching(first) as watch:
            while (job := watch.job) is not None and not self.closing.is_set():
                mark = _mark(job)
                if mark != seen:
                    kind = "progress" if job.state is state and not job.state.final else "state"
                    yield format_sse_event(data_str=view_of(job).model_dump_json(), event=kind, id=mark)
                    spoken = time.monotonic()
                seen, state = mark, job.state
                if job.state.final:
                    return
                if time.monotonic() - spoken >= PING:  # also when there are changes, but none that is shown
                    yield KEEPALIVE_COMMENT
                    spoken = time.monotonic()
                if watch.job is job:
                    await watch.change(spoken + PING - time.monotonic())

    @needs(Role.READ)
    def jobs(
        self,
        *,
        state: Annotated[list[State] | None, QueryParameter()] = None,
        task: Filter = None,
        identity: Filter = None,
        submitter: Filter = None,
        since: Moment = None,
        until: Moment = None,
        cursor: Cursor = None,
        offset: Offset = 0,
        limit: Limit = 50,
        count: bool = False,
    ) -> JobPage:
        """List jobs, newest first; with `count`, tell also how many there are in all, by state."""
        if cursor is not None and offset:
            raise Problem("invalid-request", "a page begins after a cursor or at an offset, not at both")
        query = Query(
            states=frozenset(state or ()), task=task, identity=identity, submitter=submitter, since=since, until=until,
            offset=offset, limit=limit, **place_of(cursor),
        )  # fmt: skip
        page = self._page(query)
        if count:
            page.by_state = self.ledger.counts(query)
            page.total = sum(page.by_state.values())
        return page

    @needs(Role.OPERATE)
    def dead(self, task: Filter = None, error: Filter = None, cursor: Cursor = None, limit: Limit = 50) -> JobPage:
        """List dead letters, newest first; `error` is a part of the reason."""
        return self._page(replace(dead_letters(task, error, limit), **place_of(cursor)))

    def _page(self, query: Query) -> JobPage:
        found = self.ledger.find(query)
        after = cursor_of(found[-1]) if len(found) == query.limit else None
        return JobPage(jobs=[view_of(job) for job in found], next=after)

    @needs(Role.READ)
    def duplicates(self, job_id: str) -> list[DuplicateView]:
        """Return the newest duplicates of those who met a job, oldest first."""
        return [duplicate_view(each) for each in self.ledger.duplicates(self.found(job_id).id)]

    @needs(Role.READ)
    def history(self, job_id: str) -> list[EntryView]:
        """Return what happened to a job, oldest first."""
        return [entry_view(each) for each in self.ledger.history(self.found(job_id).id)]

    @needs(Role.READ)
    def summary(self, by: GroupBy = GroupBy.TASK, limit: Limit = 20) -> list[DuplicateStatsView]:
        """Tell who meets jobs most often, and what that has saved."""
        return [
            DuplicateStatsView(name=each.name, counts=each.counts, runs_saved=each.runs, seconds_saved=each.seconds)
            for each in summarize_duplicates(self.ledger, by, limit=limit)
        ]


def job_endpoint(reading: Reading) -> Callable[..., Any]:
    """Return the endpoint that shows a job."""

    @needs(Role.READ)
    @handled_by(reading.job)
    async def job(request: Request, job_id: str, prefer: Prefer = None, if_none_match: Known = None) -> Response:  # noqa: ARG001 - for the document
        """Return a job, with an ETag.

        With `Prefer: wait=N` the answer comes when the job is other than `If-None-Match` says (without it: when the job
        has ended), but after at most N seconds, of which no more than 30 count.
        """
        return await reading.job(request)

    return job


def _may_be_id(text: str) -> bool:
    return text.isprintable() and len(text) <= ID_LIMIT


def wait_of(header: str | None) -> float:
    """Return how long a `Prefer` header wants to wait, in seconds; 0 when it does not say."""
    found = _WAIT.search(header or "")
    return min(float(found[1]), LONGEST_WAIT) if found else 0.0


def _is_news(job: Job | None, known: str | None) -> bool:
    if job is None or job.state.final:
        return True
    return known is not None and not matches(known, tag_of(view_of(job).model_dump_json()))


def _mark(job: Job) -> str:
    """Return the id of the event that shows a job as it is."""
    return tag_of(view_of(job).model_dump_json()).strip('"')

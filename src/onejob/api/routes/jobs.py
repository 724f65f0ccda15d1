"""Reading jobs: one job, with an optional wait for a change; lists, page by page; events, history and duplicates."""

import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from threading import Event
from typing import Annotated, Any, TypeVar

from fastapi import Header, Request
from fastapi import Query as QueryParameter
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from pydantic import BaseModel, BeforeValidator, Field, StringConstraints, WithJsonSchema, create_model
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from onejob.api.auth import repeated_check
from onejob.api.callers import Permissions, permissions_of, share_of
from onejob.api.checked_request import PARAMETER_LIMIT
from onejob.api.fair_threads import SEARCHES, IsOver
from onejob.api.job_reads import WAITS_PER_CALLER, Include, JobPages, JobWatcher
from onejob.api.problems import Problem
from onejob.api.response_models import PAGE_LIMIT, CursorText, decode_cursor, etag_matches, etag_of, job_json
from onejob.concurrency.batching import Batcher, PerEventLoop
from onejob.errors import JobNotFoundError
from onejob.jobs.costs import CostsBy
from onejob.jobs.history import Entry
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Duplicate, JobRow
from onejob.jobs.run_log import RunLog
from onejob.jobs.timestamps import parse_timestamp, to_datetime
from onejob.ledger.costs import Cost, cost_to_dict, read_costs
from onejob.ledger.dead_letters import GROUP_LIMIT, FailureGroup, dead_letters, search_failures
from onejob.ledger.explain import Explanation, explain
from onejob.ledger.job_filters import FILTERS, query_of
from onejob.ledger.ledger import Ledger
from onejob.ledger.reader import JobReader, Visibility
from onejob.ledger.stats import DuplicateSummary, summarize_duplicates
from onejob.stores.carrier import Pending, or_error
from onejob.stores.protocol import GroupBy

ID_LIMIT = 255
MAX_WAIT = 30.0
"""The longest wait for a change of a job, in seconds."""
DISCONNECT_CHECK_INTERVAL = 1.0
"""Seconds between two checks whether a waiting client has disconnected."""
KEEPALIVE_INTERVAL = 15.0
"""Seconds between two comments that keep a stream of events open."""
CHECK_INTERVAL = 1.0
"""Seconds between two checks whether the app still permits a stream."""
_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,6})", re.IGNORECASE)
Text = Annotated[str, StringConstraints(max_length=255, pattern=r"^[^\x00]*$")]
Timestamp = Annotated[
    float, BeforeValidator(parse_timestamp), WithJsonSchema({"type": "string", "format": "date-time"})
]
Prefer = Annotated[str | None, Header(description="`wait=N`: respond on a change, or after N seconds at most.")]
ETag = Annotated[str | None, Header(description="The ETag of a previous response.")]
LastEventId = Annotated[str | None, Header(description="The id of the last event that the client received.")]
GROUPED_LIMIT = 10_000
"""The maximum number of dead letters that are grouped: the newest."""
STATISTICS_SECONDS = 2.0
"""Seconds for which one request may read dead letters, beyond its first step."""
GroupLimit = Annotated[int, QueryParameter(ge=1, le=GROUPED_LIMIT)]
Limit = Annotated[int, Field(ge=1, le=PAGE_LIMIT)]


_KINDS: dict[type, Any] = {str: Text, float: Timestamp, State: list[State]}
M = TypeVar("M", bound=BaseModel)


def with_filters(*without: str) -> Callable[[type[M]], type[M]]:
    """Return a decorator that adds to a model of requests a field per filter, except those named or defined already."""

    def add(model: type[M]) -> type[M]:
        fields: dict[str, Any] = {
            each.name: (_KINDS[each.kind] | None, Field(None, description=each.help, **_limit_of(each.kind)))
            for each in FILTERS
            if each.name not in {*without, *model.model_fields}
        }
        return create_model(
            model.__name__, __base__=model, __doc__=model.__doc__, __module__=model.__module__, **fields
        )

    return add


def _limit_of(kind: type) -> dict[str, Any]:
    """Return a field's limit of a list of parameters; in `Annotated`, an older FastAPI takes a list for a body."""
    return {"max_length": PARAMETER_LIMIT} if kind is State else {}


class PageRequest(BaseModel):
    """The query parameters that select a page of a list."""

    cursor: CursorText | None = Field(None, description="`next` of the previous page.")
    limit: Limit = 50
    include: list[Include] | None = Field(
        None, description="Large fields to list, which a list leaves out.", max_length=PARAMETER_LIMIT
    )


@with_filters()
class ListRequest(PageRequest):
    """The query parameters of a list of jobs."""

    offset: Annotated[int, Field(ge=0, le=10_000)] = Field(
        0, description="How many jobs to skip, after the cursor if there is one."
    )
    count: bool = False


@with_filters("state")
class DeadLettersRequest(PageRequest):
    """The query parameters of a list of dead letters."""


class JobRoutes:
    """The endpoints that read jobs, on one ledger."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        closing: Event | None = None,
        waits_per_caller: int = WAITS_PER_CALLER,
        checks: Sequence[Any] = (),
    ) -> None:
        self.ledger = ledger
        self._authenticate_again = repeated_check(checks) if checks else None
        """Asks the dependencies that authenticated the client of a stream, or of a long poll, once more."""
        self.pages = JobPages(ledger)
        self.closing = closing or Event()
        """Set when the server begins to shut down: all waits and streams end."""
        self.watchers = PerEventLoop(
            lambda: JobWatcher(ledger, closing=self.closing, waits_per_caller=waits_per_caller)
        )
        self.batchers: PerEventLoop[Batcher[tuple[str, Permissions], JobRow]] = PerEventLoop(
            lambda: Batcher(self._get_many)
        )

    def get(self, job_id: str, permissions: Permissions) -> JobRow:
        """Return a job that the caller sees. Raises as `read_job`."""
        return read_job(permissions.reader(self.ledger), job_id)

    def _get_many(self, requested: Sequence[tuple[str, Permissions]]) -> list[JobRow | Pending[JobRow] | Exception]:
        """Return jobs in one round trip; a missing job is looked up again, for the reason why it is missing."""
        jobs = self.ledger.store.get_many([job_id for job_id, _ in requested if is_valid_id(job_id)])
        return [
            or_error(partial(self._pick, jobs.get(job_id), job_id, permissions)) for job_id, permissions in requested
        ]  # an error of the app's `may` fails one request, not its batch

    def _pick(self, job: JobRow | None, job_id: str, permissions: Permissions) -> JobRow | Pending[JobRow]:
        return _if_visible(job, permissions.visibility) or Pending(partial(self.get, job_id, permissions))

    async def get_job(
        self,
        request: Request,
        job_id: str,  # noqa: ARG002 - for OpenAPI, as the others
        prefer: Prefer = None,  # noqa: ARG002
        if_none_match: ETag = None,  # noqa: ARG002
    ) -> Response:
        """Return a job, with an ETag.

        `Prefer: wait=N` delays the response until the job differs from `If-None-Match` (without it: until the job has
        ended), for at most N seconds and at most 30.
        """
        return await self.get_job_directly(request)

    async def get_job_directly(self, request: Request) -> Response:
        """Respond as `get_job`, without FastAPI."""
        if_none_match, seconds = _header_of(request, "if-none-match"), parse_wait(_header_of(request, "prefer"))
        job = await self.batchers.current().process((request.path_params["job_id"], permissions_of(request)))
        if seconds:
            job = await self._wait_for_change(job, if_none_match, seconds, request)
        content = job_json(job)
        headers = {"etag": etag_of(content), "cache-control": "private, no-cache", "vary": "Prefer"}
        if seconds:
            headers["preference-applied"] = f"wait={seconds:g}"
        if etag_matches(if_none_match, headers["etag"]):
            return Response(status_code=304, headers=headers)
        return Response(content, 200, headers, "application/json")

    async def _wait_for_change(
        self, job: JobRow, if_none_match: str | None, seconds: float, request: Request
    ) -> JobRow:
        started, watcher, caller = time.monotonic(), self.watchers.current(), share_of(request)
        watcher.check_waits(caller)
        async with watcher.watch(job, caller) as watch:
            while (known := watch.job) is not None and not known.state.final:
                if if_none_match is not None and not etag_matches(if_none_match, etag_of(job_json(known))):
                    break
                remaining = started + seconds - time.monotonic()
                if remaining <= 0 or self.closing.is_set() or await request.is_disconnected():
                    break
                await watch.wait_for_change(min(remaining, DISCONNECT_CHECK_INTERVAL))
                request.state.authenticate()
            if not await self._is_permitted(request, started):
                raise Problem("unauthorized", "the request is no longer permitted")
            latest = _if_visible(watch.job, permissions_of(request).visibility)
        return latest if latest is not None else await run_in_threadpool(self.get, job.id, permissions_of(request))

    async def stream_events(self, job_id: str, request: Request, last_event_id: LastEventId = None) -> Response:
        """Stream the changes of a job as server-sent events, `state` and `progress`, until it has ended.

        Each event has the whole job, so a client that connects late or reconnects (`Last-Event-ID`) misses nothing. The
        stream ends also when the API key, or the caller, is no longer valid.
        """
        permissions = permissions_of(request)
        job = await run_in_threadpool(self.get, job_id, permissions)
        self.watchers.current().check_waits(share_of(request))  # a burst of streams has read its jobs at once
        if job.state.final and last_event_id == _event_id(job):
            return Response(status_code=204)  # status 204 makes an EventSource stop reconnecting
        return EventSourceResponse(self._stream(job, request, last_event_id), headers={"x-accel-buffering": "no"})

    async def _stream(self, job: JobRow, request: Request, last_event_id: str | None) -> AsyncIterator[bytes]:
        state: State | None = None
        sent_at = checked_at = time.monotonic()
        async with self.watchers.current().watch(job, share_of(request)) as watch:
            while not self.closing.is_set() and await self._is_permitted(request, checked_at):
                if time.monotonic() - checked_at >= CHECK_INTERVAL:
                    checked_at = time.monotonic()
                if (latest := _if_visible(watch.job, permissions_of(request).visibility)) is None:
                    return
                event_id = _event_id(latest)
                if event_id != last_event_id:
                    event = "progress" if latest.state is state and not latest.state.final else "state"
                    yield format_sse_event(data_str=job_json(latest).decode(), event=event, id=event_id)
                    sent_at = time.monotonic()
                last_event_id, state = event_id, latest.state
                if latest.state.final:
                    return
                if time.monotonic() - sent_at >= KEEPALIVE_INTERVAL:  # also while only unpublished fields change
                    yield KEEPALIVE_COMMENT
                    sent_at = time.monotonic()
                if watch.job is latest:
                    await watch.wait_for_change(sent_at + KEEPALIVE_INTERVAL - time.monotonic())

    async def _is_permitted(self, request: Request, checked_at: float) -> bool:
        """Return whether the client is still authenticated; ask the dependencies every `CHECK_INTERVAL` seconds."""
        try:
            request.state.authenticate()
        except Problem:
            return False
        if self._authenticate_again is None or time.monotonic() - checked_at < CHECK_INTERVAL:
            return True
        return await self._authenticate_again(request)

    async def list_jobs(self, request: Request, asked: Annotated[ListRequest, QueryParameter()]) -> Response:
        """List jobs, newest first.

        `count`: also return the number of all matching jobs, in total and by state, up to 10,000. A page ends after
        about a megabyte, and a search without an index after about a quarter of a second: follow `next` until it is
        null, however many jobs a page has.
        """
        position = decode_cursor(asked.cursor)
        position["offset"] = asked.offset + position.get("offset", 0)
        query = query_of(dict(asked), limit=asked.limit, **position)
        return await self.pages.respond(request, query, asked.include or (), count=asked.count)

    async def list_dead_letters(
        self, request: Request, asked: Annotated[DeadLettersRequest, QueryParameter()]
    ) -> Response:
        """List dead letters, newest first."""
        query = replace(dead_letters(dict(asked), asked.limit), **decode_cursor(asked.cursor))
        return await self.pages.respond(request, query, asked.include or ())

    async def group_dead_letters(
        self, request: Request, *, task: Text | None = None, limit: GroupLimit = GROUPED_LIMIT
    ) -> dict[str, Any]:
        """Group the newest `limit` dead letters by task and error; the group in which a job failed last is the first.

        At most 100 groups are returned. Messages that differ only by ids, numbers and quoted texts are in one group.
        `searched_to`: the dead letters before this time were not reached in time; null if all were.
        """
        reader = permissions_of(request).reader(self.ledger)

        def search(is_over: IsOver) -> tuple[list[FailureGroup], float | None]:
            return search_failures(reader, task=task, limit=limit, is_over=is_over)

        groups, searched_to = await SEARCHES.current().run(request, STATISTICS_SECONDS, search)
        shown, others = groups[:GROUP_LIMIT], groups[GROUP_LIMIT:]
        return {
            "groups": shown, "other_groups": len(others), "other_jobs": sum(each.count for each in others),
            "searched_to": None if searched_to is None else to_datetime(searched_to),
        }  # fmt: skip

    def list_duplicates(self, job_id: str, request: Request) -> Sequence[Duplicate]:
        """List the latest duplicates of a job, oldest first."""
        permissions = permissions_of(request)
        return permissions.reader(self.ledger).duplicates(self.get(job_id, permissions).id)

    def list_history(self, job_id: str, request: Request) -> Sequence[Entry]:
        """List the history of a job, oldest first."""
        return self.ledger.history(self.get(job_id, permissions_of(request)).id)

    def list_logs(self, job_id: str, request: Request) -> Sequence[RunLog]:
        """List the logs of the newest attempts of a job, the oldest attempt first.

        Refused to a caller that is limited to its own jobs or to some tasks.
        """
        return self.ledger.run_logs(self.get(job_id, permissions_of(request)))

    def explain_job(self, job_id: str, request: Request) -> Explanation:
        """Explain a job: what happened, what it waits for, and what happens next; with the names of live workers.

        Refused to a caller that is limited to its own jobs or to some tasks.
        """
        return explain(self.ledger, self.get(job_id, permissions_of(request)).id)

    async def summarize_duplicates(
        self, request: Request, by: GroupBy = GroupBy.TASK, limit: Limit = 20
    ) -> list[DuplicateSummary]:
        """Return the groups with the most duplicates, and the runs and seconds that the duplicates have saved."""
        permissions = permissions_of(request)
        permissions.check("statistics")
        reader = permissions.reader(self.ledger)

        def summarize(_: IsOver) -> list[DuplicateSummary]:
            return summarize_duplicates(reader, by, limit=limit)

        return await SEARCHES.current().run(request, STATISTICS_SECONDS, summarize)

    async def list_costs(
        self, request: Request, by: CostsBy = CostsBy.TASK, since: date | None = None, until: date | None = None,
        task: Text | None = None, limit: Limit = 50,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """List the amounts that jobs have spent and duplicates have saved, by unit, and in it the largest first.

        `since` and `until` are days (UTC), and both count; without `since`, the last 30 days. Each tag of a job
        has its whole cost. A caller that is limited to its own jobs gets none by tag.
        """
        permissions = permissions_of(request)
        permissions.check("statistics")
        reader = permissions.reader(self.ledger)

        def read(_: IsOver) -> list[Cost]:
            return read_costs(reader, by, since=since, until=until, task=task, limit=limit)

        found = await SEARCHES.current().run(request, STATISTICS_SECONDS, read)
        return [cost_to_dict(each) for each in found]


def _if_visible(job: JobRow | None, visibility: Visibility) -> JobRow | None:
    return job if job is not None and visibility.includes(job) else None


def read_job(reader: JobReader, job_id: str) -> JobRow:
    """Return a job. Raises `JobNotFoundError`, also for an invalid id, and `JobPurgedError`."""
    if not is_valid_id(job_id):
        raise JobNotFoundError(job_id[:ID_LIMIT])
    return reader.get(job_id)


def is_valid_id(text: str) -> bool:
    """Return whether a text may be the id of a job."""
    return text.isprintable() and len(text) <= ID_LIMIT


def _header_of(request: Request, name: str) -> str | None:
    """Return the values of a list header, which may have several lines (RFC 9110, 5.3); None without the header."""
    return ", ".join(request.headers.getlist(name)) or None


def parse_wait(header: str | None) -> float:
    """Return the seconds of `wait` in a `Prefer` header (RFC 7240, 4.3), or 0."""
    match = _WAIT.search(header or "")
    return min(float(match[1]), MAX_WAIT) if match else 0.0


def _event_id(job: JobRow) -> str:
    return etag_of(job_json(job)).strip('"')

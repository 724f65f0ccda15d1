"""The jobs page: a list of jobs, filtered as `onejob.pages.job_filters` reads a URL; and finding a job by its id."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from onejob.api.job_reads import COUNT_LIMIT
from onejob.api.response_models import decode_cursor
from onejob.api.routes.jobs import is_valid_id
from onejob.client.operator import deadline
from onejob.errors import JobPurgedError
from onejob.jobs.public_view import fields_of
from onejob.jobs.query import Query
from onejob.jobs.timestamps import to_datetime
from onejob.ledger.job_filters import query_of
from onejob.ledger.ledger import Ledger
from onejob.ledger.search import Count, SearchResult, count_matching, search
from onejob.ledger.stuck import SCAN_LIMIT, list_stuck
from onejob.pages.context import Context
from onejob.pages.job_filters import SEARCH_SECONDS, only_stuck, read_filters
from onejob.pages.job_rows import job_rows
from onejob.pages.page_request import PageRequest
from onejob.pages.rendering import Page, Redirect, View, job_path

PAGE_SIZES = ("50", "20", "100", "200")
"""How many jobs a page lists; the first is the default."""


def _build_jobs(context: Context, request: PageRequest) -> Page:
    ledger, filters, cursor = context.ledger, read_filters(request, context), request.parameters.get("cursor") or None
    limit, is_stuck = int(request.choice("limit", PAGE_SIZES)), only_stuck(request)
    is_over, is_filtered = deadline(SEARCH_SECONDS), is_stuck or any(filters.values())
    # One job more than is shown tells whether there is a next page.
    query = query_of(filters, limit=limit + 1, light=True, **decode_cursor(cursor))
    reasons: dict[str, str] = {}
    if is_stuck:
        stuck = list_stuck(ledger, query, scan_limit=SCAN_LIMIT)
        reasons = {job.id: str(reason) for job, reason in stuck}
        found = SearchResult([job for job, _ in stuck])
    else:
        found = search(ledger, query, is_over=is_over)
    states, following = ledger.count_states(limit=COUNT_LIMIT), found.next_cursor(limit)
    data: dict[str, Any] = {
        "filter": {name: to_datetime(each) if isinstance(each, float) else each for name, each in filters.items()},
        "is_filtered": is_filtered,
        "is_stuck": is_stuck,
        "is_first": cursor is None,
        "jobs": [row | {"stuck": reasons.get(row["id"], "")} for row in job_rows(context, found.jobs[:limit])],
        "next": None if following is None else following.encode(),
        "searched_to": None if found.searched_to is None else to_datetime(found.searched_to),
        "now": to_datetime(request.now),
        "states": states,
        "count_limit": COUNT_LIMIT,
        "tasks": sorted({*context.tasks(ledger.workers()), *filter(None, [query.task])}),
        "page_size": limit,
    }
    if cursor is None and not is_stuck:
        count = sum(states.values())
        everything = Count(min(count, COUNT_LIMIT), is_complete=count < COUNT_LIMIT)
        data["matching"] = fields_of(_count(ledger, query, found, is_over) if is_filtered else everything)
    return Page(template="jobs.html", title="Jobs", data=data, rows="jobs", live="ledger" if cursor is None else "")


def _count(ledger: Ledger, query: Query, found: SearchResult, is_over: Callable[[], bool]) -> Count:
    """Return how many jobs match: capped, or of those that were searched in the time of a request."""
    if found.after is None:
        return Count(len(found.jobs), is_complete=found.searched_to is None)
    return count_matching(ledger, replace(query, limit=0), limit=COUNT_LIMIT, is_over=is_over)


def _find(context: Context, request: PageRequest) -> Redirect:
    """Go to the job that has or had the given id, or else to the jobs with the text among their arguments."""
    text = request.text("q")
    if text is None:
        return Redirect("/jobs")
    ledger, is_id = context.ledger, context.redact is not None  # with a hook no argument is searched for
    if not is_id and is_valid_id(text):
        is_id = ledger.get_or_none(text) is not None or isinstance(ledger.why_missing(text), JobPurgedError)
    return Redirect(job_path(text) if is_id else f"/jobs?{urlencode({'argument': text})}")


def _list_tasks(context: Context, _request: PageRequest) -> Page:
    return Page(template="palette.html", title="Tasks", data={"tasks": sorted(context.tasks(context.ledger.workers()))})


JOBS = View("jobs", "/jobs", _build_jobs)
PALETTE = View("palette", "/palette", _list_tasks)
FIND = View("find", "/find", _find)

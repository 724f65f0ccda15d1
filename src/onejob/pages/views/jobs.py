"""The list of jobs: filters in the URL, newest first, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onejob.api.job_pages import COUNT_LIMIT
from onejob.jobs.timestamps import to_datetime
from onejob.ledger.search import count_matching, search
from onejob.pages.job_filter import PAGE_SIZES, JobFilter, cursor_after, cursor_before
from onejob.pages.job_rows import job_rows
from onejob.pages.rendering import Page
from onejob.pages.site import deadline
from onejob.pages.views.view import View

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from onejob.jobs.lifecycle import State
    from onejob.ledger.search import SearchResult
    from onejob.pages.site import Site, Visit


def _build(site: Site, visit: Visit) -> Page:
    parameters, ledger = visit.parameters, site.ledger
    job_filter, cursor = JobFilter.parse(parameters, site), parameters.text("cursor")
    limit = int(parameters.choice("limit", PAGE_SIZES))
    is_over = deadline()
    found = search(ledger, job_filter.query(limit=limit, cursor=cursor), is_over=is_over)
    states = ledger.count_states(limit=COUNT_LIMIT)
    data: dict[str, Any] = {
        "filter": job_filter.to_dict(),
        "is_filtered": not job_filter.is_empty,
        "is_first": cursor is None,
        "jobs": job_rows(site, found.jobs),
        "next": _next_cursor(found),
        "searched_to": None if found.searched_to is None else to_datetime(found.searched_to),
        "now": to_datetime(visit.now),
        "states": states,
        "count_limit": COUNT_LIMIT,
        "tasks": sorted({*site.tasks(ledger.workers()), *([job_filter.task] if job_filter.task else [])}),
        "page_size": limit,
    }
    if cursor is None:
        data["matching"] = _capped(states) if job_filter.is_empty else _count(site, job_filter, found, is_over)
    return Page(template="jobs.html", title="Jobs", data=data, rows="jobs", live="ledger" if cursor is None else "")


def _next_cursor(found: SearchResult) -> str | None:
    if found.after is not None:
        return cursor_after(found.after)
    return None if found.searched_to is None else cursor_before(found.searched_to)


def _capped(states: Mapping[State, int]) -> dict[str, Any]:
    """Return how many jobs there are, capped."""
    count = sum(states.values())
    return {"count": min(count, COUNT_LIMIT), "is_complete": count < COUNT_LIMIT}


def _count(site: Site, job_filter: JobFilter, found: SearchResult, is_over: Callable[[], bool]) -> dict[str, Any]:
    """Return how many jobs match: capped, or of those that were searched in the time of a request."""
    if found.after is None:
        return {"count": len(found.jobs), "is_complete": found.searched_to is None}
    counted = count_matching(site.ledger, job_filter.query(limit=0), limit=COUNT_LIMIT, is_over=is_over)
    return {"count": counted.count, "is_complete": counted.is_complete}


JOBS = View("jobs", "/jobs", _build)

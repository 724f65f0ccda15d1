"""The lists: jobs, dead letters, workers with their queues, schedules and the audit log; and finding a job in them."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from onejob.api.api_keys import Role
from onejob.api.job_reads import COUNT_LIMIT
from onejob.api.response_models import Cursor, decode_cursor
from onejob.api.routes.jobs import GROUPED_LIMIT, is_valid_id
from onejob.celery.app_state import app_state_of
from onejob.celery.beat import list_entries
from onejob.celery.operations import deadline, queue_lengths
from onejob.celery.options import tasks_of
from onejob.errors import JobPurgedError
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Job
from onejob.jobs.public_view import fields_of
from onejob.jobs.records import Query, WorkerInfo
from onejob.jobs.timestamps import to_datetime
from onejob.ledger.dead_letters import GROUP_LIMIT, FailureGroup, group_failures
from onejob.ledger.ledger import Ledger
from onejob.ledger.search import Count, SearchResult, count_matching, query_of, search
from onejob.ledger.stats import loads_of
from onejob.ledger.stuck import SCAN_LIMIT, list_stuck
from onejob.pages.attention import last_states
from onejob.pages.context import (
    PAGE_SIZES,
    SEARCH_SECONDS,
    Context,
    PageRequest,
    job_row,
    job_rows,
    only_stuck,
    read_filters,
)
from onejob.pages.rendering import Page, Redirect, View, job_path


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
    states = ledger.count_states(limit=COUNT_LIMIT)
    data: dict[str, Any] = {
        "filter": {name: to_datetime(each) if isinstance(each, float) else each for name, each in filters.items()},
        "is_filtered": is_filtered,
        "is_stuck": is_stuck,
        "is_first": cursor is None,
        "jobs": [row | {"stuck": reasons.get(row["id"], "")} for row in job_rows(context, found.jobs[:limit])],
        "next": _next_cursor(found, limit),
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


def _next_cursor(found: SearchResult, limit: int) -> str | None:
    last = found.jobs[limit - 1] if len(found.jobs) > limit else found.after
    if last is not None:
        return Cursor(last.created_at, last.id).encode()
    return None if found.searched_to is None else Cursor(found.searched_to, "").encode()


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


def _build_dead_letters(context: Context, request: PageRequest) -> Page:
    task, since = request.text("task"), request.at("since")
    found = context.stats.get(("dead", task), lambda: group_failures(context.ledger, task=task, limit=GROUPED_LIMIT))
    chosen = [each for each in found if not since or each.last_at >= since]
    data = {
        "task": task, "groups": _group_rows(context, chosen[:GROUP_LIMIT]),
        "total": sum(group.count for group in chosen), "group_count": len(chosen),
        "is_capped": sum(group.count for group in found) >= GROUPED_LIMIT,
        "since": request.text("since"), "now": to_datetime(request.now),
    }  # fmt: skip
    return Page(template="dead_letters.html", title="Dead letters", data=data, rows="groups", live="ledger")


def _group_rows(context: Context, groups: list[FailureGroup]) -> list[dict[str, Any]]:
    """Return groups as rows with a signature of each; with a hook, messages as they may be shown, and no patterns."""
    rows = [fields_of(group) | {"group": context.tokens.sign(*group.key)} for group in groups]
    if context.redact is None:
        return rows
    newest = [row["job_ids"][0] for row in rows]
    jobs = context.ledger.get_many(newest)
    for row, job_id in zip(rows, newest, strict=True):
        row["message"] = context.reason(jobs[job_id], row["message"]) if job_id in jobs else ""
        row["pattern"] = None
    return rows


RUNS_LIMIT = 500


def _build_workers(context: Context, request: PageRequest) -> Page:
    workers, now = context.ledger.workers(), request.now
    runs = context.ledger.find(Query(states=frozenset({State.RUNNING}), limit=RUNS_LIMIT, light=True))
    by_node: dict[str, list[Job]] = defaultdict(list)
    for job in runs:
        by_node[job.node].append(job)

    def rows(node: str) -> list[dict[str, Any]]:
        return [_run(context, job, now) for job in by_node.pop(node, [])]

    data = {
        "now": to_datetime(now),
        "workers": [
            fields_of(worker, "name", "seen_at", "pool", "concurrency", "queues", "tasks")
            | {"is_late": context.is_late(worker, now), "runs": rows(worker.name)}
            for worker in workers
        ],
        "queues": _queues(context, workers, now), "backlog_limit": COUNT_LIMIT, "is_capped": len(runs) == RUNS_LIMIT,
        "lost": [{"name": name, "runs": rows(name)} for name in sorted(by_node)],
    }  # fmt: skip
    return Page(template="workers.html", title="Workers", data=data, rows="workers", live="ledger")


def _run(context: Context, job: Job, now: float) -> dict[str, Any]:
    left = None if job.lease_until is None else job.lease_until - now
    return job_row(context, job) | {"lease_left": left, "is_lease_expired": left is not None and left <= 0}


def _queues(context: Context, workers: Sequence[WorkerInfo], now: float) -> list[dict[str, Any]]:
    backlog = context.ledger.backlog(tasks=context.tasks(workers), limit=COUNT_LIMIT)
    loads = loads_of(backlog, workers, now)
    lengths = queue_lengths(context.app, [load.queue for load in loads])
    return [
        fields_of(load, "queue", "due", "running", "slots") | {
            "messages": lengths[load.queue],
            "oldest_at": to_datetime(now - load.oldest_due) if load.due else None,
            "consumers": [worker.name for worker in workers if load.queue in worker.queues],
        }
        for load in loads
    ]  # fmt: skip


PAGE_SIZE = 100


def _build_audit(context: Context, request: PageRequest) -> Page:
    before = request.number("before")
    found = [fields_of(entry) for entry in context.ledger.audit(limit=PAGE_SIZE + 1, before=before)]
    entries = found[:PAGE_SIZE]
    data = {"entries": entries, "next": entries[-1]["id"] if found[PAGE_SIZE:] else None}
    return Page(template="audit.html", title="Audit log", data=data, rows="entries")


def _build_schedules(context: Context, _request: PageRequest) -> Page:
    jobs, found = tasks_of(context.app), list_entries(context.app, context.ledger)
    states = last_states(context, found)
    entries = [
        fields_of(entry) | {"is_job": entry.task in jobs, "last_state": states.get(entry.last_job)} for entry in found
    ]
    data = {"entries": entries, "runs": app_state_of(context.app).settings.beat}
    return Page(template="schedules.html", title="Schedules", data=data, rows="entries", live="ledger")


JOBS = View("jobs", "/jobs", _build_jobs)
PALETTE = View("palette", "/palette", _list_tasks)
FIND = View("find", "/find", _find)
DEAD_LETTERS = View("dead_letters", "/dead", _build_dead_letters)
WORKERS = View("workers", "/workers", _build_workers)
AUDIT = View("audit", "/audit", _build_audit, Role.OPERATE)
SCHEDULES = View("schedules", "/schedules", _build_schedules)

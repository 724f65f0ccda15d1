"""The lists of dead letters, workers with their queues, schedules, and entries of the audit log."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from onejob.api.api_keys import Role
from onejob.api.job_reads import COUNT_LIMIT
from onejob.api.routes.jobs import GROUPED_LIMIT
from onejob.celery.app_state import app_state_of
from onejob.celery.messages.broker import queue_lengths
from onejob.celery.submission.options import tasks_of
from onejob.jobs.lifecycle import State
from onejob.jobs.model import JobRow
from onejob.jobs.public_view import fields_of
from onejob.jobs.query import Query
from onejob.jobs.timestamps import to_datetime
from onejob.jobs.workers import WorkerInfo
from onejob.ledger.dead_letters import GROUP_LIMIT, FailureGroup, group_failures
from onejob.ledger.stats import loads_of
from onejob.pages.attention import last_states
from onejob.pages.context import Context
from onejob.pages.job_rows import job_row
from onejob.pages.page_request import PageRequest
from onejob.pages.rendering import Page, View

RUNS_LIMIT = 500
"""How many runs the page of workers lists."""
PAGE_SIZE = 100
"""How many entries of the audit log a page lists."""


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
    """Return groups as rows, each with a signature; with a `redact`, with redacted messages and no patterns."""
    rows = [fields_of(group) | {"group": context.tokens.sign(*group.key)} for group in groups]
    if context.redact is None:
        return rows
    newest = [row["job_ids"][0] for row in rows]
    jobs = context.ledger.get_many(newest)
    for row, job_id in zip(rows, newest, strict=True):
        row["message"] = context.reason(jobs[job_id], row["message"]) if job_id in jobs else ""
        row["pattern"] = None
    return rows


def _build_workers(context: Context, request: PageRequest) -> Page:
    workers, now = context.ledger.workers(), request.now
    runs = context.ledger.find(Query(states=frozenset({State.RUNNING}), limit=RUNS_LIMIT, light=True))
    by_node: dict[str, list[JobRow]] = defaultdict(list)
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


def _run(context: Context, job: JobRow, now: float) -> dict[str, Any]:
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


def _build_audit(context: Context, request: PageRequest) -> Page:
    before = request.number("before")
    found = [fields_of(entry) for entry in context.ledger.audit(limit=PAGE_SIZE + 1, before=before)]
    entries = found[:PAGE_SIZE]
    data = {"entries": entries, "next": entries[-1]["id"] if found[PAGE_SIZE:] else None}
    return Page(template="audit.html", title="Audit log", data=data, rows="entries")


def _build_schedules(context: Context, _request: PageRequest) -> Page:
    jobs, found = tasks_of(context.app), context.operator().list_schedules()
    states = last_states(context, found)
    entries = [
        fields_of(entry) | {"is_job": entry.task in jobs, "last_state": states.get(entry.last_job)} for entry in found
    ]
    data = {"entries": entries, "runs": app_state_of(context.app).settings.beat}
    return Page(template="schedules.html", title="Schedules", data=data, rows="entries", live="ledger")


DEAD_LETTERS = View("dead_letters", "/dead", _build_dead_letters)
WORKERS = View("workers", "/workers", _build_workers)
AUDIT = View("audit", "/audit", _build_audit, Role.OPERATE)
SCHEDULES = View("schedules", "/schedules", _build_schedules)

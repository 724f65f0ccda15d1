"""The workers: their runs, leases and heartbeats; and the queues that they consume, with what waits in them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from onejob.api.job_pages import COUNT_LIMIT
from onejob.celery.queues import queue_lengths
from onejob.jobs.lifecycle import State
from onejob.jobs.records import Query
from onejob.jobs.timestamps import to_datetime
from onejob.pages.job_rows import job_row
from onejob.pages.rendering import Page
from onejob.pages.views.view import View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onejob.jobs.model import Job
    from onejob.jobs.records import Backlog, WorkerInfo
    from onejob.pages.site import Site, Visit

RUNS_LIMIT = 500
"""How many runs are listed at most."""


def _build(site: Site, visit: Visit) -> Page:
    workers, now = site.ledger.workers(), visit.now
    runs = site.ledger.find(Query(states=frozenset({State.RUNNING}), limit=RUNS_LIMIT, light=True))
    by_node: dict[str, list[Job]] = defaultdict(list)
    for job in runs:
        by_node[job.node].append(job)
    alive = [_row(worker, by_node.pop(worker.name, []), site, now) for worker in workers]
    data = {
        "now": to_datetime(now),
        "workers": alive,
        "lost": [{"name": name, "runs": [_run(site, each, now) for each in by_node[name]]} for name in sorted(by_node)],
        "queues": _queues(site, workers),
        "backlog_limit": COUNT_LIMIT,
    }
    return Page(template="workers.html", title="Workers", data=data, rows="workers", live="ledger")


def _row(worker: WorkerInfo, runs: Sequence[Job], site: Site, now: float) -> dict[str, Any]:
    return {
        "name": worker.name, "seen_at": to_datetime(worker.seen_at), "is_late": site.is_late(worker, now),
        "pool": worker.pool, "concurrency": worker.concurrency, "queues": list(worker.queues),
        "tasks": list(worker.tasks), "runs": [_run(site, job, now) for job in runs],
    }  # fmt: skip


def _run(site: Site, job: Job, now: float) -> dict[str, Any]:
    left = None if job.lease_until is None else job.lease_until - now
    return job_row(site, job) | {"lease_left": left, "is_lease_expired": left is not None and left <= 0}


def _queues(site: Site, workers: Sequence[WorkerInfo]) -> list[dict[str, Any]]:
    backlog = site.ledger.backlog(tasks=site.tasks(workers), limit=COUNT_LIMIT)
    consumers: dict[str, list[str]] = defaultdict(list)
    for worker in workers:
        for queue in worker.queues:
            consumers[queue].append(worker.name)
    names = sorted({*consumers, *(each.queue for each in backlog if each.queue)})
    lengths = queue_lengths(site.app, names)
    return [_queue(name, consumers[name], backlog, lengths[name]) for name in names]


def _queue(name: str, consumers: list[str], backlog: Sequence[Backlog], messages: int | None) -> dict[str, Any]:
    own = [each for each in backlog if each.queue == name]
    oldest = min((each.oldest_run_at for each in own), default=None)
    return {
        "queue": name, "waiting_jobs": sum(each.count for each in own), "messages": messages, "consumers": consumers,
        "oldest_at": None if oldest is None else to_datetime(oldest),
    }  # fmt: skip


WORKERS = View("workers", "/workers", _build)

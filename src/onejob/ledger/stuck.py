"""Stuck jobs, which make no progress, and the reasons. One rule serves lists, explanations and pages.

A job that waits is stuck when it is due and its message cannot be sent, when no live worker can run it, when their
broker is silent, or when no worker has claimed it for `STUCK_LEASES` leases. A run is stuck when its lease has expired;
a follower when its sweep is `STUCK_LEASES` leases late; an ended job when its canvas has not been notified for
`STUCK_LEASES` leases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from typing import Self

from onejob.jobs.history import Entry
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import JobRow
from onejob.jobs.query import Query
from onejob.jobs.workers import WorkerInfo
from onejob.ledger.reader import JobReader
from onejob.ledger.search import iterate_jobs
from onejob.observability.metrics import WEBHOOK_TASK

STUCK_LEASES = 3
"""The leases after which a job without a claim or a notification is stuck; each takes one lease at most."""
SCAN_LIMIT = 2_000
"""The number of unsettled jobs that are examined where a search must end in time: the newest."""
PAGE_SIZE = 500
"""The number of jobs that a search for stuck jobs reads at a time."""


class Stuck(StrEnum):
    """The reason why a job is stuck."""

    NOT_SENDABLE = "its message cannot be sent"
    NO_WORKER = "no worker is alive"
    TASK_UNKNOWN = "no live worker has its task"
    QUEUE_NOT_CONSUMED = "no live worker that has its task consumes its queue"
    BROKER_SILENT = "no live worker that can run it hears its broker"
    NOT_CLAIMED = "no worker has claimed it"
    LEASE_EXPIRED = "its lease has expired"
    NOT_SWEPT = "no worker has processed it since it was due"
    CANVAS_PENDING = "its canvas was not notified"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The time on the store's clock, and the live workers."""

    now: float
    workers: tuple[WorkerInfo, ...] = ()

    @classmethod
    def of(cls, ledger: JobReader) -> Self:
        """Read the time and the workers."""
        return cls(ledger.read_clock(), tuple(ledger.workers()))

    def with_task(self, task: str) -> list[WorkerInfo]:
        """Return the live workers that have a task, as far as they have registered."""
        return [worker for worker in self.workers if worker.knows(task) or not (worker.tasks or worker.queues)]

    def with_task_of(self, job: JobRow) -> list[WorkerInfo]:
        """Return the live workers that have a job's task, or the task whose workers send the webhook."""
        return self.with_task(job.publisher_task or job.task)

    def able(self, job: JobRow) -> list[WorkerInfo]:
        """Return the workers of `with_task_of` that consume the job's queue, too. A webhook has no queue."""
        queue = "" if job.publisher_task else job.queue
        known = self.with_task_of(job)
        return [worker for worker in known if not (queue and worker.queues) or queue in worker.queues]


def find_stuck(job: JobRow, snapshot: Snapshot, queued_at: float) -> Stuck | None:
    """Return the reason why a job is stuck, or None. `queued_at`: when it was last queued, see `last_queued`."""
    late = snapshot.now - STUCK_LEASES * job.lease
    if job.state is State.RUNNING:
        return Stuck.LEASE_EXPIRED if (job.lease_until or 0.0) <= snapshot.now else None
    if job.state.final:
        return Stuck.CANVAS_PENDING if job.canvas_pending and (job.finished_at or 0.0) < late else None
    if follows_another(job):
        return Stuck.NOT_SWEPT if (job.wake_at or 0.0) < late else None
    if job.parked_on or job.run_at > snapshot.now:
        return None
    return _find_obstacle(job, snapshot) or (Stuck.NOT_CLAIMED if max(job.run_at, queued_at) < late else None)


def _find_obstacle(job: JobRow, snapshot: Snapshot) -> Stuck | None:
    if job.publish_error:
        return Stuck.NOT_SENDABLE
    if not snapshot.workers:
        return Stuck.NO_WORKER
    if not snapshot.with_task_of(job):
        return Stuck.TASK_UNKNOWN
    if not (able := snapshot.able(job)):
        return Stuck.QUEUE_NOT_CONSUMED
    is_silent = not job.publisher_task and all(worker.silent_since for worker in able)
    return Stuck.BROKER_SILENT if is_silent else None


def is_follower(job: JobRow) -> bool:
    """Return whether a job ends as the job that it follows; a webhook runs after the followed job."""
    return job.follows_id is not None and not job.queued_next and job.task != WEBHOOK_TASK


def follows_another(job: JobRow) -> bool:
    """Return whether a job waits for the end of another job: nothing was published for it yet."""
    is_unpublished = not (job.published or job.publish_error)
    return job.state is State.QUEUED and job.follows_id is not None and is_unpublished


def last_queued(job: JobRow, history: Sequence[Entry]) -> float:
    """Return when a waiting job was last queued: submitted, promoted, retried, released, recovered or redriven.

    For a follower, which is due when another job has ended, it is the first publication after that.
    """
    published_at = None
    for entry in reversed(history):
        if entry.event == Transition.PUBLISH:
            published_at = entry.at
        elif entry.event != Transition.POSTPONE:
            return published_at if published_at is not None and job.follows_id is not None else entry.at
    return job.created_at


def list_stuck(ledger: JobReader, query: Query, *, scan_limit: int | None = None) -> list[tuple[JobRow, Stuck]]:
    """Return the stuck jobs among those that match, newest first, with the reasons.

    It reads every unsettled job that matches, or the newest `scan_limit` of them, `PAGE_SIZE` at a time and without the
    large fields, until the page of the query is full. The jobs in the answer are whole.
    """
    snapshot = Snapshot.of(ledger)
    unsettled = islice(iterate_jobs(ledger, replace(query, unsettled=True), PAGE_SIZE), scan_limit)
    found = ((job, why_stuck(ledger, job, snapshot)) for job in unsettled)
    stuck = ((job.id, reason) for job, reason in found if reason is not None)
    reasons = dict(islice(stuck, query.offset, query.offset + query.limit))
    jobs = ledger.get_many([*reasons])
    return [(jobs[job_id], reason) for job_id, reason in reasons.items() if job_id in jobs]


def why_stuck(ledger: JobReader, job: JobRow, snapshot: Snapshot) -> Stuck | None:
    """Return the reason why a job is stuck, or None; its history is read only if needed."""
    reason = find_stuck(job, snapshot, job.created_at)
    if reason is not Stuck.NOT_CLAIMED:
        return reason
    return find_stuck(job, snapshot, last_queued(job, ledger.history(job.id)))

"""Jobs as the results of `django.tasks`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.utils import timezone

from onejob.celery.message import decode, loads
from onejob.django.framework import Status, TaskError, TaskResult
from onejob.jobs.lifecycle import State, Transition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onejob.jobs.model import Job
    from onejob.jobs.records import Entry

STATUS = {
    State.QUEUED: Status.READY,
    State.RETRYING: Status.READY,
    State.RUNNING: Status.RUNNING,
    State.COMPLETED: Status.SUCCESSFUL,
    State.FAILED: Status.FAILED,
    State.CANCELED: Status.FAILED,
}
CANCELED = "celery.exceptions.TaskRevokedError"
"""The class in the error of a canceled job."""


def result_of(job: Job, task: Any, history: Sequence[Entry] = ()) -> Any:
    """Return a job as the `TaskResult` of a task. `history` is needed of a job that has run more than once."""
    message = decode(job.payload)
    claims = [entry for entry in history if entry.event == Transition.CLAIM]
    first = claims[0].at if claims and claims[0].attempt == 1 else job.started_at
    result = TaskResult(
        task=task,
        id=job.id,
        status=STATUS[job.state],
        enqueued_at=_time(job.created_at),
        started_at=_time(first),
        finished_at=_time(job.finished_at),
        last_attempted_at=_time(job.started_at),
        args=message.args,
        kwargs=message.kwargs,
        backend=task.backend,
        errors=_errors(job),
        worker_ids=_workers(job, claims),
    )
    if job.state is State.COMPLETED and job.result is not None:
        object.__setattr__(result, "_return_value", loads(job.result))
    return result


def _errors(job: Job) -> list[Any]:
    """Return the error of the last run that had one: the ledger keeps no earlier ones."""
    if job.state is State.CANCELED:
        return [TaskError(exception_class_path=CANCELED, traceback=f"TaskRevokedError: {job.reason}\n")]
    if not job.error or job.state is State.COMPLETED:
        return []
    error = loads(job.error)
    path = f"{error.get('module')}.{error.get('type')}"
    return [TaskError(exception_class_path=path, traceback=str(error.get("traceback") or ""))]


def _workers(job: Job, claims: Sequence[Entry]) -> list[str]:
    """Return the node of each run; of those that the history has dropped, that of the last one."""
    known = {entry.attempt: entry.node for entry in claims}
    return [known.get(attempt, job.node) for attempt in range(1, job.attempt + 1)]


def _time(seconds: float | None) -> datetime | None:
    """Return a time as Django's settings have it: aware with USE_TZ, and else naive in the local time zone."""
    if seconds is None:
        return None
    aware = datetime.fromtimestamp(seconds, UTC)
    return aware if settings.USE_TZ else timezone.make_naive(aware)

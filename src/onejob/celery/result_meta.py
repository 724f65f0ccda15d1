"""A job as Celery's results show it: its state, its value or its error."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Self

from celery import states
from celery.exceptions import TaskRevokedError

from onejob.celery.options import options_of
from onejob.celery.payload import decode_failure, decode_state, loads
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Job, values_of
from onejob.jobs.value import value

CELERY_STATES = {
    State.QUEUED: states.PENDING,
    State.RUNNING: states.STARTED,
    State.RETRYING: states.RETRY,
    State.COMPLETED: states.SUCCESS,
    State.FAILED: states.FAILURE,
    State.CANCELED: states.REVOKED,
}


@value(frozen=True, slots=True, kw_only=True)
class JobWithValues(Job):
    """A job whose `progress`, `result` and `error` are values instead of JSON."""

    progress: Any
    result: Any
    error: Any
    """The failure as a dict of `type`, `message` and `traceback`."""

    @classmethod
    def of(cls, job: Job) -> Self:
        """Return a job with its values decoded."""
        values = values_of(job)
        return cls(**values | {name: loads(values[name] or "null") for name in ("progress", "result", "error")})


def meta_of(job: Job, app: Any) -> dict[str, Any]:
    """Return the result of a job as the dict that Celery's result backends return, with the value of a `typed` task.

    Raises `InvalidPayloadError` for a value that does not fit the task any more.
    """
    failed = job.state is State.FAILED or (job.state is State.RETRYING and job.error is not None)
    error = decode_failure(job.id, job.error) if failed else None
    status, result = CELERY_STATES[job.state], error
    if job.state is State.COMPLETED and job.result is not None:
        result = _build_result(app.tasks.get(job.task), loads(job.result))
    elif job.state is State.CANCELED:
        result = TaskRevokedError(job.reason)
    elif job.state is State.RUNNING and job.progress:
        own, result = decode_state(loads(job.progress))
        status = own or status
    return {
        "status": status,
        "result": result,
        "task_id": job.id,
        "name": job.task,
        "traceback": loads(job.error)["traceback"] if error and job.error else None,
        "date_done": job.finished_at and datetime.fromtimestamp(job.finished_at, UTC),
        "retries": job.retries,
        "children": [],
    }


def _build_result(task: Any, value: Any) -> Any:
    """Return what the body of a task returned; the JSON of another app's task."""
    typed = options_of(task).typed if hasattr(task, "_onejob") else None
    return value if typed is None else typed.build_result(value)

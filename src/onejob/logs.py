"""JSON logs: a formatter for the handlers of any process, a Celery worker's among them."""

from __future__ import annotations

from celery import current_task

from onejob.observability import logs

__all__ = ["JsonFormatter"]


class JsonFormatter(logs.JsonFormatter):
    """Formats each record as one line of JSON, with the id and the task of the job whose body logs it.

    The line has the time, the level, the logger, the message, the fields of an event of a job, and where
    `onejob.opentelemetry` traces the process, the ids of the open span.
    """

    def __init__(self) -> None:
        super().__init__(_describe_run)


def _describe_run() -> dict[str, str]:
    job_id = current_task.request.id if current_task else None  # type: ignore[truthy-bool] # a proxy of None
    return {"job_id": str(job_id), "task": str(current_task.name)} if job_id else {}

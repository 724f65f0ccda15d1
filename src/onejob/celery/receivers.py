"""Receivers of Celery's signals in every process with tasks of onejob: JSON logs, and the metrics of a child's end."""

import logging
from typing import Any

from celery import current_app, current_task, signals

from onejob.observability.logs import JsonFormatter
from onejob.observability.meter import write_all


def connect() -> None:
    """Connect the receivers. Repeating the call changes nothing."""
    signals.after_setup_logger.connect(_log_json, weak=False, dispatch_uid="onejob.log_json")
    signals.after_setup_task_logger.connect(_log_json, weak=False, dispatch_uid="onejob.log_json.tasks")
    # The exit of a pool's child runs no `atexit` handlers.
    signals.worker_process_shutdown.connect(_write_metrics, weak=False, dispatch_uid="onejob.child_ends")


def _log_json(logger: logging.Logger, **_: Any) -> None:
    if current_app.conf.get("onejob_log_json"):
        for handler in logger.handlers:
            handler.setFormatter(JsonFormatter(_describe_run))


def _describe_run() -> dict[str, str]:
    job_id = current_task.request.id if current_task else None  # type: ignore[truthy-bool] # a proxy of None
    return {"job_id": str(job_id), "task": str(current_task.name)} if job_id else {}


def _write_metrics(**_: Any) -> None:
    write_all()

"""One Celery task per Django task, made when the Django task is defined; and the results of Django tasks.

The module is not named `tasks.py`: Celery imports that module of each installed app, and this one needs a task
framework.
"""

import inspect
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial, wraps
from typing import Any

from celery import shared_task as _shared_task
from celery.exceptions import Ignore, Reject, Retry
from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from onejob.celery.messages.payload import decode, encode_failure, loads
from onejob.celery.run import current_run
from onejob.celery.task import Task
from onejob.django import conf, framework, resolve_options
from onejob.django.framework import Status, signals
from onejob.errors import JobInterrupted
from onejob.jobs.history import Entry
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import JobRow

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


def result_of(job: JobRow, task: Any, history: Sequence[Entry] = ()) -> Any:
    """Return a job as the `TaskResult` of a task. A job that has run more than once needs its `history`."""
    message = decode(job.payload)
    claims = [entry for entry in history if entry.event == Transition.CLAIM]
    first = claims[0].at if claims and claims[0].attempt == 1 else job.started_at
    result = framework.TaskResult(
        task=task, id=job.id, status=STATUS[job.state], enqueued_at=_time(job.created_at), started_at=_time(first),
        finished_at=_time(job.finished_at), last_attempted_at=_time(job.started_at), args=message.args,
        kwargs=message.kwargs, backend=task.backend, errors=_errors(job), worker_ids=_workers(job, claims),
    )  # fmt: skip
    if job.state is State.COMPLETED and job.result is not None:
        object.__setattr__(result, "_return_value", loads(job.result))
    return result


def _errors(job: JobRow) -> list[Any]:
    """Return the error of the last failed run, as a list: the ledger keeps no earlier errors."""
    if job.state is State.CANCELED:
        return [framework.TaskError(exception_class_path=CANCELED, traceback=f"TaskRevokedError: {job.reason}\n")]
    return [_error_of(job.error)] if job.error and job.state is not State.COMPLETED else []


def _error_of(failure: str) -> Any:
    """Return the error of a body, as `encode_failure` has written it, as Django's `TaskError`."""
    error = loads(failure)
    path = f"{error.get('module')}.{error.get('type')}"
    return framework.TaskError(exception_class_path=path, traceback=str(error.get("traceback") or ""))


def _workers(job: JobRow, claims: Sequence[Entry]) -> list[str]:
    """Return the node of each run; without a history, the node of the last run."""
    known = {entry.attempt: entry.node for entry in claims}
    return [known.get(attempt, job.node) for attempt in range(1, job.attempt + 1)]


def _time(seconds: float | None) -> datetime | None:
    """Return a time as Django's settings want it: aware with USE_TZ, else naive in the local time zone."""
    if seconds is None:
        return None
    aware = datetime.fromtimestamp(seconds, UTC)
    return aware if settings.USE_TZ else timezone.make_naive(aware)


shared_task: Any = _shared_task  # the published types do not know its argument `base`
HEADER = "onejob_django"
"""The header of a message with the task's fields that `using()` has changed, as JSON."""
defined_tasks: dict[str, Any] = {}
"""The tasks that were defined in this process, by module path."""
_running: ContextVar[list[Any] | None] = ContextVar("onejob_django_result", default=None)
"""The place where a run leaves its result for the signal of its end."""


class CeleryTaskOfDjango(Task):
    """The Celery task of a Django task; sends Django's signals, `task_finished` only after the ledger's write."""

    abstract = True

    def _onejob_enter(self, request: Any, body: Any, args: Any, kwargs: Any) -> Any:
        """Run a message, and send `task_finished` if it ended the job."""
        results: list[Any] = []
        token = _running.set(results)
        try:
            value = super()._onejob_enter(request, body, args, kwargs)
        except (Ignore, Reject, Retry):
            raise
        except Exception as error:
            _send_finished(results, Status.FAILED, error=error)
            raise
        else:
            _send_finished(results, Status.SUCCESSFUL, value=value)
            return value
        finally:
            _running.reset(token)


def register(task: Any, defaults: Mapping[str, Any]) -> None:
    """Make the Celery task of a Django task, unless there is one; `defaults` are the options of its backend."""
    path = task.module_path
    known = defined_tasks.get(path)
    if known is not None and known.func is task.func:
        return
    defined_tasks[path] = task

    @wraps(task.func)
    def body(*args: Any, **kwargs: Any) -> Any:
        return _run(defined_tasks[path], args, kwargs)

    signature = inspect.signature(task.func)
    if task.takes_context:
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    body.__signature__ = signature  # type: ignore[attr-defined] # `inspect` reads it
    shared_task(name=path, base=CeleryTaskOfDjango, **resolve_options(task.func, defaults))(body)


def imported_task(path: str) -> Any:
    """Return the Django task at a module path; None if there is none."""
    try:
        task = import_string(path)
    except ImportError:
        return None
    return task if isinstance(task, framework.Task) else None


def headers_of(task: Any) -> dict[str, Any]:
    """Return the headers of a message: the task's fields that `using()` has changed since its definition."""
    known, names = defined_tasks[task.module_path], ("backend", "priority", "queue_name")
    changed = {name: getattr(task, name) for name in names if getattr(task, name) != getattr(known, name)}
    if task.run_after is not None:
        changed["run_after"] = task.run_after.isoformat()
    return {HEADER: changed} if changed else {}


def task_of(job: JobRow) -> Any:
    """Return the Django task of a job as it was enqueued, if still valid; None for a job of another kind of task."""
    task = defined_tasks.get(job.task) or imported_task(job.task)
    if task is None:
        return None
    changed = dict((loads(job.options).get("headers") or {}).get(HEADER) or {})
    if not changed or changed.get("backend", task.backend) not in framework.task_backends.settings:
        return task
    if "run_after" in changed:
        changed["run_after"] = datetime.fromisoformat(changed["run_after"])
    try:
        return task.using(**changed)
    except framework.InvalidTask:  # the settings have changed since: the job runs as the task is defined
        return task


def _run(task: Any, args: Any, kwargs: Any) -> Any:
    """Run the function of a task; return its value after a round trip through JSON."""
    run = current_run()
    task = task_of(run.job) or task
    result = result_of(run.job, task, conf.app_state().ledger.history(run.id) if run.job.attempt > 1 else ())
    results = _running.get()
    if results is not None:
        results.append(result)
    signals.task_started.send(sender=type(task.get_backend()), task_result=result)
    call = partial(task.call, framework.TaskContext(task_result=result)) if task.takes_context else task.call
    try:
        return framework.normalize_json(call(*args, **kwargs))
    except (Exception, JobInterrupted, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - Celery would take SystemExit for the end of the worker's process
        kind = type(error)
        shown = type(kind.__name__, (Exception,), {"__module__": kind.__module__, "__qualname__": kind.__qualname__})
        raise shown(*error.args).with_traceback(error.__traceback__) from None


def _send_finished(results: list[Any], status: Any, *, value: Any = None, error: Exception | None = None) -> None:
    """Send `task_finished` for the run that has left its result, if any."""
    for result in results[-1:]:
        object.__setattr__(result, "status", status)
        object.__setattr__(result, "finished_at", timezone.now())
        if error is None:
            object.__setattr__(result, "_return_value", value)
        else:
            result.errors.append(_error_of(encode_failure(error)))
        signals.task_finished.send(sender=type(result.task.get_backend()), task_result=result)

"""Runs the body of a task in the process of the test, with a job of its own."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from celery import current_app, signals

from onejob.celery.call import Call, Caller, build
from onejob.celery.payload import dumps, loads
from onejob.errors import ConfigurationError, OneJobError
from onejob.jobs.lifecycle import State
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import Ledger
from onejob.testing.ledger import Hook

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from onejob.jobs.model import Job
    from onejob.testing.worker import InProcessWorker


def celery_task(app: Any, task: Any) -> Any:
    """Return the task of an app that is named as text, or that runs a task of `django.tasks`; any other as it is.

    Raises `ConfigurationError` for a name that the app does not have.
    """
    name = task if isinstance(task, str) else getattr(task, "module_path", None)
    if name is None:
        return task
    if name not in app.tasks:
        msg = f"app {app.main!r} has no task {name!r}: import its module, and name it as `onejob jobs list` does"
        raise ConfigurationError(msg)
    return app.tasks[name]


def app_of(task: Any) -> Any:
    """Return the app of a task; for a name, or a task of `django.tasks`, the current one."""
    return getattr(task, "app", None) or current_app


@dataclass(frozen=True)
class JobRun:
    """How one run of a body ended."""

    id: str
    """The job's id."""
    state: State
    """The state of the job after the run: `completed`, `failed`, `retrying`, `canceled`, or what a lost run leaves."""
    error: BaseException | None = None
    """The exception that ended the run or, before a retry, caused it; None for a run without."""
    progress: list[Any] = field(default_factory=list)
    """What the body reported, in order."""
    steps: dict[str, Any] = field(default_factory=dict)
    """The steps that are kept after the run, by name."""
    retry_in: float | None = None
    """Seconds until the retry that the body has requested; None: it has requested none."""
    value: Any = None
    """The result of a completed job, as decoded from JSON; else None."""

    @property
    def result(self) -> Any:
        """The result of the body, as decoded from JSON.

        Raises the error of a run that failed, and `OneJobError` for one that ended without a result in another way.
        """
        if self.error is not None and self.state is State.FAILED:
            raise self.error
        if self.state is not State.COMPLETED:
            after = f", to run again in {self.retry_in:g} s" if self.retry_in is not None else ""
            msg = f"the run has no result: its job is {self.state}{after}. Assert its state, error or retry_in"
            raise OneJobError(msg) from self.error
        return self.value

    @property
    def retried(self) -> bool:
        """Whether the body has requested a retry."""
        return self.retry_in is not None


@dataclass(frozen=True)
class Conditions:
    """What a run begins with, as `Jobs.run_job` takes it."""

    attempt: int
    retries: int
    steps: Mapping[str, Any]
    canceled: bool

    def __post_init__(self) -> None:
        """Raise `ConfigurationError` for an attempt that cannot be, or that has no earlier one to keep the steps."""
        if self.attempt < 1 or (self.attempt == 1 and self.steps):
            msg = (
                f"attempt={self.attempt} with steps={sorted(self.steps)}: attempts count from 1, and only an earlier "
                "one keeps steps"
            )
            raise ConfigurationError(msg)


def run_in(
    worker: InProcessWorker, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: Conditions
) -> JobRun:
    """Run the body of a task as a job of an isolated app."""
    check_task(worker, task, "run_job")
    job = _submit(worker, task, args, kwargs, given.retries)
    for number in range(1, given.attempt):
        _lose_attempt(worker, job, given.steps if number == 1 else {})
    ledger = worker.ledger
    if given.canceled:
        ledger.hooks.append(Hook("after_start", task.name, lambda started: ledger.cancel(started.id)))
    worker.app_state.publisher.publish(job)
    with _watched_errors(job.id) as errors:
        worker.run_next_message(job.id)
    return _run_of(worker, ledger.get(job.id), errors)


def check_task(worker: InProcessWorker, task: Any, function: str) -> None:
    """Raise `ConfigurationError` for what is no task of onejob, or one of another app."""
    name = getattr(task, "name", task)
    if not hasattr(task, "_onejob"):
        msg = f"{name!r} is no onejob.Task: {function} runs a task that has base=onejob.Task"
        raise ConfigurationError(msg)
    app = getattr(task.app, "_get_current_object", lambda: task.app)()
    if app is not worker.app:
        msg = f"{name!r} is a task of app {app.main!r}, not of the isolated app {worker.app.main!r}"
        raise ConfigurationError(msg)


def _submit(worker: InProcessWorker, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any], retries: int) -> Job:
    """Write a job that is nobody's duplicate, unlike one that the test has submitted."""
    submission = build(Call(task, Caller.of(worker.app), args, kwargs, {"retries": retries}, source="run_job"))
    own = f"run_job {submission.id}"
    alone = replace(submission, identity=own, charges=(), rejects=False, replaces=False, queue_next=False)
    return Ledger(worker.ledger.store, worker.ledger.policy).submit(alone).job


def _lose_attempt(worker: InProcessWorker, job: Job, steps: Mapping[str, Any]) -> None:
    """Make an earlier attempt that kept steps and then lost its job."""
    ledger, limits = Ledger(worker.ledger.store, worker.ledger.policy), worker.app_state.settings.limits
    claimed = ledger.claim(job.id, nonce=new_nonce(), node="an earlier worker").job
    assert claimed is not None  # noqa: S101 - for the type checker: the job is new, and nobody else's
    for name, value in steps.items():
        ledger.keep_step(claimed, name, dumps(value, f"the value of step {name!r}", limits))
    ledger.release(claimed, "an earlier attempt, as given to run_job")


@contextmanager
def _watched_errors(job_id: str) -> Iterator[list[BaseException]]:
    """Collect the exceptions with which a run of a job ends."""
    errors: list[BaseException] = []

    def on_failure(task_id: str = "", exception: BaseException | None = None, **_: Any) -> None:
        if task_id == job_id and exception is not None:
            errors.append(exception)

    def on_retry(request: Any = None, reason: Any = None, **_: Any) -> None:
        cause = getattr(reason, "exc", None)
        if request is not None and request.id == job_id and isinstance(cause, BaseException):
            errors.append(cause)

    signals.task_failure.connect(on_failure, weak=False)
    signals.task_retry.connect(on_retry, weak=False)
    try:
        yield errors
    finally:
        signals.task_failure.disconnect(on_failure)
        signals.task_retry.disconnect(on_retry)


def _run_of(worker: InProcessWorker, job: Job, errors: list[BaseException]) -> JobRun:
    recorded = next(run for run in reversed(worker.ledger.runs) if run.job_id == job.id)
    return JobRun(
        id=job.id,
        state=job.state,
        error=errors[-1] if errors else None,
        progress=recorded.progress,
        steps={name: loads(value) for name, value in worker.ledger.steps(job).items()},
        retry_in=recorded.retry_in,
        value=loads(job.result) if job.result is not None else None,
    )

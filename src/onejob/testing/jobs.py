"""The jobs of an isolated app: a test runs them, moves them in time, and asserts their submissions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from typing import Any
from unittest.mock import patch

from celery import current_app, signals

from onejob.celery.messages.payload import dumps, loads
from onejob.celery.submission.call import Call, build, dump_models
from onejob.client.client import Client
from onejob.errors import ConfigurationError, OneJobError, StoreUnavailableError
from onejob.jobs.lifecycle import State
from onejob.jobs.model import JobRow, Outcome
from onejob.jobs.public_view import Job, public_job
from onejob.jobs.text_limits import TextLimits
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import Ledger
from onejob.testing.fault import CrashReport, Fault, FaultKind, Trial, declaration, inject, recover, run_matrix, survive
from onejob.testing.ledger import Hook, RecordedRun, SubmittedJob
from onejob.testing.worker import InProcessWorker

SHOWN = 20
"""The number of submissions that a message shows."""


@dataclass(frozen=True)
class JobRun:
    """The end of a run of a body."""

    id: str
    """The job's id."""
    state: State
    """The state of the job after the run: `completed`, `failed`, `retrying`, `canceled`, or as a lost run leaves it."""
    error: BaseException | None = None
    """The exception that ended the run, or that caused its retry; None for a run without an exception."""
    progress: list[Any] = field(default_factory=list)
    """The progress that the body reported, in order."""
    steps: dict[str, Any] = field(default_factory=dict)
    """The steps that are kept after the run, by name."""
    retry_in: float | None = None
    """Seconds until the retry that the body has requested; None: no retry."""
    value: Any = None
    """The result of a completed job, as decoded from JSON; None for any other job."""

    @property
    def result(self) -> Any:
        """The result of the body, as decoded from JSON.

        Raises the error of a failed run, and `OneJobError` for a run that ended without a result in another way.
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


class Jobs(InProcessWorker):
    """The jobs of an isolated app. `isolated` and the fixture `jobs` make it.

    A parameter `task` takes a Celery task, its name, or a task of `django.tasks`.
    """

    is_eager = False
    """Whether jobs run within their submissions."""

    @cached_property
    def client(self) -> Client:
        """The client of the app, which finds jobs and operates on them."""
        return Client(self.app)

    # --- running ----------------------------------------------------------------------------------------------------

    def run_job(
        self, task: Any, *args: Any, attempt: int | None = None, retries: int = 0,
        steps: Mapping[str, Any] | None = None, canceled: bool = False, **kwargs: Any,
    ) -> JobRun:  # fmt: skip
        """Run the body of a task once, in this process, as a worker does; return how the run ended.

        The job is a new job, whatever else was submitted. `attempt` is its `current_job().attempt`; `retries` its
        `self.request.retries`; `steps` are the values that an earlier attempt has kept; `canceled` requests its
        cancellation as soon as it has started. Arguments and results pass through JSON. An argument of the body that
        has one of these names is passed by position.

        Raises `InvalidArgumentsError` and `InvalidPayloadError` as a submission does, and `ConfigurationError` for a
        task that is no `onejob.Task` of this app.
        """
        attempt = attempt if attempt is not None else 2 if steps else 1
        if attempt < 1 or (attempt == 1 and steps):
            raise ConfigurationError(
                f"attempt={attempt} with steps={sorted(steps or {})}: attempts count from 1, and only an earlier one "
                "keeps steps"
            )
        task = self._checked(task, "run_job")
        job = _submit(self, task, args, kwargs, retries)
        for number in range(1, attempt):
            _lose_attempt(self, job, (steps or {}) if number == 1 else {})
        if canceled:
            self.ledger.hooks.append(Hook("after_start", task.name, lambda started: self.ledger.cancel(started.id)))
        with _watched_errors(job.id) as errors:
            self.app_state.publisher.publish(job)  # runs the job in the eager mode
            self.run_next_message(job.id)
        job = self.ledger.get(job.id)
        none = RecordedRun(job.id, job.task, job.token, job.attempt)  # the worker was lost before the start
        run = next((run for run in reversed(self.ledger.runs) if run.job_id == job.id), none)
        return JobRun(
            id=job.id,
            state=job.state,
            error=errors[-1] if errors else None,
            progress=run.progress,
            steps={name: loads(value) for name, value in self.ledger.steps(job).items()},
            retry_in=run.retry_in,
            value=loads(job.result) if job.result is not None else None,
        )

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Run the jobs that are submitted in a block within their submissions, before `delay` returns.

        They are admitted, claimed and completed as always, so that duplicates, windows and steps keep their promises,
        unlike with `task_always_eager`. The result has the failure of a job; a retry or a countdown waits for `travel`.
        """
        with patch.object(self, "is_eager", new=True):
            yield

    def run_if_eager(self) -> None:
        """Run the job that was just submitted, in the eager mode."""
        if self.is_eager:
            while self.run_next_message():
                pass

    def run_committed_if_eager(self) -> None:
        """Run the jobs that a block of Django's TestCase has submitted, in the eager mode."""
        if self.is_eager and not self.ledger.pending:
            self.run_all()

    def travel(self, seconds: float = 0.0, **units: float) -> None:
        """Advance the clock of the ledger by `seconds`, or by `minutes`, `hours`, `days`.

        Leases expire, countdowns become due, uniqueness windows and retentions end. `run_all` then runs the due jobs.
        """
        self.clock.travel(seconds, **units)

    @contextmanager
    def store_unavailable(self, operations: int | None = None) -> Iterator[None]:
        """Make the store unavailable in a block: for its next operations, or for all.

        A submission raises `StoreUnavailableError`. A run waits for the store, so give a number of `operations` then.
        """
        refusals = repeat(True) if operations is None else repeat(True, operations)  # noqa: FBT003 - what `next` returns

        def refuse() -> None:
            if next(refusals, False):
                raise StoreUnavailableError("the store is unavailable: the test said so, by store_unavailable()")

        with patch.object(self.store, "refuse", refuse):
            yield

    @contextmanager
    def duplicate_delivery(self) -> Iterator[None]:
        """Deliver each message twice in a block, as brokers may do."""
        with patch.object(self, "delivers_twice", new=True):
            yield

    # --- faults -----------------------------------------------------------------------------------------------------

    def lose_worker(self, at: str, task: Any = None) -> None:
        """End the next run of a task, or of any task, at a point as if its worker had died there.

        Points are `start`, `progress:1`, `step:NAME`, `complete`, `fail`, `retry`, with `before_` or `after_` the write
        to the ledger; alone they mean `after_`. The run ends by an exception that no `except Exception` catches, but
        `finally` blocks of the body run: `crash_matrix` also kills processes. The job runs again when its lease has
        expired: `travel(seconds=31)` and `run_all()`. Raises `ConfigurationError` for text that is no point; a point
        that no run reaches fails the test at its end.
        """
        inject(self, FaultKind.LOST, at, task and celery_task(self.app, task).name)

    def freeze(self, at: str, task: Any = None) -> None:
        """Stop the next run at a point until its lease has expired and another run has ended; then it goes on.

        The run is that of a late worker, whose writes are refused. Points and errors are as in `lose_worker`.
        """
        inject(self, FaultKind.FROZEN, at, task and celery_task(self.app, task).name)

    def recover(self) -> None:
        """Run all due jobs, and travel to the next due time, until all jobs have ended.

        Raises `OneJobError` if some jobs have not ended after 20 travels, such as a job that retries for ever.
        """
        if left := recover(self):
            job = left[0]
            msg = f"recover has traveled as often as it may: job {job.id} of {job.task} is {job.state}, {job.reason}"
            raise OneJobError(msg)

    def survive(self, fault: Fault, task: Any, *args: Any, **kwargs: Any) -> Job:
        """Submit a job, inject a fault into its run, recover, and return the job; the test asserts its effects.

        Raises `AssertionError` if no run has reached the fault's point, or a run has passed points that `faults` does
        not name.
        """
        __tracebackhide__ = True
        task = celery_task(self.app, task)
        with patch.object(self, "is_eager", new=False):  # the fault is injected between the submission and the run
            job, happened = survive(Trial(self, task, args, kwargs), fault)
        passed = self.ledger.points_of(job.id)
        if not happened:
            raise AssertionError(f"{fault}: no run has reached this point. A run passes {', '.join(passed)}")
        if others := [point for point in passed if fault.declared and point not in fault.declared]:
            named = f"faults(...) does not name: {', '.join(others)}. Declare {declaration(passed)}"
            raise AssertionError(f"{task.name} has points that {named}")
        return public_job(job)

    def crash_matrix(
        self, task: Any, *args: Any, effects: Callable[[], Any] | None, setup: Callable[[], Any] = lambda: None,
        processes: bool = True, in_child: Callable[[], Any] = lambda: None, **kwargs: Any,
    ) -> CrashReport:  # fmt: skip
        """Run a task under every fault at every point, recover it each time, and check its effects.

        A first run without a fault finds the points. Then, at each of them, a worker is lost; a worker in a process of
        its own is killed with SIGKILL; a worker freezes until another one has run the job; and the message arrives
        twice. Before each run all jobs are forgotten and `setup` is called; after each recovery `effects` is, which
        asserts what holds, or returns what must be equal after every fault: a count, a list, rows.

        `effects=None` checks only that the job recovers and ends as without a fault.

        `in_child` is called in each child process before the run, to open connections anew. Without `processes`, none
        is killed: for effects in the memory of the test.

        Returns the report. Raises `AssertionError` with the report if a fault does harm: it names the points, and what
        to use. Raises `ConfigurationError` if `effects` does not see the effects (those of a child process, or
        any, as it is the same before and after a run), and if those of an earlier run are still there after `setup`.
        """
        __tracebackhide__ = True
        task = self._checked(task, "crash_matrix")
        trial = Trial(self, task, args, kwargs, effects=effects, setup=setup, in_child=in_child)
        with patch.object(self, "is_eager", new=False):
            return run_matrix(trial, f"{task.name}{_call(args, kwargs)}", processes=processes)

    def check_faults(self) -> None:
        """Raise `AssertionError` for injected faults whose points no run has reached."""
        __tracebackhide__ = True
        if self.ledger.hooks:
            wanted = ", ".join(hook.description for hook in self.ledger.hooks)
            passed = ", ".join(self.ledger.points_of())
            msg = f"{wanted}: no run has reached this point. Runs passed {passed or 'none, as nothing ran'}"
            raise AssertionError(msg)

    # --- looking ----------------------------------------------------------------------------------------------------

    def get(self, job_id: str) -> Job:
        """Return a job by its id. Raises `JobNotFoundError`."""
        return public_job(self.ledger.get(job_id))

    def submitted(self, task: Any = None) -> list[SubmittedJob]:
        """Return the submissions in order: all, or the submissions of a task."""
        self.ledger.settle()
        name = task and celery_task(self.app, task).name
        return [each for each in self.ledger.submitted if name in {None, each.task}]

    def assert_submitted(
        self, task: Any, *args: Any, times: int = 1, outcome: str | None = None, **kwargs: Any
    ) -> list[SubmittedJob]:
        """Assert that a task was submitted with these arguments, `times` times; return these submissions.

        Arguments are compared by name, with their defaults, as JSON: `f(1)` is `f(a=1)`. Without any, all submissions
        of the task count. With an `outcome` ("admitted", "attached", ...) only submissions with that outcome count.
        Raises `AssertionError`, which shows the submissions.
        """
        __tracebackhide__ = True
        task = celery_task(self.app, task)
        if not hasattr(task, "_onejob"):
            msg = f"{getattr(task, 'name', task)!r} is no onejob.Task: its submissions are in no ledger"
            raise ConfigurationError(msg)
        if outcome not in {None, *Outcome}:
            raise ConfigurationError(f"outcome={outcome!r} must be one of {', '.join(Outcome)}")
        wanted = Wanted(task, args, kwargs, Outcome(outcome) if outcome else None)
        found = wanted.find(self.submitted(task))
        if len(found) != times:
            raise AssertionError(wanted.describe_mismatch(self.submitted(), len(found), times))
        return found

    def assert_not_submitted(self, task: Any, *args: Any, outcome: str | None = None, **kwargs: Any) -> None:
        """Assert that a task was not submitted: with these arguments, or without any, at all."""
        __tracebackhide__ = True
        self.assert_submitted(task, *args, times=0, outcome=outcome, **kwargs)

    def _checked(self, task: Any, function: str) -> Any:
        """Return a task of onejob of this app. Raises `ConfigurationError` for any other."""
        task = celery_task(self.app, task)
        name = getattr(task, "name", task)
        if not hasattr(task, "_onejob"):
            raise ConfigurationError(f"{name!r} is no onejob.Task: {function} runs a task that has base=onejob.Task")
        app = real_app(task.app)
        if app is not self.app:
            msg = f"{name!r} is a task of app {app.main!r}, not of the isolated app {self.app.main!r}"
            raise ConfigurationError(msg)
        return task


# --- one run of a body ------------------------------------------------------------------------------------------------


def celery_task(app: Any, task: Any) -> Any:
    """Return the app's task with a name, or the task that runs a task of `django.tasks`; any other task unchanged.

    Raises `ConfigurationError` for a name that the app does not have.
    """
    name = task if isinstance(task, str) else getattr(task, "module_path", None)
    if name is None:
        return task
    if name not in app.tasks:
        msg = f"app {app.main!r} has no task {name!r}: import its module, and name it as `onejob jobs list` does"
        raise ConfigurationError(msg)
    return app.tasks[name]


def real_app(app: Any) -> Any:
    """Return the app behind a proxy such as `celery.current_app`; any other app unchanged."""
    return app._get_current_object() if hasattr(app, "_get_current_object") else app  # noqa: SLF001 - of Celery's proxies


def app_of(task: Any) -> Any:
    """Return the app of a task; for a name, or a task of `django.tasks`, the current app."""
    return getattr(task, "app", None) or current_app


def _submit(worker: InProcessWorker, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any], retries: int) -> JobRow:
    """Write a job that is no duplicate of a job that the test has submitted."""
    submission = build(worker.app_state, Call(task, args, kwargs, {"retries": retries}, source="run_job"))
    own = f"run_job {submission.id}"
    alone = replace(submission, identity=own, charges=(), rejects=False, replaces=False, queue_next=False)
    return Ledger(worker.ledger.store, worker.ledger.settings).submit(alone).job


def _lose_attempt(worker: InProcessWorker, job: JobRow, steps: Mapping[str, Any]) -> None:
    """Make an earlier attempt that has kept steps and then lost its job."""
    ledger, limits = Ledger(worker.ledger.store, worker.ledger.settings), worker.app_state.settings.limits
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


# --- assertions about submissions -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """The submissions that an assertion looks for: of a task, and if given, with some arguments and an outcome."""

    task: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outcome: Outcome | None

    def __str__(self) -> str:
        return f"{self.task.name}{_call(self.args, self.kwargs)}" if self.args or self.kwargs else str(self.task.name)

    def find(self, submitted: Sequence[SubmittedJob]) -> list[SubmittedJob]:
        """Return the wanted submissions among the submissions of the task."""
        found = [each for each in submitted if self.outcome in {None, each.outcome}]
        if not self.args and not self.kwargs:
            return found
        wanted = self._named(self.args, self.kwargs)
        return [each for each in found if self._named(each.args, each.kwargs) == wanted]

    def describe_mismatch(self, submitted: Sequence[SubmittedJob], found: int, times: int) -> str:
        """Return the message of a failed assertion: the expected submission, the nearest one, and all submissions."""
        having = f" with the outcome {self.outcome}" if self.outcome else ""
        lines = [f"{self} was submitted {found} times{having}, expected {times}"]
        own = [each for each in submitted if each.task == self.task.name]
        if own and not found and (self.args or self.kwargs):
            differing = sorted((self._differences(each) for each in own), key=lambda texts: (len(texts), texts))
            lines.append(f"nearest: {'; '.join(differing[0])}")
        lines.append("submitted:" if submitted else "nothing was submitted")
        lines += [
            f"  {each.task}{_call(each.args, each.kwargs)} {each.outcome}, job {each.job_id}"
            for each in submitted[:SHOWN]
        ]
        if len(submitted) > SHOWN:
            lines.append(f"  and {len(submitted) - SHOWN} more")
        return "\n".join(lines)

    def _differences(self, each: SubmittedJob) -> list[str]:
        given = {name: repr(value) for name, value in self._named(each.args, each.kwargs).items()}
        wanted = {name: repr(value) for name, value in self._named(self.args, self.kwargs).items()}
        texts = [
            f"{name} is {given.get(name, 'missing')}, expected {wanted.get(name, 'missing')}"
            for name in {**wanted, **given}
            if given.get(name) != wanted.get(name)
        ]
        is_other = self.outcome not in {None, each.outcome}
        return texts + ([f"outcome is {each.outcome}, expected {self.outcome}"] if is_other else [])

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return arguments by name, as they arrive in a worker. Raises `InvalidArgumentsError`."""
        args, kwargs = dump_models(self.task, args, kwargs, {})
        named = self.task._onejob.identifier.arguments(args, kwargs)
        decoded: dict[str, Any] = loads(dumps(named, "the arguments", TextLimits()))
        return decoded


def _call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return f"({', '.join([*map(repr, args), *(f'{name}={value!r}' for name, value in kwargs.items())])})"

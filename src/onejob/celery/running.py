"""The handle of the running job: `onejob.current_job()` inside a task's body."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar, cast

from onejob.celery.message import dumps, loads
from onejob.errors import InvalidArgumentsError, JobCanceled, JobReleased, LeaseLost, OneJobError
from onejob.job import Cancel
from onejob.lifecycle import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from onejob.canonical import Limits
    from onejob.job import Job
    from onejob.ledger import Ledger

T = TypeVar("T")
_current: ContextVar[RunningJob | None] = ContextVar("onejob_current_job", default=None)

draining = threading.Event()
"""Set when the worker of this process is shutting down."""


def current_job() -> RunningJob:
    """Return the job whose body is running here. Raises `OneJobError` outside of one."""
    running = _current.get()
    if running is None:
        msg = "no onejob job is running here: current_job() works inside the body of a task that a worker runs"
        raise OneJobError(msg)
    return running


def claim_of(message: str, pid: int) -> str:
    """Return the nonce with which a process claims the job of a message, from the nonce of its parent's request.

    The parent knows it, too. It differs by process, because a pool hands a message on when its first child dies early.
    """
    return f"{message[:8]}{pid:08x}"


def running_job() -> RunningJob | None:
    """Return the job whose body is running here, or None."""
    return _current.get()


class RunningJob:
    """What a body can know and say about its own job. Safe to use from the body's thread."""

    def __init__(self, job: Job, ledger: Ledger, limits: Limits) -> None:
        self._job = job
        self._ledger = ledger
        self._limits = limits
        self._kept: dict[str, str] | None = None
        self.moved_on = False
        """Whether this run has ended for the ledger already, by asking for a retry."""
        self.replaced = False
        """Whether the body replaced itself by another signature (`Task.replace`)."""

    @property
    def id(self) -> str:
        """The job's id, the same in every attempt."""
        return self._job.id

    @property
    def attempt(self) -> int:
        """Which run this is, from 1."""
        return self._job.attempt

    @property
    def token(self) -> int:
        """The fencing token: larger than that of every earlier run. Hand it to systems that can refuse older ones."""
        return self._job.token

    @property
    def job(self) -> Job:
        """The job as it was when this run began."""
        return self._job

    @property
    def canceled(self) -> bool:
        """Whether somebody asked this run to stop, or it is no longer the job's run. Asks the ledger."""
        job = self._ledger.store.get(self.id)
        return job is None or job.cancel is not Cancel.NO or job.token != self.token or job.state is not State.RUNNING

    def progress(self, done: float, total: float | None = None, stage: str = "") -> None:
        """Tell how far the job is: `done` of `total` units, in `stage`.

        Raises `JobCanceled`, `LeaseLost` or `JobReleased` when this run has to stop; let them pass.
        """
        self.stop_if_draining()
        text = dumps({"done": done, "total": total, "stage": stage}, "the progress", self._limits)
        self._ledger.report(self._job, text)

    def step(self, name: str, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Return `fn(*args, **kwargs)`, computed once in the job's life: a later attempt gets the kept value.

        `name` must be unique in the body; the value must be JSON (it comes back as JSON gives it, also the first time).
        Raises what `fn` raises, `InvalidPayloadError` for a value that cannot be kept, and the signals of `progress`.
        """
        if not isinstance(name, str) or not name:
            msg = f"a step needs a name, a text that is unique in the body, not {name!r}"
            raise InvalidArgumentsError(msg)
        kept = self._steps().get(name)
        if kept is None:
            self._stop_if_asked()
            value = dumps(fn(*args, **kwargs), f"the value of step {name!r}", self._limits)
            kept = self._ledger.keep_step(self._job, name, value)
            self._steps()[name] = kept
        return cast("T", loads(kept))

    @property
    def kept_steps(self) -> frozenset[str]:
        """The names of the steps that need not be computed again."""
        return frozenset(self._steps())

    def _steps(self) -> dict[str, str]:
        if self._kept is None:
            self._kept = dict(self._ledger.steps(self._job))
        return self._kept

    def stop_if_draining(self) -> None:
        """Raise `JobReleased` when the worker of this process is shutting down."""
        if draining.is_set():
            raise JobReleased(self.id)

    def _stop_if_asked(self) -> None:
        self.stop_if_draining()
        now = self._ledger.get(self.id)
        if now.token != self.token or now.state is not State.RUNNING:
            raise LeaseLost(self.id)
        if now.cancel is not Cancel.NO:
            raise JobCanceled(self.id)


@contextmanager
def running(job: RunningJob) -> Iterator[RunningJob]:
    """Make a job the current one."""
    mark = _current.set(job)
    try:
        yield job
    finally:
        _current.reset(mark)

"""The handle of the running job: `onejob.current_job()` inside a task's body."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import UUID, uuid5

from onejob.celery.message import dumps, loads
from onejob.errors import (
    ConfigurationError,
    JobCanceled,
    JobReleased,
    LeaseLost,
    OneJobError,
    StaleTokenError,
)
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Cancel
from onejob.jobs.submitter import check_name
from onejob.transactions.sessions import transaction_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from onejob.jobs.model import Job, Retention
    from onejob.ledger.ledger import Ledger
    from onejob.uniqueness.canonical_json import Limits

T = TypeVar("T")
S = TypeVar("S")
EFFECTS = UUID("6f1f2d0c-6c5b-4c55-9f0e-0d2f1a3c7e55")
"""The name space of effect keys: any UUID, never to be changed."""
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

    def __init__(self, job: Job, ledger: Ledger, limits: Limits, keep: Retention | None = None) -> None:
        self._keep = keep
        self._job = job
        self._ledger = ledger
        self._limits = limits
        self._kept: dict[str, str] | None = None
        self.moved_on = False
        """Whether this run has ended for the ledger already, by asking for a retry."""
        self.replaced = False
        """Whether the body replaced itself by another signature (`Task.replace`)."""
        self._sessions: list[Any] = []
        """The sessions into which the body has written the end of this run: one, unless it has tried again."""

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
        job = self._ledger.get_or_none(self.id)
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
        check_name("a step", name)
        kept = self._steps().get(name)
        if kept is None:
            self._stop_if_asked()
            value = dumps(fn(*args, **kwargs), f"the value of step {name!r}", self._limits)
            kept = self._ledger.keep_step(self._job, name, value)
            self._steps()[name] = kept
        return cast("T", loads(kept))

    def effect_key(self, name: str) -> str:
        """Return an idempotency key for an effect on a third party: the same in every attempt of this job.

        It belongs to the job, not to its identity: a job that is submitted after this one has ended has other keys.
        `name` tells the effects of one job apart ("charge", "mail"). 43 ASCII characters: "onejob-" and 36 of a UUID.
        """
        check_name("an effect", name)
        return f"onejob-{uuid5(EFFECTS, f'{len(self.id)}:{self.id}:{name}')}"

    def complete(self, result: Any) -> None:
        """End the job with what its body has returned. Raises `InvalidPayloadError` and `StaleTokenError`."""
        self._ledger.complete(self._job, dumps(result, "the result", self._limits), keep=self._keep)

    # --- ending in a transaction of the user ------------------------------------------------------------------------

    def complete_in(self, session: object, result: object = None) -> None:
        """End the job with its result as a part of the transaction of a session, which the caller commits.

        The session (of SQLAlchemy, Django, psycopg) must be on the database where the ledger lives. Effects in it,
        result and state become true together; what the body returns afterwards is not looked at. No other run can
        start between this call and the commit, so call it last.

        Raises `LeaseLost` when this run is no longer the job's: let it pass, and roll back. Raises
        `InvalidPayloadError` for a result that cannot be stored, and `ConfigurationError` when the ledger lives
        elsewhere or the connection commits each statement by itself.
        """
        text = dumps(result, "the result", self._limits)
        transaction = transaction_of(session)
        if transaction.autocommits:
            msg = "this connection commits every statement by itself: effects and completion need one transaction"
            raise ConfigurationError(msg)
        try:
            self._ledger.in_transaction(transaction).complete(self._job, text, keep=self._keep)
        except StaleTokenError as error:
            raise self._refused(error) from None
        self._sessions.append(session)

    def _refused(self, error: StaleTokenError) -> BaseException:
        """Tell a run that was overtaken from a mistake of its body."""
        if self._sessions and error.state == State.COMPLETED and self.committed() is None:
            return OneJobError("complete_in was called twice in one transaction: a job ends once")
        if error.state == "gone":
            return ConfigurationError("the database of this session has no such job: it is not the ledger's database")
        return LeaseLost(self.id)

    @contextmanager
    def transaction(self, session_factory: Callable[[], S]) -> Iterator[S]:
        """Open a session, and end the job with it: effects in the block, result and state are one commit.

        The job completes with None unless the block calls `complete_in(session, result)`. An exception rolls back.
        `session_factory` returns a new session or connection, e.g. a `sessionmaker`. Raises as `complete_in` does, and
        what the commit raises; a commit whose answer was lost is looked up in the ledger when the body ends. A database
        that goes away before the commit is the driver's error: name it in `autoretry_for`, or the job fails for good.
        """
        session: Any = session_factory()
        before = len(self._sessions)
        try:
            yield session
            if len(self._sessions) == before:
                self.complete_in(session)
        except BaseException:
            del self._sessions[before:]  # it was not committed, for sure
            with suppress(Exception):
                session.rollback()
            raise
        else:
            session.commit()
        finally:
            with suppress(Exception):
                session.close()

    @property
    def ending(self) -> bool:
        """Whether the body has written the end of this run into a transaction of its own."""
        return bool(self._sessions)

    def committed(self) -> Job | None:
        """Return the job if a transaction of this run has ended it: the only way to know after an error at a commit."""
        if not self._sessions:
            return None
        job = self._ledger.get_or_none(self.id)
        return job if job is not None and job.state is State.COMPLETED and job.token == self.token else None

    def undo(self) -> None:
        """Roll back what the body has left open, so that nobody waits for the job's row."""
        for session in self._sessions:
            with suppress(Exception):
                session.rollback()

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

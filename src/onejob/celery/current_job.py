"""The handle of the running job: `onejob.current_job()` inside a task's body."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cached_property
from math import inf
from typing import Any, ParamSpec, TypeVar, cast
from uuid import UUID, uuid5

from celery.result import ResultBase

from onejob import errors
from onejob.celery.payload import dumps, loads
from onejob.celery.typed import Codec, TypedBody, convert_result, result_codec
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Cancel, Job, Retention
from onejob.jobs.policy import Limits
from onejob.jobs.submitter import check_name
from onejob.ledger.ledger import Ledger
from onejob.observability import tracing
from onejob.transactions.sessions import transaction_of

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")
EFFECTS = UUID("6f1f2d0c-6c5b-4c55-9f0e-0d2f1a3c7e55")
"""The UUID namespace of effect keys. It must never change."""
STAGE_LIMIT = 500
"""Characters of the stage of a progress."""
_current: ContextVar[RunningJob | None] = ContextVar("onejob_current_job", default=None)

draining = threading.Event()
"""Set when the worker of this process is shutting down."""


def current_job() -> RunningJob:
    """Return the job whose body is running in this context. Raises `OneJobError` if there is none."""
    job = _current.get()
    if job is None:
        msg = "no onejob job is running here: current_job() works inside the body of a task that a worker runs"
        raise errors.OneJobError(msg)
    return job


def claim_of(message: str, pid: int) -> str:
    """Return the nonce of a process's claim for a message. Its parent can compute it; each child has another."""
    return f"{message[:8]}{pid:08x}"


def current_job_or_none() -> RunningJob | None:
    """Return the job whose body is running in this context, or None."""
    return _current.get()


class RunningJob:
    """The handle of a body on its own job. Safe to use from the body's thread only."""

    def __init__(
        self, job: Job, ledger: Ledger, limits: Limits, retention: Retention | None = None,
        typed: TypedBody | None = None,
    ) -> None:  # fmt: skip
        self._typed = typed
        self._retention = retention
        self._job = job
        self._ledger = ledger
        self._limits = limits
        self.ended = False
        """Whether the ledger has ended this run already, with a retry or a replacement."""
        self.replaced = False
        """Whether the body is replacing itself by another signature (`Task.replace`)."""
        self._sessions: list[Any] = []
        """The sessions in which the body has completed the job: one, unless a transaction was repeated."""

    @property
    def id(self) -> str:
        """The job's id, the same in every attempt."""
        return self._job.id

    @property
    def attempt(self) -> int:
        """The number of this run, from 1."""
        return self._job.attempt

    @property
    def token(self) -> int:
        """The fencing token: larger than that of every earlier run. Pass it to systems that can refuse older ones."""
        return self._job.token

    @property
    def job(self) -> Job:
        """The job as it was when this run started."""
        return self._job

    @property
    def canceled(self) -> bool:
        """Whether this run was canceled, or is no longer the job's run. Reads the ledger."""
        job = self._ledger.get_or_none(self.id)
        return job is None or job.cancel is not Cancel.NO or job.token != self.token or job.state is not State.RUNNING

    def progress(self, done: float, total: float | None = None, stage: str = "") -> None:
        """Report the progress of the job: `done` of `total` units, in `stage`.

        Raises `InvalidArgumentsError` unless 0 <= done <= total, or for a stage of more than `STAGE_LIMIT` characters;
        `JobCanceled`, `LeaseLost` or `JobReleased` when this run has to stop: do not catch them.
        """
        if not _is_amount(done) or not (total is None or (_is_amount(total) and done <= total)):
            msg = f"progress takes numbers with 0 <= done <= total, not done={done!r:.100}, total={total!r:.100}"
            raise errors.InvalidArgumentsError(msg)
        if not isinstance(stage, str) or len(stage) > STAGE_LIMIT:
            size = f"{len(stage)} characters" if isinstance(stage, str) else type(stage).__name__
            msg = f"the stage of a progress is a text of at most {STAGE_LIMIT} characters, not {size}"
            raise errors.InvalidArgumentsError(msg)
        self._report({"done": done, "total": total, "stage": stage})

    def report_state(self, state: str, meta: object) -> None:
        """Report a state of the application's own, with its `meta`, as the progress. Raises as `progress`."""
        self._report({"state": state, "meta": meta})

    def _report(self, value: object) -> None:
        self.raise_if_draining()
        self._ledger.report(self._job, dumps(value, "the progress", self._limits))

    def step(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return `fn(*args, **kwargs)`, computed once per job: a later attempt gets the stored value.

        `name` must be unique in the body; the value must be JSON-serializable, and is returned as decoded from JSON,
        also the first time. A dataclass or a pydantic model that `fn` says to return is stored as JSON, and comes back
        as such. Raises what `fn` raises, `InvalidPayloadError` for a value that cannot be stored, and the signals of
        `progress`.
        """
        check_name("the name of a step", name)
        stored, codec, what = self._steps.get(name), result_codec(fn), f"the value of step {name!r}"
        with tracing.tracer.step(name, memoised=stored is not None):
            if stored is None:
                self.raise_if_interrupted()
                value = convert_result(Codec.dump, codec, fn(*args, **kwargs), what)
                stored = self._ledger.keep_step(self._job, name, dumps(value, what, self._limits))
                self._steps[name] = stored
        return cast("T", convert_result(Codec.build, codec, loads(stored), what))

    def effect_key(self, name: str) -> str:
        """Return an idempotency key for an effect on a third party: the same in every attempt of this job.

        It belongs to the job, not to its identity: an equal job that is submitted after the end of this one has other
        keys. `name` identifies an effect within the job ("charge", "mail"). 43 ASCII characters: "onejob-" and a UUID.
        """
        check_name("the name of an effect", name)
        return f"onejob-{uuid5(EFFECTS, f'{len(self.id)}:{self.id}:{name}')}"

    def complete(self, result: Any, *, request_id: str | None = None) -> None:
        """Complete the job with the return value of its body. Raises `InvalidPayloadError` and `StaleTokenError`."""
        if isinstance(result, ResultBase):
            result = result.as_tuple()  # type: ignore[attr-defined] # as Celery stores it
        text = dumps(result, "the result", self._limits)
        self._ledger.complete(self._job, text, keep=self._retention, request_id=request_id)

    # --- completing in a transaction of the user --------------------------------------------------------------------

    def complete_in(self, session: object, result: object = None) -> None:
        """Complete the job in the transaction of a session, which the caller commits.

        The session (of SQLAlchemy, Django, psycopg) must be on the database of the ledger. Its effects, the result and
        the state are one commit; the return value of the body is ignored. The job's row is locked from this call to
        the commit, so call it last.

        Raises `LeaseLost` if this run is no longer the job's: do not catch it, and roll back. Raises
        `InvalidPayloadError` for a result that cannot be stored, and `ConfigurationError` if the ledger is in another
        database or the connection is in autocommit mode.
        """
        value = result if self._typed is None else self._typed.dump_result(result)
        text = dumps(value, "the result", self._limits)
        transaction = transaction_of(session)
        if transaction.autocommits:
            msg = "this connection is in autocommit mode: effects and completion need one transaction"
            raise errors.ConfigurationError(msg)
        try:
            self._ledger.in_transaction(transaction).complete(self._job, text, keep=self._retention)
        except errors.StaleTokenError as error:
            if self._sessions and error.state == State.COMPLETED and self.find_committed() is None:
                raise errors.OneJobError("complete_in was called twice in one transaction: a job ends once") from None
            raise errors.LeaseLost(self.id) from None
        self._sessions.append(session)

    @contextmanager
    def transaction(self, session_factory: Callable[[], S]) -> Iterator[S]:
        """Open a session, and complete the job in it: effects in the block, result and state are one commit.

        The job completes with None unless the block calls `complete_in(session, result)`. An exception rolls back.
        `session_factory` returns a new session or connection, e.g. a `sessionmaker`. Raises as `complete_in` does, and
        what the commit raises; if the reply to a commit is lost, the ledger is read when the body ends. A connection
        that is lost before the commit raises the driver's error: list it in `autoretry_for`, or the job fails.
        """
        session: Any = session_factory()
        before = len(self._sessions)
        try:
            yield session
            if len(self._sessions) == before:
                self.complete_in(session)
        except BaseException:
            del self._sessions[before:]  # it was certainly not committed
            with suppress(Exception):
                session.rollback()
            raise
        else:
            session.commit()
        finally:
            with suppress(Exception):
                session.close()

    @property
    def completes_in_transaction(self) -> bool:
        """Whether the body has completed the job in a transaction of its own."""
        return bool(self._sessions)

    def find_committed(self) -> Job | None:
        """Return the job if a transaction of this run completed it: the only proof after an error at a commit."""
        if not self._sessions:
            return None
        job = self._ledger.get_or_none(self.id)
        return job if job is not None and job.state is State.COMPLETED and job.token == self.token else None

    def rollback_sessions(self) -> None:
        """Roll back the transactions that the body has left open, which lock the job's row."""
        for session in self._sessions:
            with suppress(Exception):
                session.rollback()

    @cached_property
    def _steps(self) -> dict[str, str]:
        return dict(self._ledger.steps(self._job))

    def raise_if_draining(self) -> None:
        """Raise `JobReleased` when the worker of this process is shutting down."""
        if draining.is_set():
            raise errors.JobReleased(self.id)

    def raise_if_interrupted(self) -> None:
        """Raise `LeaseLost`, `JobCanceled` or `JobReleased` if this run has to stop. Reads the ledger."""
        self.raise_if_draining()
        now = self._ledger.get(self.id)
        if now.token != self.token or now.state is not State.RUNNING:
            raise errors.LeaseLost(self.id)
        if now.cancel is not Cancel.NO:
            raise errors.JobCanceled(self.id)


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < inf


@contextmanager
def set_current_job(job: RunningJob) -> Iterator[RunningJob]:
    """Make a job the `current_job()` of the block."""
    reset_token = _current.set(job)
    try:
        yield job
    finally:
        _current.reset(reset_token)

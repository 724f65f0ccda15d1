"""A run of a job: what the worker and the body share of it, and the run of this context."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, TypeVar

from celery.result import ResultBase

from onejob import errors
from onejob.celery.messages.payload import dumps
from onejob.celery.messages.typed import TypedBody
from onejob.celery.run_log import RunLogWriter, capturing
from onejob.jobs.costs import Amounts
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Cancel, IdentityHold, JobRow
from onejob.jobs.text_limits import TextLimits
from onejob.ledger.ledger import Ledger
from onejob.stores.protocol import Store
from onejob.transactions.sessions import transaction_of

T = TypeVar("T")
_current: ContextVar[Run | None] = ContextVar("onejob_current_run", default=None)

draining = threading.Event()
"""The event that is set when the worker of this process shuts down."""


def claim_of(message: str, pid: int) -> str:
    """Return the nonce of a process's claim for a message. The parent can compute it, and it differs in each child."""
    return f"{message[:8]}{pid:08x}"


def current_run() -> Run:
    """Return the run whose body is running in this context. Raises `OneJobError` if there is none."""
    run = _current.get()
    if run is None:
        msg = "no onejob job is running here: current_job() works inside the body of a task that a worker runs"
        raise errors.OneJobError(msg)
    return run


def current_run_or_none() -> Run | None:
    """Return the run whose body is running in this context, or None."""
    return _current.get()


@contextmanager
def set_current_run(run: Run) -> Iterator[Run]:
    """Make a run the `current_run()` of the block."""
    reset_token = _current.set(run)
    try:
        yield run
    finally:
        _current.reset(reset_token)


class Run:
    """A run of a job in this worker, whose body gets a `RunningJob`.

    Safe to use from the body's thread, from the coroutines of its event loop, and from the threads that these await.
    """

    def __init__(
        self, job: JobRow, ledger: Ledger, limits: TextLimits, hold: IdentityHold | None = None,
        typed: TypedBody | None = None, *, captures_logging: bool = False,
    ) -> None:  # fmt: skip
        self.job = job
        """The job as it was when this run started."""
        self._costed = job
        """The job with what `add_cost` has added."""
        self.ended = False
        """Whether the ledger has ended this run already, with a retry or a replacement."""
        self.replaced = False
        """Whether the body is replacing itself by another signature (`Task.replace`)."""
        self.sessions: list[Any] = []
        """The sessions in which the body has completed the job: one session, unless a transaction was repeated."""
        self._lock = threading.Lock()
        """Held to set what threads and coroutines of the body share, never during a request."""
        self._steps: dict[str, str] | None = None
        """The values of the steps as JSON, once they have been read."""
        self._computing: set[str] = set()
        """The names of the steps that coroutines compute."""
        self.cost_lock = asyncio.Lock()
        """Held by the coroutine that adds costs: writes at once would be repeated."""
        self._captures_logging = captures_logging
        self._log: RunLogWriter | None = None
        self._typed = typed
        self._hold = hold
        self._ledger = ledger
        self._limits = limits

    @property
    def id(self) -> str:
        """The job's id."""
        return self.job.id

    @property
    def store(self) -> Store:
        """The store of the ledger."""
        return self._ledger.store

    @property
    def is_canceled(self) -> bool:
        """Whether this run was canceled, or is no longer the job's run. Reads the ledger."""
        now = self._ledger.get_or_none(self.id)
        return now is None or now.cancel is not Cancel.NO or not self._is_run_of(now)

    def _is_run_of(self, now: JobRow) -> bool:
        return now.token == self.job.token and now.state is State.RUNNING

    # --- the signals that stop a run ----------------------------------------------------------------------------------

    def raise_if_draining(self) -> None:
        """Raise `JobReleased` when the worker of this process is shutting down."""
        if draining.is_set():
            raise errors.JobReleased(self.id)

    def raise_if_interrupted(self) -> None:
        """Raise `LeaseLost`, `JobCanceled` or `JobReleased` if this run has to stop. Reads the ledger."""
        self.raise_if_draining()
        now = self._ledger.get(self.id)
        if not self._is_run_of(now):
            raise errors.LeaseLost(self.id)
        if now.cancel is not Cancel.NO:
            raise errors.JobCanceled(self.id)

    # --- progress and steps -------------------------------------------------------------------------------------------

    def report(self, value: object) -> None:
        """Store the progress of the job. Raises `JobCanceled`, `LeaseLost` or `JobReleased` if the run has to stop."""
        self.raise_if_draining()
        self._ledger.report(self.job, dumps(value, "the progress", self._limits))

    def report_state(self, state: str, meta: object) -> None:
        """Report a state of the application's own, with its `meta`, as the progress. Raises as `report`."""
        self.report({"state": state, "meta": meta})

    def add_cost(self, amounts: Amounts) -> None:
        """Add amounts to the costs of this run. Raises `LeaseLost`, and `InvalidArgumentsError`."""
        self._costed = self._ledger.add_cost(self._costed, amounts)

    def spend(self, limit: str, amount: float) -> None:
        """Correct the weight of the job for the rate of a limit. Raises `InvalidArgumentsError`."""
        self._ledger.spend(self.job, limit, amount)

    def find_step(self, name: str) -> str | None:
        """Return the value that a step has kept, as JSON; None without one."""
        return self._known_steps().get(name)

    def keep_step(self, name: str, value: object) -> str:
        """Keep the value of a step, and return it as JSON. Raises `InvalidPayloadError`, and as `report`."""
        text = dumps(value, f"the value of step {name!r}", self._limits)
        kept = self._ledger.keep_step(self.job, name, text)
        self._known_steps()[name] = kept
        return kept

    def _known_steps(self) -> dict[str, str]:
        if self._steps is None:
            found = dict(self._ledger.steps(self.job))
            with self._lock:  # all who have read the steps at once go on with one of the answers
                self._steps = found if self._steps is None else self._steps
        return self._steps

    @contextmanager
    def computing(self, name: str) -> Iterator[None]:
        """Compute a step in a coroutine. Raises `InvalidArgumentsError` while another one computes that step."""
        if name in self._computing:
            raise errors.InvalidArgumentsError(
                f"step {name!r} is being computed by another coroutine of this body: give each step a name of its own"
            )
        self._computing.add(name)
        try:
            yield
        finally:
            self._computing.discard(name)

    # --- the log ------------------------------------------------------------------------------------------------------

    @property
    def log(self) -> RunLogWriter:
        """The log of this run, which the ledger keeps."""
        with self._lock:
            if self._log is None:
                self._log = RunLogWriter(partial(self._ledger.keep_run_log, self.job))
            return self._log

    def call(self, body: Callable[[], T]) -> T:
        """Call the body, and write the end of its log to the ledger, whatever the body raises."""
        try:
            if not self._captures_logging:
                return body()
            with capturing(self.log):
                return body()
        finally:
            if self._log is not None:
                self._log.flush()

    # --- the end ------------------------------------------------------------------------------------------------------

    def complete(self, result: Any, *, request_id: str | None = None) -> None:
        """Complete the job with the return value of its body. Raises `InvalidPayloadError` and `StaleTokenError`."""
        if isinstance(result, ResultBase):
            result = result.as_tuple()  # type: ignore[attr-defined] # as Celery stores it
        text = dumps(result, "the result", self._limits)
        self._ledger.complete(self.job, text, hold=self._hold, request_id=request_id)

    def complete_in(self, session: object, result: object, *, owner: object = None) -> None:
        """Complete the job in the transaction of a session. Raises as `RunningJob.complete_in`.

        `owner` rolls the transaction back, if it is not the session.
        """
        value = result if self._typed is None else self._typed.dump_result(result)
        text = dumps(value, "the result", self._limits)
        transaction = transaction_of(session)
        if transaction.autocommits:
            msg = "this connection is in autocommit mode: effects and completion need one transaction"
            raise errors.ConfigurationError(msg)
        try:
            self._ledger.in_transaction(transaction).complete(self.job, text, hold=self._hold)
        except errors.StaleTokenError as error:
            if self.sessions and error.state == State.COMPLETED and self.find_committed() is None:
                raise errors.OneJobError("complete_in was called twice in one transaction: a job ends once") from None
            raise errors.LeaseLost(self.id) from None
        self.sessions.append(session if owner is None else owner)

    @property
    def completes_in_transaction(self) -> bool:
        """Whether the body has completed the job in a transaction of its own."""
        return bool(self.sessions)

    def find_committed(self) -> JobRow | None:
        """Return the job if a transaction of this run completed it: the only proof after an error at a commit."""
        if not self.completes_in_transaction:
            return None
        now = self._ledger.get_or_none(self.id)
        return now if now is not None and now.state is State.COMPLETED and now.token == self.job.token else None

    def rollback_sessions(self) -> None:
        """Roll back the transactions that the body has left open, which lock the job's row."""
        for session in self.sessions:
            if iscoroutinefunction(session.rollback):  # `arollback_sessions` has been awaited in the body's event loop
                continue
            with suppress(Exception):
                session.rollback()

    async def arollback_sessions(self) -> None:
        """Roll back the transactions of asynchronous sessions that the body has left open."""
        for session in self.sessions:
            if iscoroutinefunction(session.rollback):
                with suppress(Exception):
                    await session.rollback()

"""The operations on jobs, as the HTTP API, the command line and the dashboard carry them out."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from onejob.celery.control import broadcast_cancel, push_message, redrive
from onejob.errors import JobEndedError, JobNotEndedError, NoDeadLetterError, NotWaitingError, describe
from onejob.jobs.lifecycle import FINAL, RULES, State, Transition
from onejob.observability.logs import log_warning

if TYPE_CHECKING:
    from celery import Celery

    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger


class Operation(StrEnum):
    """An operation on a job."""

    CANCEL = "cancel"
    FORCE_CANCEL = "force_cancel"
    RUN_NOW = "run_now"
    REDRIVE = "redrive"
    DELETE = "delete"

    @property
    def states(self) -> frozenset[State]:
        """The states of the jobs that it applies to."""
        return _STATES[self]

    @property
    def permission(self) -> str:
        """The action that a caller must be permitted."""
        return str(Operation.CANCEL if self is Operation.FORCE_CANCEL else self)

    @property
    def done(self) -> str:
        """What a job is after it, as a participle."""
        return _DONE[self]

    def check(self, job: Job) -> None:
        """Raise the error of this operation for a job in a state that it does not apply to."""
        if job.state not in self.states:
            raise _ERRORS[self](job.id, job.state)


_STATES = {
    Operation.CANCEL: frozenset(State) - FINAL,
    Operation.FORCE_CANCEL: frozenset(State) - FINAL,
    Operation.RUN_NOW: RULES[Transition.RUN_NOW].sources,
    Operation.REDRIVE: RULES[Transition.REDRIVE].sources,
    Operation.DELETE: FINAL,
}
_DONE = {
    Operation.CANCEL: "canceled",
    Operation.FORCE_CANCEL: "canceled",
    Operation.RUN_NOW: "made due",
    Operation.REDRIVE: "redriven",
    Operation.DELETE: "deleted",
}
_ERRORS: dict[Operation, type[JobEndedError | NotWaitingError | NoDeadLetterError | JobNotEndedError]] = {
    Operation.CANCEL: JobEndedError,
    Operation.FORCE_CANCEL: JobEndedError,
    Operation.RUN_NOW: NotWaitingError,
    Operation.REDRIVE: NoDeadLetterError,
    Operation.DELETE: JobNotEndedError,
}


def operate(
    app: Celery | None, ledger: Ledger, operation: Operation, job: Job, *, origin: str, forget_steps: bool = False
) -> Job | None:
    """Carry out an operation, and return the job afterwards; None after a deletion.

    `app`: the app of the job's workers, which a forced cancellation notifies at once; None if it is not known. `job`:
    may be without its `LARGE_FIELDS`, and may have changed. `origin`: where the operation comes from, and whose it is,
    for the history ("over HTTP by ops"). `forget_steps`: a redriven job runs its completed steps again.

    Raises `JobNotFoundError`; what `Operation.check` raises for a job in another state, `NotWaitingError` also for one
    that waits for another job; `IdentityHeldError` for a redrive; `UniquenessWindowError` for a deletion.
    """
    reason = f"{operation.done} {origin}"
    match operation:
        case Operation.CANCEL | Operation.FORCE_CANCEL:
            return _cancel(app, ledger, operation, job, reason)
        case Operation.RUN_NOW:
            return ledger.run_now(job.id, reason=reason, message_of=partial(push_message, app, ledger))
        case Operation.REDRIVE:
            return redrive(app, ledger, ledger.get(job.id), forget_steps=forget_steps, reason=reason)
        case Operation.DELETE:
            ledger.delete(job.id)
            return None


def _cancel(app: Celery | None, ledger: Ledger, operation: Operation, job: Job, reason: str) -> Job:
    operation.check(job)
    forced = operation is Operation.FORCE_CANCEL
    canceled = ledger.cancel(job.id, force=forced, reason=reason)
    if canceled.state.final and canceled.state is not State.CANCELED:
        raise JobEndedError(canceled.id, canceled.state)
    if forced and app is not None and not canceled.state.final:
        error = broadcast_cancel(app, job.id)
        if error is not None:
            log_warning(
                "job %s is canceled, which its worker will see at its next heartbeat, since the broker failed: %s",
                job.id,
                describe(error),
            )
    return canceled

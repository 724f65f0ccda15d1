"""Every exception of onejob. All of them pickle, because exceptions cross process borders in Celery.

Errors derive from `OneJobError`. Signals that stop a running body derive from `JobInterrupted`, a `BaseException` on
purpose: neither `except Exception` in a body nor Celery's `autoretry_for=(Exception,)` may swallow them.
"""

from __future__ import annotations


class OneJobError(Exception):
    """Base of every error that onejob raises."""


class ConfigurationError(OneJobError, ValueError):
    """A setting or a task option cannot work. Raised when a task is defined or a ledger is opened, never in a run."""


class InvalidArgumentsError(OneJobError, TypeError):
    """The arguments of a submission do not fit the task's signature. Nothing was stored."""


class KeyRequiredError(InvalidArgumentsError):
    """The task has `requires_key=True`, and the submission came without an idempotency key. Nothing was stored."""

    def __init__(self, task: str) -> None:
        super().__init__(task)
        self.task = task

    def __str__(self) -> str:
        return (
            f"task {self.task} requires an idempotency key, by which the call can be repeated safely: "
            "apply_async(..., idempotency_key=...), or over HTTP the header Idempotency-Key"
        )


class InvalidPayloadError(OneJobError, ValueError):
    """A value cannot be identified or stored (NaN, a set, too deep, too large, ...). Nothing was stored."""


class StoreError(OneJobError):
    """The store answered with an error."""


class StoreUnavailableError(StoreError):
    """The store did not answer. Whether a write took effect is unknown; repeating it with its request id is safe."""


class StoreBusyError(StoreUnavailableError):
    """A row that an operation needs is somebody else's for too long. Repeating it with its request ids is safe."""


class JobNotFoundError(OneJobError, LookupError):
    """No job has this id: it was never submitted, or its retention has passed."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"no job has the id {self.job_id!r}: it was never submitted, or it was purged after its retention"


class JobPurgedError(JobNotFoundError):
    """The job with this id had ended and was purged after its retention. Its end is still known; times are RFC 3339."""

    def __init__(self, job_id: str, state: str, finished_at: str, purged_at: str) -> None:
        super().__init__(job_id)
        self.args = (job_id, state, finished_at, purged_at)
        self.state = state
        self.finished_at = finished_at
        self.purged_at = purged_at

    def __str__(self) -> str:
        return f"job {self.job_id!r} was {self.state} at {self.finished_at} and purged at {self.purged_at}"


class StaleTokenError(OneJobError):
    """A write named a token that is no longer the job's: another run owns the job, or the job has ended."""

    def __init__(self, job_id: str, token: int, state: str) -> None:
        super().__init__(job_id, token, state)
        self.job_id = job_id
        self.token = token
        self.state = state

    def __str__(self) -> str:
        return f"job {self.job_id} refused the write of token {self.token}: that run is over, the job is {self.state}"


class DuplicateJobError(OneJobError):
    """An equal job is there already, and the task's `on_duplicate="raise"` wants to be told so."""

    def __init__(self, job_id: str, state: str, task: str) -> None:
        super().__init__(job_id, state, task)
        self.job_id = job_id
        self.state = state
        self.task = task

    def __str__(self) -> str:
        return f"an equal job of {self.task} is {self.state} already: {self.job_id}"


class KeyReuseMismatchError(OneJobError, ValueError):
    """An idempotency key came with other arguments than the first time. Nothing was submitted."""

    def __init__(self, key: str, job_id: str) -> None:
        super().__init__(key, job_id)
        self.key = key
        self.job_id = job_id

    def __str__(self) -> str:
        return (
            f"the idempotency key {self.key!r} belongs to another submission, which job {self.job_id} answered: "
            "a key names one task with one set of arguments. Take a new key for a new submission"
        )


class IdentityHeldError(OneJobError):
    """A dead letter cannot be sent again, because another job is live for its identity."""

    def __init__(self, job_id: str, holder_id: str, holder_state: str) -> None:
        super().__init__(job_id, holder_id, holder_state)
        self.job_id = job_id
        self.holder_id = holder_id
        self.holder_state = holder_state

    def __str__(self) -> str:
        return (
            f"job {self.job_id} cannot be sent again: job {self.holder_id}, which is {self.holder_state}, "
            "holds its identity. Wait for its end, or cancel it"
        )


class NoDeadLetterError(OneJobError):
    """A job is not a dead letter: only a job that failed can be sent again."""

    def __init__(self, job_id: str, state: str) -> None:
        super().__init__(job_id, state)
        self.job_id = job_id
        self.state = state

    def __str__(self) -> str:
        return f"job {self.job_id} is {self.state}; only a failed job is a dead letter"


class PermanentError(OneJobError):
    """For bodies to raise, or to derive from: trying again would not help, so the job fails for good at once."""


class JobFailedError(OneJobError):
    """The job failed with an exception whose class is not known in this process."""

    def __init__(self, job_id: str, kind: str, message: str) -> None:
        super().__init__(job_id, kind, message)
        self.job_id = job_id
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        return f"job {self.job_id} failed with {self.kind}: {self.message}"


class JobInterrupted(BaseException):
    """Base of the signals that stop a running body at its next step or progress call."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id


class JobCanceled(JobInterrupted):
    """Somebody canceled this job while it ran."""


class LeaseLost(JobInterrupted):
    """This run's lease is gone: another run may have started. Nothing that this run still writes is accepted."""


class JobReleased(JobInterrupted):
    """This worker is shutting down; the job goes back to the queue and continues elsewhere, its steps kept."""

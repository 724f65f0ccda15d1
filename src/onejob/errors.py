"""The exceptions of onejob. All of them can be pickled, because Celery sends exceptions between processes.

Errors derive from `OneJobError`. Signals that stop a running task derive from `JobInterrupted`, a `BaseException`, so
that neither `except Exception` in the task nor Celery's `autoretry_for=(Exception,)` catches them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any


class OneJobError(Exception):
    """Base class of all errors that onejob raises."""


class ConfigurationError(OneJobError, ValueError):
    """A setting or a task option is invalid. Raised when a task is defined or a ledger is opened, never in a run."""


class InvalidArgumentsError(OneJobError, TypeError):
    """The arguments of a submission do not fit the task's signature. Nothing was stored."""


class KeyRequiredError(InvalidArgumentsError):
    """The task has `requires_key=True`, and the submission has no idempotency key. Nothing was stored."""

    def __init__(self, task: str) -> None:
        super().__init__(task)
        self.task = task

    def __str__(self) -> str:
        return (
            f"task {self.task} requires an idempotency key, which makes the call safe to retry: "
            "apply_async(..., idempotency_key=...), or over HTTP the header Idempotency-Key"
        )


class InvalidPayloadError(OneJobError, ValueError):
    """A value has no canonical text (NaN, a set, too deep, too large, ...). Nothing was stored."""


class StoreError(OneJobError):
    """The store returned an error."""


class StoreUnavailableError(StoreError):
    """The store did not respond. A write may have been applied; retrying it with the same request id is safe."""


class StoreRefusedError(StoreError):
    """The store can never hold a value of this write (too large, or a key of another type): do not repeat it."""


class PartlySubmittedError(StoreError):
    """Some submissions of a batch were refused, by the store or a quota. Submitting those again is safe."""

    def __init__(self, results: tuple[object, ...]) -> None:
        super().__init__(results)
        self.results = results
        """For each submission in its order: its `Admission`, or the error that says why it was not written."""

    def __str__(self) -> str:
        errors = [each for each in self.results if isinstance(each, Exception)]
        return f"{len(errors)} of {len(self.results)} submissions were not written: {next(iter(errors), None)}"

    @classmethod
    def checked(cls, results: list[Any]) -> list[Any]:
        """Return results that are all admissions. Raises this error, or the error itself if it concerns all of them.

        A `StoreUnavailableError` concerns all, since the outcome is unknown; a quota only the submission it belongs to.
        """
        errors = [each for each in results if isinstance(each, Exception)]
        if not errors:
            return results
        for error in errors:
            if isinstance(error, StoreUnavailableError):
                raise error
        if len(results) == 1 or (len(errors) == len(results) and all(isinstance(each, StoreError) for each in errors)):
            raise errors[0]
        raise cls(tuple(results))


class StoreBusyError(StoreUnavailableError):
    """A row stayed locked for longer than the lock timeout. Retrying with the same request ids is safe."""


class BrokerUnavailableError(OneJobError):
    """The broker did not accept a message. The job is in the ledger, and a sweeper publishes it later."""


class JobNotFoundError(OneJobError, LookupError):
    """No job has this id: it was never submitted, or it was purged after its retention."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"no job has the id {self.job_id!r}: it was never submitted, or it was purged after its retention"


class JobPurgedError(JobNotFoundError):
    """The job ended and was purged after its retention; its tombstone remains. Times are RFC 3339."""

    def __init__(self, job_id: str, state: str, finished_at: str, purged_at: str, edited_as: str = "") -> None:
        super().__init__(job_id)
        self.args = (job_id, state, finished_at, purged_at, edited_as)
        self.edited_as = edited_as
        """The id of the job that was submitted in its place with other arguments; "" if there is none."""
        self.state = state
        self.finished_at = finished_at
        self.purged_at = purged_at

    def __str__(self) -> str:
        end = "was canceled" if self.state == "canceled" else self.state
        text = f"job {self.job_id!r} {end} at {self.finished_at} and was purged at {self.purged_at}"
        new = f"; job {self.edited_as} was submitted in its place with other arguments"
        return text + (new if self.edited_as else "")


class StaleTokenError(OneJobError):
    """A write has a stale fencing token: another run has claimed the job, or the job has ended."""

    def __init__(self, job_id: str, token: int, state: str) -> None:
        super().__init__(job_id, token, state)
        self.job_id = job_id
        self.token = token
        self.state = state

    def __str__(self) -> str:
        return f"job {self.job_id} refused the write of token {self.token}: that run is over, the job is {self.state}"


class DuplicateJobError(OneJobError):
    """The submission is a duplicate of an existing job, and the task has `on_duplicate="raise"`."""

    def __init__(self, job_id: str, state: str, task: str) -> None:
        super().__init__(job_id, state, task)
        self.job_id = job_id
        self.state = state
        self.task = task

    def __str__(self) -> str:
        return f"an equal job of {self.task} is {self.state} already: {self.job_id}"


class KeyReuseMismatchError(OneJobError, ValueError):
    """An idempotency key was reused with other arguments. Nothing was stored."""

    def __init__(self, key: str, job_id: str) -> None:
        super().__init__(key, job_id)
        self.key = key
        self.job_id = job_id

    def __str__(self) -> str:
        return (
            f"the idempotency key {self.key!r} belongs to another submission, which job {self.job_id} answered: "
            "a key is valid for one task with one set of arguments. Use a new key for a new submission"
        )


class QuotaExceededError(OneJobError):
    """The submitter's quota of new jobs is used up until its window ends. Nothing was stored."""

    def __init__(self, option: str, limit: str, retry_after: int, reset_at: str) -> None:
        super().__init__(option, limit, retry_after, reset_at)
        self.option = option
        """`quota` or `identity_quota`."""
        self.limit = limit
        """Its text, such as "100/hour"."""
        self.retry_after = retry_after
        """Seconds until the window ends."""
        self.reset_at = reset_at
        """When the window ends (RFC 3339)."""

    def __str__(self) -> str:
        jobs = "new jobs" if self.option == "quota" else "new jobs with the same identity"
        number = self.limit.partition("/")[0]
        return f"the quota of {number} {jobs} ({self.limit}) is used up: retry in {self.retry_after} s"


class TaskIdReusedError(OneJobError, ValueError):
    """A `task_id` was used for a job of another task. Nothing was stored."""

    def __init__(self, job_id: str, task: str, existing_task: str) -> None:
        super().__init__(job_id, task, existing_task)
        self.job_id = job_id
        self.task = task
        self.existing_task = existing_task

    def __str__(self) -> str:
        return (
            f"the id {self.job_id!r} belongs to a job of {self.existing_task}, and cannot be that of a job of "
            f"{self.task}: an id is used for one job. Leave task_id out, or choose another one"
        )


class IdentityHeldError(OneJobError):
    """A dead letter cannot be redriven, because another job holds its identity."""

    def __init__(self, job_id: str, holder_id: str, holder_state: str) -> None:
        super().__init__(job_id, holder_id, holder_state)
        self.job_id = job_id
        self.holder_id = holder_id
        self.holder_state = holder_state

    def __str__(self) -> str:
        return (
            f"job {self.job_id} cannot be redriven: job {self.holder_id}, which is {self.holder_state}, "
            "holds its identity. Wait for its end, or cancel it"
        )


class TooManyWebhooksError(OneJobError):
    """A job has as many webhooks of duplicate submissions as it may have. The job itself answers the submission."""

    def __init__(self, job_id: str, limit: int) -> None:
        super().__init__(job_id, limit)
        self.job_id = job_id
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"job {self.job_id} answers the submission, but gets no further webhook: duplicates have added "
            f"{self.limit} URLs, which is the limit. Poll the job instead, or use a URL that it has already"
        )


class NoDeadLetterError(OneJobError):
    """A job is not a dead letter: only a failed job can be redriven."""

    def __init__(self, job_id: str, state: str) -> None:
        super().__init__(job_id, state)
        self.job_id = job_id
        self.state = state

    def __str__(self) -> str:
        return f"job {self.job_id} is {self.state}; only a failed job is a dead letter"


class NotWaitingError(OneJobError):
    """A job cannot be made due at once: it runs, it has ended, or it waits for the end of another job."""

    def __init__(self, job_id: str, state: str, follows_id: str = "") -> None:
        super().__init__(job_id, state, follows_id)
        self.job_id = job_id
        self.state = state
        self.follows_id = follows_id
        """The job whose end it waits for; "" if it waits for none."""

    def __str__(self) -> str:
        if self.follows_id:
            return f"job {self.job_id} is {self.state} until job {self.follows_id} has ended: it cannot run now"
        return f"job {self.job_id} is {self.state}; only a waiting job can be made due now"


class JobEndedError(OneJobError):
    """A job cannot be canceled, because it has ended."""

    def __init__(self, job_id: str, state: str) -> None:
        super().__init__(job_id, state)
        self.job_id = job_id
        self.state = state

    def __str__(self) -> str:
        return f"job {self.job_id} is {self.state}: a job that has ended cannot be canceled"


class JobNotEndedError(OneJobError):
    """A job cannot be deleted, because it has not ended."""

    def __init__(self, job_id: str, state: str) -> None:
        super().__init__(job_id, state)
        self.job_id = job_id
        self.state = state

    def __str__(self) -> str:
        return f"job {self.job_id} is {self.state}: only a job that has ended can be deleted. Cancel it first"


class UniquenessWindowError(OneJobError):
    """A job cannot be deleted, because it answers duplicates until its uniqueness window ends (`until`, RFC 3339)."""

    def __init__(self, job_id: str, state: str, until: str) -> None:
        super().__init__(job_id, state, until)
        self.job_id = job_id
        self.state = state
        self.until = until

    def __str__(self) -> str:
        return (
            f"job {self.job_id} cannot be deleted: it is {self.state}, and answers duplicates until {self.until}, "
            "when its uniqueness window ends"
        )


class NotResubmittableError(OneJobError):
    """A dead letter cannot be submitted again with other arguments."""

    def __init__(self, job_id: str, reason: str) -> None:
        super().__init__(job_id, reason)
        self.job_id = job_id
        self.reason = reason

    def __str__(self) -> str:
        return f"job {self.job_id} cannot be submitted with other arguments: {self.reason}"


class PermanentError(OneJobError):
    """Raise this in a task, or derive from it, to fail the job at once, without further retries."""


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
    """Base class of the signals that stop a running task at its next step or progress call."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id


class JobCanceled(JobInterrupted):
    """The job was canceled while it ran."""


class LeaseLost(JobInterrupted):
    """This run has lost its lease: another run may have started, and further writes of this one are refused."""


class JobReleased(JobInterrupted):
    """This worker is shutting down; the job returns to the queue, and its completed steps are kept."""


def describe(error: BaseException) -> str:
    """Return one line about an exception."""
    return clean(f"{type(error).__name__}: {error}").replace("\n", " ")[:200]


def clean(text: str) -> str:
    """Return text that every store can hold: no NUL, no lone surrogates."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")

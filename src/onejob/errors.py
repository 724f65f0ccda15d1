"""The exceptions of onejob. All of them can be pickled, because Celery sends exceptions between processes.

Errors derive from `OneJobError`. Signals that stop a running task derive from `JobInterrupted`, a `BaseException`, so
that neither `except Exception` in the task nor Celery's `autoretry_for=(Exception,)` catches them.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "BlockNotFoundError", "ConfigurationError", "DuplicateJobError", "IdentityHeldError", "InvalidArgumentsError",
    "InvalidBlockError", "InvalidLimitError", "InvalidPayloadError", "JobCanceled", "JobEndedError", "JobFailedError",
    "JobInterrupted", "JobNeededError", "JobNotEndedError", "JobNotFoundError", "JobPurgedError", "JobReleased",
    "JobStateError", "KeyRequiredError", "KeyReuseMismatchError", "LeaseLost", "NoDeadLetterError",
    "NotResubmittableError", "NotWaitingError", "OneJobError", "PartlySubmittedError", "PermanentError",
    "QuotaExceededError", "ScheduleEntryNotFoundError", "StaleTokenError", "StoreBusyError", "StoreError",
    "StoreRefusedError", "StoreUnavailableError", "StoreUnusableError", "SupersededError", "TaskIdReusedError",
    "TooManyWebhooksError", "UniquenessWindowError",
]  # fmt: skip


class OneJobError(Exception):
    """Base class of all errors that onejob raises."""


@dataclass_transform(eq_default=False)
class _DetailedError(OneJobError):
    """An error with attributes, a dataclass; its `_template` is its message, with the attributes in braces."""

    _template: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        dataclass(eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        self.args = tuple(getattr(self, each.name) for each in fields(self))  # type: ignore[arg-type]  # a dataclass

    def __str__(self) -> str:
        return self._template.format_map(vars(self)) if self._template else super().__str__()


class ConfigurationError(OneJobError, ValueError):
    """A setting or a task option is invalid. Raised when a task is defined or a ledger is opened, never in a run."""


class InvalidArgumentsError(OneJobError, TypeError):
    """The arguments of a submission do not fit the task's signature. Nothing was stored."""


class KeyRequiredError(_DetailedError, InvalidArgumentsError):
    """The task has `requires_key=True`, and the submission has no idempotency key. Nothing was stored."""

    _template = (
        "task {task} requires an idempotency key, which makes the call safe to retry: "
        "apply_async(..., idempotency_key=...), or over HTTP the header Idempotency-Key"
    )
    task: str


class InvalidPayloadError(OneJobError, ValueError):
    """A value has no canonical text (NaN, a set, too deep, too large, ...). Nothing was stored."""


class StoreError(OneJobError):
    """The store returned an error."""


class StoreUnavailableError(StoreError):
    """The store did not respond. A write may have been applied; retrying it with the same request id is safe."""


class StoreUnusableError(StoreError):
    """The store does not work until an operator acts: a right, the schema, a disk, a setting.

    The message says what to do.
    """


class StoreRefusedError(StoreError):
    """The store can never hold a value of this write (too large, or a key of another type): do not repeat it."""


class PartlySubmittedError(_DetailedError, StoreError):
    """Some submissions of a batch were refused, by the store or a quota. Submitting those again is safe."""

    results: tuple[object, ...]
    """For each submission in its order: its `AsyncResult`, or the error that says why it was not written."""

    def __str__(self) -> str:
        errors = [each for each in self.results if isinstance(each, Exception)]
        return f"{len(errors)} of {len(self.results)} submissions were not written: {next(iter(errors), None)}"


class StoreBusyError(StoreUnavailableError):
    """Another transaction or a time limit was in the way. Retrying soon with the same request ids is safe."""


class BrokerUnavailableError(OneJobError):
    """The broker did not accept a message: not public, since the job is in the ledger, and a sweeper publishes it."""


class JobNotFoundError(_DetailedError, LookupError):
    """No job has this id: it was never submitted, its transaction was rolled back, or it was purged."""

    _template = (
        "no job has the id {job_id!r}: it was never submitted, its transaction was not committed, or it was purged "
        "after its retention"
    )
    job_id: str


class ScheduleEntryNotFoundError(_DetailedError, LookupError):
    """The beat schedule has no entry with this name."""

    _template = "the beat schedule has no entry named {name!r}{hint}"
    name: str
    hint: str = ""
    """A question that names a similar entry."""


class InvalidBlockError(OneJobError, ValueError):
    """A pause or a strike selects nothing, or what no job can have. Nothing was written."""


class BlockNotFoundError(_DetailedError, LookupError):
    """The ledger has no pause, or no strike, with this id."""

    _template = "no {kind} has the id {block_id!r}: it was ended already, its time is over, or it was never made"
    kind: str
    block_id: str


class InvalidLimitError(OneJobError, ValueError):
    """An exception of a limit that cannot be: no such limit, another kind, or over already. Nothing was written."""


class JobPurgedError(JobNotFoundError):
    """The job ended and was purged after its retention; its tombstone remains. Times are RFC 3339."""

    state: str
    finished_at: str
    purged_at: str
    edited_as: str = ""
    """The id of the job that was submitted in its place with other arguments; "" if there is none."""

    def __str__(self) -> str:
        end = "was canceled" if self.state == "canceled" else self.state
        text = f"job {self.job_id!r} {end} at {self.finished_at} and was purged at {self.purged_at}"
        new = f"; job {self.edited_as} was submitted in its place with other arguments"
        return text + (new if self.edited_as else "")


class StaleTokenError(_DetailedError):
    """A write has a stale fencing token: another run has claimed the job, or the job has ended."""

    _template = "job {job_id} refused the write of token {token}: that run is over, the job is {state}"
    job_id: str
    token: int
    state: str


class JobStateError(_DetailedError):
    """An operation is impossible in the state of its job. Base class of the following errors."""

    job_id: str
    state: str


class DuplicateJobError(JobStateError):
    """The submission is a duplicate of an existing job, and has `on_duplicate="raise"`, of its own or by its task."""

    _template = "an equal job of {task} is {state} already: {job_id}"
    task: str


class NoDeadLetterError(JobStateError):
    """A job cannot be redriven: it has not failed, or it has failed as the job that it follows; redrive that job."""

    follows_id: str = ""
    """The job whose end this job has; "" if it follows no job."""

    def __str__(self) -> str:
        if self.follows_id:
            return (
                f"job {self.job_id} follows job {self.follows_id}, and has its end without a run: redrive that job, "
                "and this one gets the new end; if it was deleted, submit the call again"
            )
        return f"job {self.job_id} is {self.state}; only a failed job is a dead letter"


class NotWaitingError(JobStateError):
    """A job cannot be made due at once: it runs, it has ended, or it waits for the end of another job."""

    follows_id: str = ""
    """The job whose end this job waits for; "" if it waits for no job."""

    def __str__(self) -> str:
        if self.follows_id:
            return f"job {self.job_id} is {self.state} until job {self.follows_id} has ended: it cannot run now"
        return f"job {self.job_id} is {self.state}; only a waiting job can be made due now"


class JobEndedError(JobStateError):
    """A job cannot be canceled, because it has ended."""

    _template = "job {job_id} is {state}: a job that has ended cannot be canceled"


class JobNotEndedError(JobStateError):
    """A job cannot be deleted, because it has not ended."""

    _template = "job {job_id} is {state}: only a job that has ended can be deleted. Cancel it first"


class UniquenessWindowError(JobStateError):
    """A job cannot be deleted, because it answers duplicates until its uniqueness window ends (`until`, RFC 3339)."""

    _template = (
        "job {job_id} cannot be deleted: it is {state}, and answers duplicates until {until}, "
        "when its uniqueness window ends"
    )
    until: str


class JobNeededError(JobStateError):
    """A job cannot be deleted without `force`, because something still needs it, which `needed_by` names."""

    _template = (
        "job {job_id} cannot be deleted: it is {state}, and {needed_by}. To delete it all the same, force the deletion"
    )
    needed_by: str


class KeyReuseMismatchError(_DetailedError, ValueError):
    """An idempotency key was reused with other arguments. Nothing was stored."""

    _template = (
        "the idempotency key {key!r} belongs to another submission, which job {job_id} answered: "
        "a key is valid for one task with one set of arguments. Use a new key for a new submission"
    )
    key: str
    job_id: str


class QuotaExceededError(_DetailedError):
    """A quota or a budget of the submitter is used up until its window ends. Nothing was stored."""

    option: str
    """`quota`, `identity_quota` or `budget`."""
    limit: str
    """The text of the limit, such as "100/hour" or "20 usd/day"."""
    retry_after: int
    """Seconds until the window ends."""
    reset_at: str
    """The end of the window (RFC 3339)."""

    def __str__(self) -> str:
        if self.option == "budget":
            return f"the budget of {self.limit} is spent: retry in {self.retry_after} s"
        jobs = "new jobs" if self.option == "quota" else "new jobs with the same identity"
        number = self.limit.partition("/")[0]
        return f"the quota of {number} {jobs} ({self.limit}) is used up: retry in {self.retry_after} s"


class TaskIdReusedError(_DetailedError, ValueError):
    """A `task_id` was used for a job of another task. Nothing was stored."""

    _template = (
        "the id {job_id!r} belongs to a job of {existing_task}, and cannot be that of a job of "
        "{task}: an id is used for one job. Leave task_id out, or choose another one"
    )
    job_id: str
    task: str
    existing_task: str


class IdentityHeldError(_DetailedError):
    """A dead letter cannot be redriven, because another job holds its identity."""

    _template = (
        "job {job_id} cannot be redriven: job {holder_id}, which is {holder_state}, "
        "holds its identity. Wait for its end, or cancel it"
    )
    job_id: str
    holder_id: str
    holder_state: str


class SupersededError(_DetailedError):
    """A dead letter cannot be redriven, because an equal job with newer arguments has run since, or will."""

    _template = (
        "job {job_id} cannot be redriven: job {newer_id}, which is {newer_state}, was submitted later with other "
        "arguments, which the older ones would overwrite. Drop the dead letter, or submit its arguments as a new job"
    )
    job_id: str
    newer_id: str
    newer_state: str


class TooManyWebhooksError(_DetailedError):
    """A job has as many webhooks of duplicate submissions as it may have. The job itself answers the submission."""

    _template = (
        "job {job_id} answers the submission, but gets no further webhook: duplicates have added "
        "{limit} URLs, which is the limit. Poll the job instead, or use a URL that it has already"
    )
    job_id: str
    limit: int


class NotResubmittableError(_DetailedError):
    """A dead letter cannot be submitted again with other arguments."""

    _template = "job {job_id} cannot be submitted with other arguments: {reason}"
    job_id: str
    reason: str


class PermanentError(OneJobError):
    """An error for tasks to raise, or to derive from: the job fails at once, without further retries."""


class JobFailedError(_DetailedError):
    """The job failed with an exception whose class is not known in this process."""

    _template = "job {job_id} failed with {kind}: {message}"
    job_id: str
    kind: str
    message: str


class JobInterrupted(BaseException):
    """Base class of the signals that stop a running task at its next step or progress call."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id


class JobCanceled(JobInterrupted):
    """The job was canceled while it ran."""


class LeaseLost(JobInterrupted):
    """This run has lost its lease: another run may have started, and further writes of this run are refused."""


class JobReleased(JobInterrupted):
    """This worker is shutting down; the job returns to the queue, and its completed steps are kept."""


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Raise `ImportError` with the command to install `extra` if `what` imports a missing package in this block."""
    try:
        yield
    except ImportError as error:
        msg = f'{what} needs additional packages ({error.name} is missing): pip install "onejob[{extra}]"'
        raise ImportError(msg, name=error.name) from error


def all_written(results: list[Any]) -> list[Any]:
    """Return the results of submissions, none of which is an error: admissions, or what a task makes of them.

    Raises `PartlySubmittedError`, or the only error if it concerns all submissions. A `StoreUnavailableError` concerns
    all, since the outcome is unknown; a quota concerns only its own submission.
    """
    errors = [each for each in results if isinstance(each, Exception)]
    if not errors:
        return results
    for error in errors:
        if isinstance(error, StoreUnavailableError):
            raise error
    if len(results) == 1 or (len(errors) == len(results) and all(isinstance(each, StoreError) for each in errors)):
        raise errors[0]
    raise PartlySubmittedError(tuple(results))


def describe(error: BaseException) -> str:
    """Return one line about an exception."""
    return f"{type(error).__name__}: {message_of(error)}".replace("\n", " ")[:200]


def message_of(error: BaseException) -> str:
    """Return the text of an exception, whose `__str__` may raise another one."""
    try:
        return clean(str(error))
    except Exception as another:  # noqa: BLE001 - the first one must be recorded, whatever it is
        return f"<its str() raises {type(another).__name__}>"


def clean(text: str) -> str:
    """Return text that every store can hold: no NUL, no lone surrogates."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")

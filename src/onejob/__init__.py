"""onejob: equal jobs run once, on Celery.

Define a task with `@app.task(base=onejob.Task)`, and equal submissions become one job in a durable ledger.
"""

from onejob.celery import RunningJob, Task, current_job
from onejob.celery.result import AsyncResult
from onejob.errors import (
    ConfigurationError,
    DuplicateJobError,
    IdentityHeldError,
    InvalidArgumentsError,
    InvalidPayloadError,
    JobCanceled,
    JobEndedError,
    JobFailedError,
    JobInterrupted,
    JobNotEndedError,
    JobNotFoundError,
    JobPurgedError,
    JobReleased,
    KeyRequiredError,
    KeyReuseMismatchError,
    LeaseLost,
    NoDeadLetterError,
    NotResubmittableError,
    NotWaitingError,
    OneJobError,
    PermanentError,
    QuotaExceededError,
    StaleTokenError,
    StoreError,
    StoreUnavailableError,
    TaskIdReusedError,
    TooManyWebhooksError,
    UniquenessWindowError,
)
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Admission, Duplicate, Job, Outcome
from onejob.jobs.submitter import submitter
from onejob.transactions.fence import fence

__all__ = [
    "Admission",
    "AsyncResult",
    "ConfigurationError",
    "Duplicate",
    "DuplicateJobError",
    "IdentityHeldError",
    "InvalidArgumentsError",
    "InvalidPayloadError",
    "Job",
    "JobCanceled",
    "JobEndedError",
    "JobFailedError",
    "JobInterrupted",
    "JobNotEndedError",
    "JobNotFoundError",
    "JobPurgedError",
    "JobReleased",
    "KeyRequiredError",
    "KeyReuseMismatchError",
    "LeaseLost",
    "NoDeadLetterError",
    "NotResubmittableError",
    "NotWaitingError",
    "OneJobError",
    "Outcome",
    "PermanentError",
    "QuotaExceededError",
    "RunningJob",
    "StaleTokenError",
    "State",
    "StoreError",
    "StoreUnavailableError",
    "Task",
    "TaskIdReusedError",
    "TooManyWebhooksError",
    "UniquenessWindowError",
    "current_job",
    "fence",
    "submitter",
]


def __dir__() -> list[str]:
    """Return the names of the public API, and nothing that Python or an import has added."""
    return sorted(__all__)

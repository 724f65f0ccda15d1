"""onejob: equal jobs run once, on Celery.

Define a task with `@app.task(base=onejob.Task)`, and equal submissions become one job in a durable ledger.
"""

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from onejob.pages import dashboard

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
    "dashboard",
    "fence",
    "submitter",
]


def __dir__() -> list[str]:
    """Return the names of the public API, and nothing that Python or an import has added."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Import the dashboard when it is used, since its packages are an extra."""
    if name != "dashboard":
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    try:
        from onejob.pages import dashboard
    except ImportError as error:
        msg = f'the dashboard needs additional packages ({error.name} is missing): pip install "onejob[server]"'
        raise ImportError(msg, name=error.name) from error
    return dashboard

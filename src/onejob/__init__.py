"""onejob: equal jobs run once, on Celery.

Define a task with `@app.task(base=onejob.Task)`, and equal submissions become one job in a durable ledger.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onejob.celery.current_job import RunningJob, current_job
    from onejob.celery.result import AsyncResult
    from onejob.celery.task import Task, task
    from onejob.errors import *  # noqa: F403 - those of them that are public are named below
    from onejob.jobs.lifecycle import State
    from onejob.jobs.model import Admission, Duplicate, Job, Outcome
    from onejob.jobs.submitter import submitter
    from onejob.pages import dashboard
    from onejob.pages.wsgi import wsgi_dashboard
    from onejob.transactions.fence import fence

__all__ = [  # noqa: F405 - as above
    "Admission", "AsyncResult", "ConfigurationError", "Duplicate", "DuplicateJobError", "IdentityHeldError",
    "InvalidArgumentsError", "InvalidPayloadError", "Job", "JobCanceled", "JobEndedError", "JobFailedError",
    "JobInterrupted", "JobNotEndedError", "JobNotFoundError", "JobPurgedError", "JobReleased", "KeyRequiredError",
    "KeyReuseMismatchError", "LeaseLost", "NoDeadLetterError", "NotResubmittableError", "NotWaitingError",
    "OneJobError", "Outcome", "PartlySubmittedError", "PermanentError", "QuotaExceededError", "RunningJob",
    "ScheduleEntryNotFoundError", "StaleTokenError", "State", "StoreError", "StoreRefusedError",
    "StoreUnavailableError", "SupersededError", "Task", "TaskIdReusedError", "TooManyWebhooksError",
    "UniquenessWindowError", "current_job", "dashboard", "fence", "submitter", "task", "wsgi_dashboard",
]  # fmt: skip
_MODULES = {
    "Admission": "onejob.jobs.model",
    "AsyncResult": "onejob.celery.result",
    "Duplicate": "onejob.jobs.model",
    "Job": "onejob.jobs.model",
    "Outcome": "onejob.jobs.model",
    "RunningJob": "onejob.celery",
    "State": "onejob.jobs.lifecycle",
    "Task": "onejob.celery",
    "current_job": "onejob.celery",
    "fence": "onejob.transactions.fence",
    "submitter": "onejob.jobs.submitter",
    "task": "onejob.celery.task",
}
"""Where the names are defined; those that are not here are in `onejob.errors`.

They are imported when they are used, since pytest imports this package at each of its starts, for its plugin: Celery
takes longer than all of pytest.
"""
_IN_EXTRAS = {
    "dashboard": ("onejob.pages", "server", "the dashboard"),
    "wsgi_dashboard": ("onejob.pages.wsgi", "wsgi", "the dashboard as a WSGI app"),
}
"""The names whose packages are an extra: their module, the extra, and what they are."""


_PACKAGES = frozenset({"celery", "errors", "jobs", "observability", "transactions"})
"""The modules that can be used after `import onejob` alone."""


def __dir__() -> list[str]:
    """Return the names of the public API, and nothing that Python or an import has added."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Import a public name, or a module of this package, when it is used for the first time."""
    if name in _IN_EXTRAS:
        module, extra, what = _IN_EXTRAS[name]
        with import_module("onejob.errors").needs_extra(extra, what):
            return getattr(import_module(module), name)
    if name in __all__:
        value = globals()[name] = getattr(import_module(_MODULES.get(name, "onejob.errors")), name)
        return value
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

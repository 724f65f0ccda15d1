"""onejob: equal jobs run once, on Celery.

Define a task with `@app.task(base=onejob.Task)`, and equal submissions become one job in a durable ledger.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onejob import errors as errors
    from onejob.celery.current_job import RunningJob, current_job
    from onejob.celery.results.result import AsyncResult
    from onejob.celery.task import Task, task
    from onejob.client.client import Client
    from onejob.errors import DuplicateJobError, OneJobError, PermanentError, StoreUnavailableError
    from onejob.jobs.lifecycle import State
    from onejob.jobs.limits import Limit
    from onejob.jobs.model import Outcome
    from onejob.jobs.public_view import Job
    from onejob.jobs.submitter import submitter
    from onejob.pages import dashboard
    from onejob.pages.wsgi import wsgi_dashboard
    from onejob.transactions.fence import fence

__all__ = [
    "AsyncResult", "Client", "DuplicateJobError", "Job", "Limit", "OneJobError", "Outcome", "PermanentError",
    "RunningJob", "State", "StoreUnavailableError", "Task", "current_job", "dashboard", "fence", "submitter", "task",
    "wsgi_dashboard",
]  # fmt: skip
_MODULES = {
    "AsyncResult": "onejob.celery.results.result",
    "Client": "onejob.client.client",
    "DuplicateJobError": "onejob.errors",
    "Job": "onejob.jobs.public_view",
    "Limit": "onejob.jobs.limits",
    "OneJobError": "onejob.errors",
    "Outcome": "onejob.jobs.model",
    "PermanentError": "onejob.errors",
    "RunningJob": "onejob.celery",
    "State": "onejob.jobs.lifecycle",
    "StoreUnavailableError": "onejob.errors",
    "Task": "onejob.celery",
    "current_job": "onejob.celery",
    "fence": "onejob.transactions.fence",
    "submitter": "onejob.jobs.submitter",
    "task": "onejob.celery.task",
}
"""Where the names are defined. All other exceptions are in `onejob.errors`.

They are imported when they are used, since pytest imports this package at each of its starts, for its plugin: Celery
takes longer than all of pytest.
"""
_IN_EXTRAS = {
    "dashboard": ("onejob.pages", "server", "the dashboard"),
    "wsgi_dashboard": ("onejob.pages.wsgi", "wsgi", "the dashboard as a WSGI app"),
}
"""The names whose packages are an extra: their module, the extra, and what they are."""


def __dir__() -> list[str]:
    """Return the names of the public API, and nothing that Python or an import has added."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Import a public name, or `onejob.errors`, when it is used for the first time."""
    if name in _IN_EXTRAS:
        module, extra, what = _IN_EXTRAS[name]
        with import_module("onejob.errors").needs_extra(extra, what):
            return getattr(import_module(module), name)
    if name in _MODULES:
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value
    if name == "errors":
        return import_module("onejob.errors")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

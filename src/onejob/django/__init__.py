"""onejob in Django: an app with migrations and checks, and a backend for `django.tasks` with its options for tasks.

`INSTALLED_APPS = ["onejob.django"]`, `CELERY_ONEJOB_STORE = "django://default"`, and `manage.py migrate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from onejob.celery.option_declarations import check_option_names
from onejob.errors import ConfigurationError

if TYPE_CHECKING:
    from onejob.django.backend import TaskBackend
    from onejob.django.conf import celery_app
    from onejob.django.dashboard import authorize
    from onejob.django.job_admin import JobAdmin
    from onejob.django.models import Job

__all__ = ["Job", "JobAdmin", "TaskBackend", "authorize", "celery_app", "job_options"]
_MODULES = {
    "Job": "models", "JobAdmin": "job_admin", "TaskBackend": "backend", "authorize": "dashboard", "celery_app": "conf",
}  # fmt: skip
"""The modules of the names that need Django's settings, or its apps: they are imported when they are used."""


def __getattr__(name: str) -> Any:
    """Import a name when it is used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


F = TypeVar("F", bound="Callable[..., Any]")
_ATTRIBUTE = "onejob_options"
RESERVED = ("name", "base", "bind", "typing", "pydantic", "priority")
"""Options of `@app.task` that the backend sets itself, `priority` from that of Django's task."""
OF_UNIQUE_TASKS = ("unique_on", "unique_for", "unique_until", "on_duplicate", "max_wait")


def job_options(**options: Any) -> Callable[[F], F]:
    """Return a decorator that gives a Django task's function options of onejob's task class; it stands below `@task`.

    With `unique=True`, enqueues with equal arguments are one job with one result, as for `onejob.Task`;
    `unique_on=[...]` and the other options of unique tasks imply it. Without these options, each enqueue is a job of
    its own. `lease`, `permanent_for`, `webhook_url`, `expose`, and Celery's `autoretry_for`, `max_retries`,
    `retry_backoff`, `time_limit` and so on have the meaning that they have in `@app.task`.

    Raises `ConfigurationError` for an option that is misspelt, contradicts another or is set by the backend itself, and
    for something that is no function.
    """
    check_options("job_options", options)

    def decorate(function: F) -> F:
        if not callable(function) or hasattr(function, "enqueue"):
            msg = f"job_options(...) stands below @task, on the function itself, not on {function!r}"
            raise ConfigurationError(msg)
        setattr(function, _ATTRIBUTE, {**getattr(function, _ATTRIBUTE, {}), **options})
        return function

    return decorate


def check_options(where: str, options: object) -> None:
    """Raise `ConfigurationError` for options that are no dict, misspelt, contradicting, or the backend's own."""
    if not isinstance(options, dict):
        msg = f"{where} must be a dict of options of onejob.Task, such as {{'lease': 60}}, not {options!r}"
        raise ConfigurationError(msg)
    for name in options:
        if name in RESERVED:
            raise ConfigurationError(f"{where} has {name!r}, which the backend sets itself: leave it out")
    check_option_names(where, map(str, options))
    contradicting = [name for name in OF_UNIQUE_TASKS if options.get(name) is not None]
    if contradicting and options.get("unique") is False:
        msg = f"{where} has unique=False and {contradicting[0]}, which is an option of unique tasks: leave out one"
        raise ConfigurationError(msg)
    if not isinstance(options.get("unique", True), bool):
        unique = options["unique"]
        msg = f"{where} has unique={unique!r}; it must be True or False. The names of arguments are unique_on"
        raise ConfigurationError(msg)


def resolve_options(function: Callable[..., Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a function's Celery task: the function's own, else those of the backend's `OPTIONS`."""
    options = {**defaults, **getattr(function, _ATTRIBUTE, {})}
    unique = options.pop("unique", any(options.get(name) is not None for name in OF_UNIQUE_TASKS))
    # Each enqueue has an identity of its own, as `django.tasks` expects.
    return options if unique else {**options, "unique_on": lambda **_: uuid4().hex}

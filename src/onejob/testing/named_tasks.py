"""Finds the Celery task that a test means: by itself, by its name, or by a task of Django's framework."""

from __future__ import annotations

from typing import Any

from celery import current_app

from onejob.errors import ConfigurationError


def celery_task(app: Any, task: Any) -> Any:
    """Return the task of an app that is named as text, or that runs a task of `django.tasks`; any other as it is.

    Raises `ConfigurationError` for a name that the app does not have.
    """
    name = task if isinstance(task, str) else getattr(task, "module_path", None)
    if name is None:
        return task
    if name not in app.tasks:
        msg = f"app {app.main!r} has no task {name!r}: import its module, and name it as `onejob jobs list` does"
        raise ConfigurationError(msg)
    return app.tasks[name]


def app_of(task: Any) -> Any:
    """Return the app of a task; for a name, or a task of `django.tasks`, the current one."""
    return getattr(task, "app", None) or current_app

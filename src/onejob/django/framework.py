"""Django's task framework: `django.tasks` from Django 6 on, and the package `django_tasks` for Django 5.2."""

from __future__ import annotations

from typing import Any

try:
    from django import tasks as _tasks
    from django.tasks import base, exceptions, signals
    from django.tasks.backends import base as backends
    from django.tasks.backends import immediate
    from django.utils.json import normalize_json
except ImportError:
    try:
        import django_tasks as _tasks
        from django_tasks import base, exceptions, signals
        from django_tasks.backends import base as backends
        from django_tasks.backends import immediate
        from django_tasks.utils import normalize_json
    except ImportError as error:
        msg = "onejob.django.TaskBackend needs Django 6, or the package django-tasks: pip install 'django-tasks>=0.12'"
        raise ImportError(msg, name=error.name) from error
if not hasattr(base.TaskResultStatus, "SUCCESSFUL"):
    msg = "onejob.django.TaskBackend needs the states of Django 6: pip install 'django-tasks>=0.12'"
    raise ImportError(msg, name="django_tasks")

BaseTaskBackend: Any = backends.BaseTaskBackend
ImmediateBackend: Any = immediate.ImmediateBackend
Task: Any = base.Task
TaskContext: Any = base.TaskContext
TaskError: Any = base.TaskError
TaskResult: Any = base.TaskResult
Status: Any = base.TaskResultStatus
InvalidTask: Any = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError
TaskResultDoesNotExist: Any = exceptions.TaskResultDoesNotExist
task_backends: Any = _tasks.task_backends

__all__ = [
    "BaseTaskBackend", "ImmediateBackend", "InvalidTask", "Status", "Task", "TaskContext", "TaskError", "TaskResult",
    "TaskResultDoesNotExist", "normalize_json", "signals", "task_backends",
]  # fmt: skip

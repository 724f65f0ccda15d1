"""Django's task framework: `django.tasks` from Django 6 on, and the package `django_tasks` for Django 5.2."""

from importlib import import_module
from importlib.util import find_spec

PACKAGE = "django.tasks" if find_spec("django.tasks") is not None else "django_tasks"
try:
    _tasks = import_module(PACKAGE)
    base, exceptions, signals, _of_base, _of_immediate = (
        import_module(f"{PACKAGE}.{name}")
        for name in ("base", "exceptions", "signals", "backends.base", "backends.immediate")
    )
    _json = import_module("django.utils.json" if PACKAGE == "django.tasks" else "django_tasks.utils")
except ImportError as error:
    msg = "onejob.django.TaskBackend needs Django 6, or the package django-tasks: pip install 'django-tasks>=0.12'"
    raise ImportError(msg, name=error.name) from error
if not hasattr(base.TaskResultStatus, "SUCCESSFUL"):
    msg = "onejob.django.TaskBackend needs the states of Django 6: pip install 'django-tasks>=0.12'"
    raise ImportError(msg, name="django_tasks")

BaseTaskBackend = _of_base.BaseTaskBackend
ImmediateBackend = _of_immediate.ImmediateBackend
Task = base.Task
TaskContext = base.TaskContext
TaskError = base.TaskError
TaskResult = base.TaskResult
Status = base.TaskResultStatus
InvalidTask = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError
TaskResultDoesNotExist = exceptions.TaskResultDoesNotExist
task_backends = _tasks.task_backends
normalize_json = _json.normalize_json

"""onejob in Django: an app with migrations and checks, and a backend for `django.tasks`.

`INSTALLED_APPS = ["onejob.django"]`, `CELERY_ONEJOB_STORE = "django://default"`, and `manage.py migrate`.
"""

from typing import TYPE_CHECKING, Any

from onejob.django.options import job_options

if TYPE_CHECKING:
    from onejob.django.backend import TaskBackend

__all__ = ["TaskBackend", "job_options"]


def __getattr__(name: str) -> Any:
    """Import the backend when it is used: Django's settings name it, and its base class needs them."""
    if name != "TaskBackend":
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from onejob.django.backend import TaskBackend

    return TaskBackend

"""The app `onejob.django` of a Django project."""

from functools import cache, wraps
from importlib import import_module
from typing import Any

from django.apps import AppConfig
from django.db import connections
from django.db.backends.base.creation import BaseDatabaseCreation
from django.db.models.signals import post_migrate

from onejob.django.conf import app_state


class OneJobConfig(AppConfig):  # type: ignore[misc] # Django ships no types
    """The app: its migrations create the ledger in one of Django's databases."""

    name = "onejob.django"
    label = "onejob"
    verbose_name = "Jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks, and handlers after a migration and before the end of a test database."""
        import_module("onejob.django.checks")
        post_migrate.connect(_use_write_ahead_log, dispatch_uid="onejob.wal")
        _close_before_drop()


def _use_write_ahead_log(using: str, **_: Any) -> None:
    """Set the journal mode that the store needs, which cannot be set within a transaction; SQLite keeps it."""
    if connections[using].vendor == "sqlite" and using == app_state().django_alias:
        with connections[using].cursor() as cursor:
            cursor.execute("pragma journal_mode = wal")


@cache
def _close_before_drop() -> None:
    """Close the ledger's connections before Django drops a test database; PostgreSQL refuses to drop it otherwise."""
    destroy = BaseDatabaseCreation.destroy_test_db

    @wraps(destroy)
    def destroy_test_db(*args: Any, **kwargs: Any) -> Any:
        app_state().close()
        return destroy(*args, **kwargs)

    BaseDatabaseCreation.destroy_test_db = destroy_test_db

"""The app `onejob.django` of a Django project."""

from __future__ import annotations

from functools import wraps
from typing import Any

from django.apps import AppConfig
from django.db.backends.base.creation import BaseDatabaseCreation

from onejob.celery.app_state import app_state_of
from onejob.django.conf import celery_app

DjangoAppConfig: Any = AppConfig  # Django ships no types


class OneJobConfig(DjangoAppConfig):  # type: ignore[misc]
    """The app: its migrations create the ledger in one of Django's databases."""

    name = "onejob.django"
    label = "onejob"
    verbose_name = "Jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Have the ledger's connections closed before Django drops a test database, which PostgreSQL refuses else."""
        destroy = BaseDatabaseCreation.destroy_test_db
        if hasattr(destroy, "__wrapped__"):
            return

        @wraps(destroy)
        def destroy_test_db(*args: Any, **kwargs: Any) -> Any:
            app_state_of(celery_app()).close()
            return destroy(*args, **kwargs)

        BaseDatabaseCreation.destroy_test_db = destroy_test_db

"""The Celery app of a Django project, the place of its ledger, and the ledger's schema in a Django database."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from celery.app import app_or_default
from celery.app.utils import find_app
from django.conf import settings
from django.utils.module_loading import import_string

from onejob.celery.app_state import AppState, app_state_of
from onejob.errors import ConfigurationError
from onejob.stores.schema import LedgerSchema, checked_schema

APP_SETTING = "ONEJOB_CELERY_APP"
"""The setting of Django that names the Celery app (`"shop.celery:app"`) if it is not Celery's current one."""
REDACT_SETTING = "ONEJOB_REDACT"
"""The setting with a function, or its dotted path, that is the `redact` of `onejob.dashboard`."""
DASHBOARD_SETTING = "ONEJOB_DASHBOARD_URL"
"""The setting with the URL of the dashboard, if it is not mounted by `onejob.django.urls`."""


def celery_app() -> Any:
    """Return the project's Celery app, which ONEJOB_CELERY_APP names, or else Celery's current app.

    Raises `ConfigurationError` for a name without an app.
    """
    name = getattr(settings, APP_SETTING, None)
    try:
        return app_or_default() if name is None else find_app(name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        msg = f"{APP_SETTING}={name!r} names no Celery app: {error}. Write 'shop.celery:app', or leave it out"
        raise ConfigurationError(msg) from error


def app_state() -> AppState:
    """Return the `AppState` of the project's Celery app: its settings, its ledger, and `django_alias`."""
    return app_state_of(celery_app())


def redact_hook() -> Any:
    """Return the `redact` function that the settings name, or None. Raises `ImportError` for a wrong path."""
    hook = getattr(settings, REDACT_SETTING, None)
    return import_string(hook) if isinstance(hook, str) else hook


def apply_version(version: str) -> Callable[[Any, Any], None]:
    """Return the function of a `RunPython` operation that migrates the ledger to a version of its schema.

    The function does nothing in a database without the ledger, or after `onejob migrate up`. It raises
    `ConfigurationError` for invalid settings.
    """

    def run(_apps: Any, schema_editor: Any) -> None:
        if schema_editor.connection.alias == app_state().django_alias:
            with ledger_schema(schema_editor.connection) as schema:
                schema.upgrade(version)

    return run


def keep_tables(_apps: Any, _schema_editor: Any) -> None:
    """Do nothing when Django unapplies a migration: a ledger has jobs, and older code runs on a newer schema."""


@contextmanager
def ledger_schema(connection: Any) -> Iterator[LedgerSchema]:
    """Yield the schema of the ledger in the database of one of Django's connections."""
    name = checked_schema(app_state().settings.namespace) if connection.vendor == "postgresql" else ""
    with connection.cursor() as cursor:
        yield LedgerSchema(cursor, connection.vendor, name)

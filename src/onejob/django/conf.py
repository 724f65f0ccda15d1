"""The Celery app of a Django project, and where its ledger is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onejob.celery.app_state import app_state_of
from onejob.errors import ConfigurationError

if TYPE_CHECKING:
    from onejob.config import Settings
    from onejob.ledger.ledger import Ledger

APP_SETTING = "ONEJOB_CELERY_APP"
"""The setting of Django that names the Celery app (`"shop.celery:app"`) if it is not Celery's current one."""
REDACT_SETTING = "ONEJOB_REDACT"
"""The setting that names a function, as `redact` of `onejob.dashboard`: the function, or its dotted path."""
DASHBOARD_SETTING = "ONEJOB_DASHBOARD_URL"
"""The setting with the URL of the dashboard, where it is not mounted by `onejob.django.urls`."""


def celery_app() -> Any:
    """Return the project's Celery app: the one that ONEJOB_CELERY_APP names, or else Celery's current app.

    Raises `ConfigurationError` for a name at which there is none.
    """
    from celery.app import utils
    from django.conf import settings

    name = getattr(settings, APP_SETTING, None)
    if name is None:
        from celery.app import app_or_default

        return app_or_default()
    try:
        return utils.find_app(name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        msg = f"{APP_SETTING}={name!r} names no Celery app: {error}. Write 'shop.celery:app', or leave it out"
        raise ConfigurationError(msg) from error


def ledger_settings() -> Settings:
    """Return the settings of the project's ledger. Raises `ConfigurationError`."""
    return app_state_of(celery_app()).settings


def ledger() -> Ledger:
    """Return the project's ledger, which follows Django to the test database. Raises `ConfigurationError`."""
    return app_state_of(celery_app()).ledger


def ledger_alias() -> str | None:
    """Return the alias of the database that the ledger is in; None if it is not named as `django://alias`.

    In a test that isolates the app it is the alias that the settings name, since the ledger of the test takes part in
    transactions on any database. Raises `ConfigurationError`.
    """
    return app_state_of(celery_app()).django_alias

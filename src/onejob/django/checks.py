"""System checks (`manage.py check`): settings that cannot work, and settings that surprise."""

import sys
from collections.abc import Iterator
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any

from django.conf import settings
from django.core import checks
from django.db import DEFAULT_DB_ALIAS, connections
from django.urls import NoReverseMatch, reverse

from onejob.celery.option_declarations import REMOVED
from onejob.celery.option_declarations import SETTINGS as LEDGER_SETTINGS
from onejob.django import conf
from onejob.errors import ConfigurationError
from onejob.stores import kind_of
from onejob.stores.schema import check_version, checked_schema

TAG = "onejob"
MIGRATING = (["migrate"], ["makemigrations"])
"""The commands that check the database before they change its schema."""
SETTINGS = (conf.APP_SETTING, conf.REDACT_SETTING, conf.DASHBOARD_SETTING)
"""The settings of Django that belong to this app; the ledger's settings are Celery's."""


@checks.register(TAG)  # type: ignore[untyped-decorator]
def check_settings(**_: Any) -> list[Any]:
    """Check the settings, without a connection to the database."""
    return [*_check_names(), *_check_store(), *_check_redact(), *_check_requests()]


@checks.register(checks.Tags.urls)  # type: ignore[untyped-decorator]
def check_urls(**_: Any) -> list[Any]:
    """Check that the dashboard can be served, where its URL is included."""
    if not getattr(settings, "ROOT_URLCONF", None) or find_spec("a2wsgi") is not None:
        return []
    try:
        reverse("onejob-dashboard", args=[""])
    except NoReverseMatch:
        return []
    hint = 'pip install "onejob[wsgi]", or leave out include("onejob.django.urls").'
    return [checks.Error("The URLs include the dashboard, which needs a2wsgi.", hint=hint, id="onejob.E005")]


@checks.register(checks.Tags.database)  # type: ignore[untyped-decorator]
def check_database(databases: Any = None, **_: Any) -> list[Any]:
    """Check the schema of the ledger, with `manage.py check --database` and before `migrate`."""
    alias = _alias()
    if alias is None or alias not in (databases or ()):
        return []
    try:
        with conf.ledger_schema(connections[alias]) as schema:
            version = schema.version()
    except ConfigurationError:
        return []  # reported by `check_settings`
    is_migrating = sys.argv[1:2] in MIGRATING  # `migrate` does what the warning asks for
    return [*(() if is_migrating else _check_schema(alias, version)), *(_check_sqlite(alias) if version else ())]


def _check_names() -> Iterator[Any]:
    for name in dir(settings):
        if not name.startswith("ONEJOB_") or name in SETTINGS:
            continue
        known = [f"CELERY_{each.upper()}" for each in LEDGER_SETTINGS]
        near = get_close_matches(f"CELERY_{name}", [*known, *SETTINGS], n=1)
        hint = f"Write {near[0]}." if near else "The ledger's settings are Celery's: CELERY_ONEJOB_STORE and so on."
        problem = f"The setting {name} is not read."
        if instead := REMOVED.get(name.lower()):
            problem, hint = f"There is no setting {name}: {instead}.", f"Remove {name}."
        yield checks.Error(problem, hint=hint, id="onejob.E003")


def _check_store() -> Iterator[Any]:
    try:
        known = conf.app_state().settings
    except ConfigurationError as error:
        names = "In Django's settings the names are upper case with Celery's prefix"
        hint = f"{names}: onejob_store is CELERY_ONEJOB_STORE."
        yield checks.Error(f"The settings of the ledger are invalid: {error}.", hint=hint, id="onejob.E001")
        return
    if not known.store:
        where = f"Celery's app is the current one, or that of {conf.APP_SETTING} = 'shop.celery:app'."
        hint = f"Set CELERY_ONEJOB_STORE = 'django://{DEFAULT_DB_ALIAS}'. {where}"
        yield checks.Error("The ledger has no store.", hint=hint, id="onejob.E001")
        return
    try:
        if kind_of(known.store) == "postgresql":
            checked_schema(known.namespace)
    except ConfigurationError as error:
        yield checks.Error(f"The store of the ledger cannot be used: {error}.", id="onejob.E002")


def _check_redact() -> Iterator[Any]:
    hook = getattr(settings, conf.REDACT_SETTING, None)
    try:
        found = conf.redact_hook()
        fault = None if found is None or callable(found) else f"{found!r} is no function"
    except ImportError as error:
        fault = str(error)
    if fault is not None:
        hint = "Name a function as 'shop.privacy.redact', or leave it out."
        yield checks.Error(f"{conf.REDACT_SETTING}={hook!r}: {fault}.", hint=hint, id="onejob.E004")


def _check_requests() -> Iterator[Any]:
    alias = _alias()
    if alias not in connections or not connections.settings[alias]["ATOMIC_REQUESTS"]:
        return
    if connections[alias].vendor == "sqlite":
        msg = f"ATOMIC_REQUESTS on {alias!r}: a view that calls delay() waits for its own transaction, and fails."
        hint = "Submit with session=connection, enqueue() or delay_on_commit(), or remove ATOMIC_REQUESTS."
        yield checks.Warning(msg, hint=hint, id="onejob.W008")


def _check_schema(alias: str, version: str | None) -> Iterator[Any]:
    try:
        check_version(version, f"the database {alias!r}")
    except ConfigurationError as error:
        message, _, _ = str(error).partition(": run ")
        # A warning, because an error would keep `migrate` from running.
        yield checks.Warning(f"{message}.", hint=f"Run manage.py migrate --database {alias}.", id="onejob.W007")


def _check_sqlite(alias: str) -> Iterator[Any]:
    connection = connections[alias]
    if connection.vendor != "sqlite" or connection.is_in_memory_db():
        return
    with connection.cursor() as cursor:
        cursor.execute("pragma journal_mode")
        mode = str(cursor.fetchone()[0])
    if mode != "wal":
        hint = f"Run manage.py migrate --database {alias}: it sets the mode for good."
        file = f"The file of the database {alias!r}"
        msg = f"{file} has the journal mode {mode}: workers and requests wait for each other."
        yield checks.Warning(msg, hint=hint, id="onejob.W004")
    if connection.settings_dict["OPTIONS"].get("transaction_mode") is None:
        msg = f"A transaction on {alias!r} that reads before it writes fails at once if a worker writes meanwhile."
        hint = "Set OPTIONS = {'transaction_mode': 'IMMEDIATE'} for this database."
        yield checks.Warning(msg, hint=hint, id="onejob.W005")


def _alias() -> str | None:
    try:
        return conf.app_state().django_alias
    except ConfigurationError:
        return None

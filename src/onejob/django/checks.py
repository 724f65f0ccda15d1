"""System checks (`manage.py check`): settings that cannot work, and those that surprise."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from django.core import checks
from django.db import DEFAULT_DB_ALIAS, connections
from django.urls import NoReverseMatch, reverse
from django.utils.module_loading import import_string

from onejob.celery.options import options_of
from onejob.django import conf
from onejob.django.schema import ledger_schema
from onejob.errors import ConfigurationError
from onejob.stores import kind_of
from onejob.stores.django_database import alias_of
from onejob.stores.schema import check_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TAG = "onejob"
MIGRATING = (["migrate"], ["makemigrations"])
"""The commands that check the database before they change its schema."""
_register: Any = checks.register  # Django ships no types
F = TypeVar("F", bound="Callable[..., Any]")
SETTINGS = (conf.APP_SETTING, conf.REDACT_SETTING, conf.DASHBOARD_SETTING)
"""The settings of Django that belong to this app; those of the ledger are Celery's."""


def register(tag: str) -> Callable[[F], F]:
    """Register a check, as Django does; with a type."""
    return _register(tag)  # type: ignore[no-any-return] # Django ships no types


@register(TAG)
def check_settings(**_: Any) -> list[Any]:
    """Check the settings, without a connection to the database."""
    return [*_check_names(), *_check_store(), *_check_redact()]


@register(checks.Tags.urls)
def check_urls(**_: Any) -> list[Any]:
    """Check that the dashboard can be served, where its URL is included."""
    from django.conf import settings

    if not getattr(settings, "ROOT_URLCONF", None) or find_spec("a2wsgi") is not None:
        return []
    try:
        reverse("onejob-dashboard", args=[""])
    except NoReverseMatch:
        return []
    hint = 'pip install "onejob[wsgi]", or leave out include("onejob.django.urls").'
    return [checks.Error("The URLs include the dashboard, which needs a2wsgi.", hint=hint, id="onejob.E005")]


@register(checks.Tags.database)
def check_database(databases: Any = None, **_: Any) -> list[Any]:
    """Check the schema of the ledger, with `manage.py check --database` and before `migrate`."""
    alias = _alias()
    if alias is None or alias not in (databases or ()):
        return []
    with ledger_schema(connections[alias]) as schema:
        version = schema.version()
    is_migrating = sys.argv[1:2] in MIGRATING  # which then does what the warning asks for
    return [*(() if is_migrating else _check_schema(alias, version)), *(_check_sqlite(alias) if version else ())]


def check_backend(backend: Any) -> list[Any]:
    """Check what concerns enqueuing with a backend of `TASKS`."""
    where = f"TASKS[{backend.alias!r}]"
    try:
        store = conf.ledger_settings().store
        alias = alias_of(store)
    except ConfigurationError:
        return []  # reported by `check_settings`
    found = []
    if store and alias is None:
        msg = f"{where} enqueues after the commit: the ledger is not in a database of Django."
        hint = f"Set CELERY_ONEJOB_STORE = 'django://{DEFAULT_DB_ALIAS}', so that job and data are one commit."
        found.append(checks.Warning(msg, hint=hint, id="onejob.W001"))
    elif alias is not None and alias != DEFAULT_DB_ALIAS:
        msg = f"{where}: enqueuing is a part of transactions on {alias!r}, not of those on {DEFAULT_DB_ALIAS!r}."
        hint = f"Use transaction.atomic(using={alias!r}), or set CELERY_ONEJOB_STORE = 'django://{DEFAULT_DB_ALIAS}'."
        found.append(checks.Warning(msg, hint=hint, id="onejob.W002"))
    if connections.settings.get(alias or DEFAULT_DB_ALIAS, {}).get("AUTOCOMMIT") is False:
        msg = f"{where}: AUTOCOMMIT is False, and enqueuing takes part in transaction.atomic() only."
        hint = "Remove AUTOCOMMIT from DATABASES, or enqueue within transaction.atomic()."
        found.append(checks.Warning(msg, hint=hint, id="onejob.W003"))
    return [*found, *_check_imports(), *_check_definitions()]


def _check_names() -> Iterator[Any]:
    from django.conf import settings

    from onejob.celery.option_names import SETTINGS as LEDGER_SETTINGS

    for name in dir(settings):
        if not name.startswith("ONEJOB_") or name in SETTINGS:
            continue
        known = [f"CELERY_{each.upper()}" for each in LEDGER_SETTINGS]
        near = get_close_matches(f"CELERY_{name}", [*known, *SETTINGS], n=1)
        hint = f"Write {near[0]}." if near else "The ledger's settings are Celery's: CELERY_ONEJOB_STORE and so on."
        yield checks.Error(f"The setting {name} is not read.", hint=hint, id="onejob.E003")


def _check_store() -> Iterator[Any]:
    try:
        store = conf.ledger_settings().store
    except ConfigurationError as error:
        hint = (
            "In Django's settings the names are upper case with Celery's prefix: onejob_store is CELERY_ONEJOB_STORE."
        )
        yield checks.Error(f"The settings of the ledger are invalid: {error}.", hint=hint, id="onejob.E001")
        return
    if not store:
        where = f"Celery's app is the current one, or that of {conf.APP_SETTING} = 'shop.celery:app'."
        hint = f"Set CELERY_ONEJOB_STORE = 'django://{DEFAULT_DB_ALIAS}'. {where}"
        yield checks.Error("The ledger has no store.", hint=hint, id="onejob.E001")
        return
    try:
        kind_of(store)
    except ConfigurationError as error:
        yield checks.Error(f"The store of the ledger cannot be used: {error}.", id="onejob.E002")


def _check_redact() -> Iterator[Any]:
    from django.conf import settings

    hook = getattr(settings, conf.REDACT_SETTING, None)
    try:
        found = import_string(hook) if isinstance(hook, str) else hook
    except ImportError as error:
        found, text = hook, str(error)
    else:
        text = f"{found!r} is no function"
    if found is not None and not callable(found):
        hint = "Name a function as 'shop.privacy.redact', or leave it out."
        yield checks.Error(f"{conf.REDACT_SETTING}={hook!r}: {text}.", hint=hint, id="onejob.E004")


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
        msg = (
            f"The file of the database {alias!r} has the journal mode {mode}: workers and requests wait for each other."
        )
        yield checks.Warning(msg, hint=hint, id="onejob.W004")
    if connection.settings_dict["OPTIONS"].get("transaction_mode") is None:
        msg = f"A transaction on {alias!r} that reads before it writes fails at once if a worker writes meanwhile."
        hint = "Set OPTIONS = {'transaction_mode': 'IMMEDIATE'} for this database."
        yield checks.Warning(msg, hint=hint, id="onejob.W005")


def _check_imports() -> Iterator[Any]:
    """Warn of tasks that workers may not import, because they are outside the modules that Celery looks for."""
    from onejob.django.tasks import defined_tasks

    app = conf.celery_app()
    imported = {*app.conf.imports, *app.conf.include}
    for path, task in sorted(defined_tasks().items()):
        module = str(task.func.__module__)
        if module.rpartition(".")[2] != "tasks" and module not in imported:
            hint = f"Move it to a module `tasks` of an app, or set CELERY_IMPORTS = [{module!r}]."
            yield checks.Warning(f"Workers may not know the task {path}.", hint=hint, id="onejob.W006")


def _check_definitions() -> Iterator[Any]:
    """Find the tasks whose options are invalid, which their first use would raise."""
    from onejob.django.tasks import defined_tasks

    try:
        tasks = conf.celery_app().tasks
        for path in sorted(defined_tasks()):
            options_of(tasks[path])
    except ConfigurationError as error:
        yield checks.Error(f"The options of a task are invalid: {error}.", id="onejob.E006")


def _alias() -> str | None:
    try:
        return conf.ledger_alias()
    except ConfigurationError:
        return None

"""The schema of the ledger in one of Django's databases: its migrations apply the SQL of the store's own versions."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from onejob.django.conf import ledger_alias, ledger_settings
from onejob.stores.schema import LedgerSchema, checked_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def apply_version(version: str) -> Callable[[Any, Any], None]:
    """Return the function of a `RunPython` operation that migrates the ledger to a version of its schema.

    It does nothing in a database that the ledger is not in, and where `onejob migrate up` has been before. It raises
    `ConfigurationError` for settings that are invalid.
    """

    def run(_apps: Any, schema_editor: Any) -> None:
        if schema_editor.connection.alias == ledger_alias():
            with ledger_schema(schema_editor.connection) as schema:
                schema.upgrade(version)

    return run


def keep_tables(_apps: Any, _schema_editor: Any) -> None:
    """Do nothing when Django unapplies a migration: a ledger has jobs, and older code runs on a newer schema."""


@contextmanager
def ledger_schema(connection: Any) -> Iterator[LedgerSchema]:
    """Yield the schema of the ledger in the database of one of Django's connections."""
    name = checked_schema(ledger_settings().namespace) if connection.vendor == "postgresql" else ""
    with connection.cursor() as cursor:
        yield LedgerSchema(cursor, connection.vendor, name)

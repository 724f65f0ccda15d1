"""Django's migrations of the ledger: they apply the SQL of the store's own versions through Django's connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onejob.django.conf import ledger_alias, ledger_settings
from onejob.stores.migrate import statements
from onejob.stores.migrate.lock import MIGRATION_LOCK
from onejob.stores.schema_version import TABLE, checked_schema

if TYPE_CHECKING:
    from collections.abc import Callable


def apply_version(version: str) -> Callable[[Any, Any], None]:
    """Return the function of a `RunPython` operation that migrates the ledger to a version of its schema.

    It does nothing in a database that the ledger is not in, and where `onejob migrate up` has been before. It raises
    `ConfigurationError` for settings that are invalid.
    """

    def run(_apps: Any, schema_editor: Any) -> None:
        connection = schema_editor.connection
        if connection.alias == ledger_alias():
            Schema(connection).apply(version)

    return run


def keep_tables(_apps: Any, _schema_editor: Any) -> None:
    """Do nothing when Django unapplies a migration: a ledger has jobs, and older code runs on a newer schema."""


class Schema:
    """The schema of the ledger in the database of one of Django's connections."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._is_postgres = connection.vendor == "postgresql"
        self._schema = checked_schema(ledger_settings().namespace) if self._is_postgres else ""
        self._table = f'"{self._schema}".{TABLE}' if self._is_postgres else TABLE

    def apply(self, version: str) -> None:
        """Apply one version, unless the ledger has it; the version before it must have been applied."""
        with self._connection.cursor() as cursor:
            if self._is_postgres:
                cursor.execute(f"select pg_advisory_xact_lock({MIGRATION_LOCK})")
                if not _has_rows(cursor, f"select 1 from pg_namespace where nspname = '{self._schema}'"):  # noqa: S608 - checked
                    cursor.execute(f'create schema "{self._schema}"')
            current = self.version()
            if current is not None and current >= version:
                return
            for statement in statements(self._connection.vendor, version, self._schema):
                cursor.execute(statement)
            if current is None:
                key = f"constraint {TABLE}_pkc primary key (version_num)"
                cursor.execute(f"create table {self._table} (version_num varchar(32) not null, {key})")
                cursor.execute(f"insert into {self._table} values ('{version}')")  # noqa: S608 - ours
            else:
                cursor.execute(f"update {self._table} set version_num = '{version}'")  # noqa: S608 - ours

    def version(self) -> str | None:
        """Return the version of the ledger's schema; None if there is no ledger. Raises Django's database errors."""
        exists = f"select 1 where to_regclass('{self._table}') is not null"
        if not self._is_postgres:
            exists = f"select 1 from sqlite_master where name = '{TABLE}'"  # noqa: S608 - ours
        with self._connection.cursor() as cursor:
            if not _has_rows(cursor, exists):
                return None
            cursor.execute(f"select version_num from {self._table}")  # noqa: S608 - ours
            row = cursor.fetchone()
        return None if row is None else str(row[0])


def _has_rows(cursor: Any, query: str) -> bool:
    cursor.execute(query)
    return cursor.fetchone() is not None

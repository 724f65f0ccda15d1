"""The ledger's SQL schema: its versions, which of them this code supports, and how a database gets them.

Schema changes follow expand and contract, so that rolling deployments need no downtime: a version expands the schema in
a way that the previous code tolerates, and only the version after that removes what is unused. So code supports its own
version and the next one. Each version is one file in `migrations/` of each SQL store.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any, Literal, TypeAlias

from onejob.errors import ConfigurationError

VERSIONS = ("0001",)
"""All versions, oldest first. This code was written for the last one."""
HEAD = VERSIONS[-1]
TABLE = "schema_version"
"""The table in the ledger's schema whose only row is the version."""
MIGRATION_LOCK = 7_305_804_402_471_633_272
"""The key of the advisory lock that serializes migrations in PostgreSQL: arbitrary, the same in all processes."""
Dialect: TypeAlias = Literal["postgresql", "sqlite"]
_FOLDERS = {"postgresql": "postgres", "sqlite": "sqlite"}
_POSTGRES_SCHEMA = re.compile(r"\bonejob\.")


class LedgerSchema:
    """The ledger's schema through a cursor of any driver (PEP 249). `name`: that in PostgreSQL; SQLite has none."""

    def __init__(self, cursor: Any, dialect: Dialect, name: str = "") -> None:
        self._cursor = cursor
        self._dialect = dialect
        self._name = name
        self._table = f'"{name}".{TABLE}' if name else TABLE

    def version(self) -> str | None:
        """Return the version of the schema; None if there is no ledger. Raises the driver's exceptions."""
        exists = f"select 1 from sqlite_master where name = '{TABLE}'"  # noqa: S608 - ours
        if self._name:
            exists = f"select 1 where to_regclass('{self._table}') is not null"
        if not self._first(exists):
            return None
        version = self._first(f"select version_num from {self._table}")  # noqa: S608 - a checked name
        return None if version is None else str(version)

    def upgrade(self, to: str | None = None) -> None:
        """Apply the versions up to `to` (None: all) that the ledger does not have, in a transaction of the caller.

        A lock serializes migrations in PostgreSQL; in SQLite the caller's transaction is `immediate`.
        """
        if self._name:
            self._cursor.execute(f"select pg_advisory_xact_lock({MIGRATION_LOCK})")
            if not self._first(f"select 1 from pg_namespace where nspname = '{self._name}'"):  # noqa: S608 - checked
                self._cursor.execute(f'create schema "{self._name}"')  # which needs a privilege that a role may lack
        for statement in statements(self._dialect, self._name, start=self.version(), to=to):
            self._cursor.execute(statement)

    def _first(self, query: str) -> Any:
        self._cursor.execute(query)
        row = self._cursor.fetchone()
        return row and row[0]


def pending(current: str | None, to: str | None = None) -> tuple[str, ...]:
    """Return the versions that a ledger does not have, up to `to`; none if newer code has migrated it."""
    return tuple(version for version in VERSIONS if (current or "") < version <= (to or VERSIONS[-1]))


def statements(dialect: Dialect, name: str, *, start: str | None, to: str | None = None) -> list[str]:
    """Return the statements that migrate a ledger of version `start` (None: no ledger) to another, which they store."""
    versions = pending(start, to)
    if not versions:
        return []
    table = f'"{name}".{TABLE}' if name else TABLE
    if start is None:
        key = f"constraint {TABLE}_pkc primary key (version_num)"
        stored = [
            f"create table {table} (version_num varchar(32) not null, {key})",
            f"insert into {table} values ('{versions[-1]}')",  # noqa: S608 - ours
        ]
    else:
        stored = [f"update {table} set version_num = '{versions[-1]}'"]  # noqa: S608 - ours
    return [*(each for version in versions for each in _statements_of(dialect, name, version)), *stored]


def _statements_of(dialect: Dialect, name: str, version: str) -> list[str]:
    """Return the statements of a version, each of which ends with a semicolon at the end of a line of its file."""
    file = files("onejob.stores").joinpath(_FOLDERS[dialect], "migrations", f"{version}.sql")
    text = in_schema(file.read_text(encoding="utf-8"), name)
    return [part.strip() for part in text.split(";\n") if part.strip()]


def in_schema(text: str, name: str) -> str:
    """Return SQL with PostgreSQL's schema `onejob`, for which it is written, replaced."""
    return _POSTGRES_SCHEMA.sub(f'"{name}".', text) if name else text


def check_version(found: str | None, where: str) -> None:
    """Raise `ConfigurationError` unless this code supports the version (None: there is no ledger)."""
    if found in (HEAD, f"{int(HEAD) + 1:04}"):
        return
    if found is None:
        msg = f"there is no ledger in {where}: run `onejob --store URL migrate up`"
    elif found < HEAD:
        msg = (
            f"the ledger in {where} has schema version {found}, and this onejob needs {HEAD}: "
            "run `onejob --store URL migrate up`"
        )
    else:
        msg = f"the ledger in {where} has schema version {found}, and this onejob supports {HEAD}: upgrade onejob"
    raise ConfigurationError(msg)


def checked_schema(name: str) -> str:
    """Return the name of a schema if it is valid without quotes. Raises `ConfigurationError`."""
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", name) or name.startswith("pg_"):
        raise ConfigurationError(
            f"{name!r} is invalid as the ledger's schema in PostgreSQL: "
            "use up to 63 lower-case letters, digits and underscores, not starting with a digit or pg_"
        )
    return name

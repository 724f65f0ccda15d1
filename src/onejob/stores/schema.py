"""The ledger's SQL schema: its versions, the versions that this code supports, and the migration to a version.

Schema changes follow expand and contract, so that rolling deployments need no downtime: a version expands the schema in
a way that the previous code tolerates, and only the version after that removes what is unused. So code supports its own
version and the next one. Each version is one file in `migrations/` of each SQL store.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
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
TRIM_FUNCTION = "trim_audit_log"
"""The function in PostgreSQL that deletes old entries of the audit log, which only the owner may do."""
_SEQUENCES = """
select format('%I.%I', '{name}', relname), quote_ident(attname), sequence, coalesce(last_value, 0)
from pg_attribute
join pg_class on pg_class.oid = attrelid and relnamespace = '{name}'::regnamespace
cross join lateral (
  select case when attidentity <> '' then pg_get_serial_sequence(attrelid::regclass::text, attname) end
) as identity (sequence)
left join pg_sequences on schemaname = '{name}' and format('%I.%I', schemaname, sequencename) = sequence
where attidentity <> '' and has_sequence_privilege(sequence, 'usage') and has_table_privilege(attrelid, 'select')
order by 1
"""
_POSTGRES_SCHEMA = re.compile(r"\bonejob\.")


@dataclass(frozen=True, slots=True)
class Repair:
    """A part that a ledger lacks although its version is right, and the statements by which its owner mends that."""

    what: str
    statements: tuple[str, ...]


class LedgerSchema:
    """The ledger's schema through a cursor of any driver (PEP 249). `name`: the schema's in PostgreSQL, else ""."""

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
        for repair in self.repairs():
            for statement in repair.statements:
                self._cursor.execute(statement)

    def repairs(self) -> tuple[Repair, ...]:
        """Return the parts that a ledger of the right version lacks, e.g. after a copy of its rows. In SQLite: none."""
        if not self._name or self.version() is None:
            return ()
        function = f'"{self._name}".{TRIM_FUNCTION}'
        has_function = self._first(f"select to_regproc('{function}') is not null")
        missing = Repair(f"the function {TRIM_FUNCTION} is missing", tuple(_access_statements(self._name)))
        return (*(() if has_function else (missing,)), *self._stale_sequences())

    def _stale_sequences(self) -> Iterator[Repair]:
        """Yield repairs of identity columns whose next number may be taken: a copy of rows leaves sequences behind."""
        self._cursor.execute(_SEQUENCES.format(name=self._name))
        for table, column, sequence, last in self._cursor.fetchall():
            newest = self._first(f"select max({column}) from {table}") or 0  # noqa: S608 - quoted by the server
            if newest > last:
                what = f"the sequence of {table}.{column} is at {last}, and the rows go up to {newest}"
                move = f"select setval('{sequence}', (select max({column}) from {table}))"  # noqa: S608 - likewise
                yield Repair(what, (f"lock table {table} in share row exclusive mode", move))

    def _first(self, query: str) -> Any:
        self._cursor.execute(query)
        row = self._cursor.fetchone()
        return row and row[0]


def pending(current: str | None, to: str | None = None) -> tuple[str, ...]:
    """Return the versions that a ledger does not have, up to `to`; none if newer code has migrated it."""
    return tuple(version for version in VERSIONS if (current or "") < version <= (to or VERSIONS[-1]))


def statements(dialect: Dialect, name: str, *, start: str | None, to: str | None = None) -> list[str]:
    """Return the statements that migrate a ledger from version `start` (None: no ledger) to a version, and store it."""
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
    access = _access_statements(name) if dialect == "postgresql" else []
    return [*(each for version in versions for each in _statements_of(dialect, name, version)), *stored, *access]


def _access_statements(name: str) -> list[str]:
    """Return the repeatable statements that reserve some operations to the owner of a ledger in PostgreSQL."""
    return _statements_of("postgresql", name, "access")


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

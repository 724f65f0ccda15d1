"""Migrations of the ledger's schema in PostgreSQL and SQLite: run them, show the version, or print the SQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onejob.errors import ConfigurationError, StoreError, StoreUnavailableError
from onejob.stores import kind_of, postgres_driver, sqlite_path
from onejob.stores.django_database import resolve
from onejob.stores.schema import (
    HEAD,
    VERSIONS,
    Dialect,
    LedgerSchema,
    check_version,
    checked_schema,
    pending,
    statements,
)
from onejob.stores.sqlite.connection import connect

CREATE_SCHEMA = (
    "do $$ begin if not exists (select from pg_namespace where nspname = '{name}') then create schema \"{name}\"; "
    "end if; end $$"
)
"""Unlike `create schema if not exists`, it needs no privilege on the database where the schema is there already."""


@dataclass(frozen=True, slots=True)
class Status:
    """The schema version of a ledger: `current` is None if there is no ledger."""

    current: str | None
    head: str
    pending: tuple[str, ...]


def upgrade(url: str, namespace: str = "onejob") -> Status:
    """Migrate the ledger at `url`, or create it; repeatable. Raises `ConfigurationError`, `StoreError`."""
    found = status(url, namespace)
    if found.current not in (None, *VERSIONS):  # migrated by newer code
        check_version(found.current, f"schema {namespace!r}" if kind_of(url) == "postgresql" else url)
    elif found.pending:
        with _opened(url, namespace, writes=True) as schema:
            schema.upgrade()
    return status(url, namespace)


def status(url: str, namespace: str = "onejob") -> Status:
    """Return the schema version of the ledger at `url`. Raises `ConfigurationError`, `StoreError`."""
    with _opened(url, namespace) as schema:
        current = schema.version()
    return Status(current, HEAD, pending(current))


def sql(url: str, namespace: str = "onejob", start: str | None = None) -> str:
    """Return the SQL from version `start` (None: none) to the newest, offline. Raises `ConfigurationError`."""
    if start is not None and start not in VERSIONS:
        raise ConfigurationError(f"{start!r} is no schema version of this onejob; it supports {', '.join(VERSIONS)}")
    dialect, name = _checked(resolve(url), namespace)
    schema = [CREATE_SCHEMA.format(name=name)] if name and start is None else []
    return "".join(f"{each};\n\n" for each in ["begin", *schema, *statements(dialect, name, start=start), "commit"])


def _checked(url: str, namespace: str) -> tuple[Dialect, str]:
    """Return the dialect of a ledger, and the name of its schema. Raises `ConfigurationError`."""
    kind = kind_of(url)
    if kind == "postgresql":
        return "postgresql", checked_schema(namespace)
    if kind == "sqlite":
        return "sqlite", ""
    raise ConfigurationError(f"a ledger at {kind}:// has no schema to migrate; only PostgreSQL and SQLite have")


@contextmanager
def _opened(url: str, namespace: str, *, writes: bool = False) -> Iterator[LedgerSchema]:
    """Yield the schema of a ledger in a transaction that commits. Raises `ConfigurationError`, `StoreError`."""
    url = resolve(url)
    dialect, name = _checked(url, namespace)
    postgres: Any = postgres_driver() if dialect == "postgresql" else None
    driver = postgres.psycopg if postgres else sqlite3
    try:
        with ExitStack() as stack:
            if postgres:  # without prepared statements, for a pooler in transaction mode
                info = postgres.conninfo_of(url)  # libpq's syntax supports several hosts
                connection = stack.enter_context(driver.connect(info, prepare_threshold=None))
            else:
                connection = stack.enter_context(closing(connect(Path(sqlite_path(url)))))
                stack.enter_context(connection)
                connection.execute("begin immediate" if writes else "begin")
            yield LedgerSchema(connection.cursor(), dialect, name)
    except driver.OperationalError as error:
        raise StoreUnavailableError(f"the {dialect} store did not answer: {error}") from error
    except driver.Error as error:
        raise StoreError(f"the {dialect} store refused: {error}") from error

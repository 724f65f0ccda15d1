"""Migrates a ledger: the schema in PostgreSQL and SQLite, with its version and its SQL, or the keys in Redis."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onejob.errors import ConfigurationError
from onejob.stores import kind_of, open_store, postgres_driver, sqlite_path
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
from onejob.stores.sqlite import errors as sqlite_errors
from onejob.stores.sqlite.connection import connect
from onejob.stores.sqlite.files import absolute_path

CREATE_SCHEMA = (
    "do $$ begin if not exists (select from pg_namespace where nspname = '{name}') then create schema \"{name}\"; "
    "end if; end $$"
)
"""The SQL that creates a schema. Where it exists, this needs no right, unlike `create schema if not exists`."""

NO_PRIVILEGE = "42501"
"""PostgreSQL's code of an error about a missing right."""
WAYS_OUT = (
    "Migrate with the URL of a role that owns the schema of the ledger. To make one, a superuser runs "
    "`onejob migrate roles | psql URL -v schema={name}` (docs/operations/deploying.md); for a role that exists, the "
    'owner of the database runs `create schema "{name}" authorization ROLE`'
)


@dataclass(frozen=True, slots=True)
class Status:
    """The schema version of a ledger: `current` is None if there is no ledger."""

    current: str | None
    head: str
    pending: tuple[str, ...]
    repairs: tuple[str, ...] = ()
    """The parts that the ledger lacks although its version is right, and that `upgrade` mends."""


LOCK_TIMEOUT = "10s"
"""How long a statement of the printed SQL waits for a lock: as long as the ledger's own statements."""


def upgrade(url: str, namespace: str = "onejob") -> Status:
    """Migrate the ledger at `url`, or create it; repeatable. Raises `ConfigurationError`, `StoreError`."""
    found = status(url, namespace)
    if found.current not in (None, *VERSIONS):  # migrated by newer code
        check_version(found.current, f"schema {namespace!r}" if kind_of(url) == "postgresql" else url)
    elif found.pending or found.repairs:
        with _opened(url, namespace, writes=True) as schema:
            schema.upgrade()
    return status(url, namespace)


def migrate(url: str, namespace: str = "onejob") -> list[str]:
    """Create or upgrade the ledger at `url`, and return the changes: migrations, repairs, or indexes in Redis.

    Repeatable. Raises `ConfigurationError`, `StoreError`.
    """
    if kind_of(url) == "redis":
        added = index_redis(url, namespace)
        return [f"{added} jobs were added to lists of submitters"] if added else []
    before = status(url, namespace)
    upgrade(url, namespace)
    return [*before.pending, *(f"repaired: {repair}" for repair in before.repairs)]


def index_redis(url: str, namespace: str = "onejob") -> int:
    """Add to the sets of submitters the jobs in Redis that an earlier version has written; return how many.

    Repeatable, at any time, while others use the ledger. Raises `ConfigurationError`, `StoreError`.
    """
    from onejob.stores.redis import RedisStore

    with closing(open_store(url, namespace=namespace)) as store:
        if not isinstance(store, RedisStore):
            raise ConfigurationError(f"{kind_of(url)}:// is no ledger in Redis")
        return store.index_submitters()


def status(url: str, namespace: str = "onejob") -> Status:
    """Return the schema version of the ledger at `url`. Raises `ConfigurationError`, `StoreError`."""
    with _opened(url, namespace) as schema:
        current = schema.version()
        repairs = tuple(repair.what for repair in schema.repairs()) if current == HEAD else ()
    return Status(current, HEAD, pending(current), repairs)


def sql(url: str, namespace: str = "onejob", start: str | None = None) -> str:
    """Return the SQL from version `start` (None: none) to the newest, offline. Raises `ConfigurationError`."""
    if start is not None and start not in VERSIONS:
        raise ConfigurationError(f"{start!r} is no schema version of this onejob; it supports {', '.join(VERSIONS)}")
    dialect, name = _checked(resolve(url), namespace)
    schema = [CREATE_SCHEMA.format(name=name)] if name and start is None else []
    # One that waits for a lock would make every later statement wait behind it.
    timeout = [f"set local lock_timeout = '{LOCK_TIMEOUT}'"] if name else []
    lines = ["begin", *timeout, *schema, *statements(dialect, name, start=start), "commit"]
    return "".join(f"{each};\n\n" for each in lines)


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
    except driver.Error as error:
        if postgres:
            ways_out = WAYS_OUT.format(name=name) if writes and getattr(error, "sqlstate", None) == NO_PRIVILEGE else ""
            raise postgres.translate(error, postgres.address_of(postgres.conninfo_of(url)), ways_out) from error
        raise sqlite_errors.translate(error, absolute_path(sqlite_path(url))) from error

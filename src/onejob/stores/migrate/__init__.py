"""Migrations of the ledger's schema in PostgreSQL and SQLite: run them, show the version, or print the SQL.

Alembic manages the order and the version; the changes are the .sql files of the stores.
"""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from onejob.errors import ConfigurationError, StoreError, StoreUnavailableError
from onejob.stores import kind_of
from onejob.stores.django_database import resolve
from onejob.stores.schema_version import FILES, HEAD, VERSIONS, check_version, checked_schema, statements_in

if TYPE_CHECKING:
    from alembic.config import Config

SQL_STORES = ("postgresql", "sqlite")
_alembic_lock = threading.Lock()  # Alembic keeps its context in a global variable


@dataclass(frozen=True, slots=True)
class Status:
    """The schema version of a ledger: `current` is None if there is no ledger."""

    current: str | None
    head: str
    pending: tuple[str, ...]


def upgrade(url: str, namespace: str = "onejob") -> Status:
    """Migrate the ledger at `url` to the newest schema, or create it. Returns the status afterwards.

    Safe to repeat, and to run concurrently. Raises `ConfigurationError`, `StoreError`.
    """
    found = status(url, namespace)
    if found.current not in (None, *VERSIONS):  # migrated by newer code
        check_version(found.current, f"schema {namespace!r}" if kind_of(url) == "postgresql" else url)
        return found
    _run_alembic(url, namespace, "upgrade")
    return status(url, namespace)


def status(url: str, namespace: str = "onejob") -> Status:
    """Return the schema version of the ledger at `url`. Raises `ConfigurationError`, `StoreError`."""
    found: list[str | None] = []
    _run_alembic(url, namespace, "current", found=found)
    current = found[0]
    pending = VERSIONS[VERSIONS.index(current) + 1 :] if current in VERSIONS else VERSIONS if current is None else ()
    return Status(current, HEAD, tuple(pending))


def sql(url: str, namespace: str = "onejob", start: str | None = None) -> str:
    """Return the SQL that migrates a ledger from version `start` (None: no ledger) to the newest, without connecting.

    Raises `ConfigurationError`.
    """
    if start is not None and start not in VERSIONS:
        msg = f"{start!r} is no schema version of this onejob; it supports {', '.join(VERSIONS)}"
        raise ConfigurationError(msg)
    output = io.StringIO()
    _run_alembic(url, namespace, "sql", output=output, start=start)
    return output.getvalue()


def statements(dialect: str, version: str, schema: str) -> list[str]:
    """Return the statements of one version for `postgresql` or `sqlite`."""
    folder = "postgres" if dialect == "postgresql" else "sqlite"
    text = files("onejob.stores").joinpath(folder, "migrations", f"{FILES[version]}.sql").read_text(encoding="utf-8")
    if dialect == "postgresql":
        from onejob.stores.postgres.statements import in_schema

        text = in_schema(text, schema)
    return statements_in(text)


def _run_alembic(url: str, namespace: str, action: str, **options: Any) -> None:
    url = resolve(url)
    kind = kind_of(url)
    if kind not in SQL_STORES:
        msg = f"a ledger at {kind}:// has no schema to migrate; only PostgreSQL and SQLite have"
        raise ConfigurationError(msg)
    try:
        from alembic import command
        from sqlalchemy import exc
    except ImportError as error:
        msg = f'migrations need more packages ({error.name} is missing): pip install "onejob[migrate]"'
        raise ConfigurationError(msg) from error
    config = _config(kind, url, namespace, **options)
    try:
        with _alembic_lock:
            if action == "sql":
                command.upgrade(config, f"{options['start'] or 'base'}:{HEAD}", sql=True)
            elif action == "upgrade":
                command.upgrade(config, HEAD)
            else:
                command.current(config)
    except exc.OperationalError as error:
        msg = f"the {kind} store did not answer: {error.orig}"
        raise StoreUnavailableError(msg) from error
    except exc.SQLAlchemyError as error:
        msg = f"the {kind} store refused: {error}"
        raise StoreError(msg) from error


def _config(kind: str, url: str, namespace: str, **options: Any) -> Config:
    from alembic.config import Config

    config = Config(output_buffer=options.get("output"))
    config.set_main_option("script_location", "onejob.stores:migrate")
    config.attributes |= {"dialect": kind, "url": url, "schema": _schema_of(kind, namespace), **options}
    return config


def _schema_of(kind: str, namespace: str) -> str | None:
    return None if kind == "sqlite" else checked_schema(namespace)

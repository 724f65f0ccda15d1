"""Changes of the ledger's schema in PostgreSQL and SQLite: run them, tell where it stands, or print the SQL.

Alembic keeps the order and the version; what changes is written in the stores' own .sql files.
"""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from onejob.errors import ConfigurationError, StoreError, StoreUnavailableError
from onejob.stores import kind_of
from onejob.stores.schema_version import FILES, HEAD, VERSIONS, check_version, checked_schema, statements_in

if TYPE_CHECKING:
    from alembic.config import Config

SQL_STORES = ("postgresql", "sqlite")
_one_at_a_time = threading.Lock()  # Alembic keeps what it is doing in a global


@dataclass(frozen=True, slots=True)
class Status:
    """Where a ledger's schema stands: `current` is None where there is no ledger."""

    current: str | None
    head: str
    pending: tuple[str, ...]


def upgrade(url: str, namespace: str = "onejob") -> Status:
    """Bring the ledger at `url` to the newest schema, making it where there is none. Returns where it stands then.

    Safe to repeat, and to run in several places at once. Raises `ConfigurationError`, `StoreError`.
    """
    found = status(url, namespace)
    if found.current not in (None, *VERSIONS):  # newer code was here first
        check_version(found.current, f"schema {namespace!r}" if kind_of(url) == "postgresql" else url)
        return found
    _run(url, namespace, "upgrade")
    return status(url, namespace)


def status(url: str, namespace: str = "onejob") -> Status:
    """Return where the schema of the ledger at `url` stands. Raises `ConfigurationError`, `StoreError`."""
    found: list[str | None] = []
    _run(url, namespace, "current", found=found)
    current = found[0]
    pending = VERSIONS[VERSIONS.index(current) + 1 :] if current in VERSIONS else VERSIONS if current is None else ()
    return Status(current, HEAD, tuple(pending))


def sql(url: str, namespace: str = "onejob", start: str | None = None) -> str:
    """Return the SQL that brings a ledger from version `start` (None: nothing) to the newest, without connecting.

    Raises `ConfigurationError`.
    """
    if start is not None and start not in VERSIONS:
        msg = f"{start!r} is no schema version of this onejob; it knows {', '.join(VERSIONS)}"
        raise ConfigurationError(msg)
    output = io.StringIO()
    _run(url, namespace, "sql", output=output, start=start)
    return output.getvalue()


def statements(dialect: str, version: str, schema: str) -> list[str]:
    """Return the statements of one version for `postgresql` or `sqlite`."""
    folder = "postgres" if dialect == "postgresql" else "sqlite"
    text = files("onejob.stores").joinpath(folder, "migrations", f"{FILES[version]}.sql").read_text(encoding="utf-8")
    if dialect == "postgresql":
        from onejob.stores.postgres.statements import in_schema

        text = in_schema(text, schema)
    return statements_in(text)


def _run(url: str, namespace: str, what: str, **more: Any) -> None:
    kind = kind_of(url)
    if kind not in SQL_STORES:
        msg = f"a ledger at {kind}:// has no schema to migrate; PostgreSQL and SQLite have"
        raise ConfigurationError(msg)
    try:
        from alembic import command
        from sqlalchemy import exc
    except ImportError as error:
        msg = f'migrating needs more than the library ({error.name} is missing): pip install "onejob[migrate]"'
        raise ConfigurationError(msg) from error
    config = _config(kind, url, namespace, **more)
    try:
        with _one_at_a_time:
            if what == "sql":
                command.upgrade(config, f"{more['start'] or 'base'}:{HEAD}", sql=True)
            elif what == "upgrade":
                command.upgrade(config, HEAD)
            else:
                command.current(config)
    except exc.OperationalError as error:
        msg = f"the {kind} store did not answer: {error.orig}"
        raise StoreUnavailableError(msg) from error
    except exc.SQLAlchemyError as error:
        msg = f"the {kind} store refused: {error}"
        raise StoreError(msg) from error


def _config(kind: str, url: str, namespace: str, **more: Any) -> Config:
    from alembic.config import Config

    config = Config(output_buffer=more.get("output"))
    config.set_main_option("script_location", "onejob.stores:migrate")
    config.attributes |= {"dialect": kind, "url": url, "schema": _schema(kind, namespace), **more}
    return config


def _schema(kind: str, namespace: str) -> str | None:
    return None if kind == "sqlite" else checked_schema(namespace)

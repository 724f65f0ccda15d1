"""Alembic's environment: connects to the ledger's database, or prints the SQL."""

from __future__ import annotations

from typing import Any

from alembic import context
from sqlalchemy import Connection, Engine, create_engine, make_url, pool, text

from onejob.stores.migrate.lock import MIGRATION_LOCK
from onejob.stores.schema_version import TABLE

attributes = context.config.attributes
schema: str | None = attributes["schema"]
options: dict[str, Any] = {"version_table": TABLE, "version_table_schema": schema}


def print_sql() -> None:
    """Print the SQL, without a connection."""
    context.configure(dialect_name=attributes["dialect"], literal_binds=True, **options)
    with context.begin_transaction():
        if schema:
            context.execute(f'create schema if not exists "{schema}"')
        context.run_migrations()


def migrate() -> None:
    """Migrate, or append the current version to `found`."""
    with _engine().connect() as connection:
        found = attributes.get("found")
        if found is not None:
            context.configure(connection, **options)
            found.append(context.get_context().get_current_revision())
            return
        _prepare(connection)
        context.configure(connection, **options)
        with context.begin_transaction():
            context.run_migrations()
        connection.commit()


def _engine() -> Engine:
    if not schema:
        return create_engine(make_url(attributes["url"]), poolclass=pool.NullPool)
    import psycopg

    from onejob.stores.postgres.connection import conninfo_of

    info = conninfo_of(attributes["url"])  # libpq's syntax supports several hosts

    def connect() -> psycopg.Connection[Any]:
        return psycopg.connect(info, prepare_threshold=None)  # for a pooler in transaction mode

    return create_engine("postgresql+psycopg://", creator=connect, poolclass=pool.NullPool)


def _prepare(connection: Connection) -> None:
    """Create the schema, under a lock that serializes migrations. Everything is one transaction."""
    if schema:
        connection.execute(text(f"select pg_advisory_xact_lock({MIGRATION_LOCK})"))
        exists = text("select from pg_namespace where nspname = :schema")
        if connection.execute(exists, {"schema": schema}).first() is None:  # checking needs no privilege to create
            connection.execute(text(f'create schema "{schema}"'))
    else:
        connection.exec_driver_sql("begin immediate")


if context.is_offline_mode():
    print_sql()
else:
    migrate()

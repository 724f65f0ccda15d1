"""What Alembic runs: it connects to the ledger's database, or prints the SQL, and knows where the version is kept."""

from __future__ import annotations

from typing import Any

from alembic import context
from sqlalchemy import Connection, Engine, create_engine, make_url, pool, text

from onejob.stores.schema_version import TABLE

given = context.config.attributes
schema: str | None = given["schema"]
MIGRATION_LOCK = 7_305_804_402_471_633_272  # any number, the same in all processes that migrate
options: dict[str, Any] = {"version_table": TABLE, "version_table_schema": schema}


def offline() -> None:
    """Print the SQL."""
    context.configure(dialect_name=given["dialect"], literal_binds=True, **options)
    with context.begin_transaction():
        if schema:
            context.execute(f'create schema if not exists "{schema}"')
        context.run_migrations()


def online() -> None:
    """Migrate, or tell the version."""
    with _engine().connect() as connection:
        found = given.get("found")
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
        return create_engine(make_url(given["url"]), poolclass=pool.NullPool)
    import psycopg

    from onejob.stores.postgres.connection import conninfo_of

    info = conninfo_of(given["url"])  # libpq's own words, which know of several hosts
    return create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(info), poolclass=pool.NullPool)


def _prepare(connection: Connection) -> None:
    """One migration at a time, in a schema that is there. All of it is one transaction."""
    if schema:
        connection.execute(text(f"select pg_advisory_xact_lock({MIGRATION_LOCK})"))
        there = text("select from pg_namespace where nspname = :schema")
        if connection.execute(there, {"schema": schema}).first() is None:  # to look needs no right to create
            connection.execute(text(f'create schema "{schema}"'))
    else:
        connection.exec_driver_sql("begin immediate")


if context.is_offline_mode():
    offline()
else:
    online()

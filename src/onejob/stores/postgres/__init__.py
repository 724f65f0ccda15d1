"""The durable store: one schema in a database of PostgreSQL 13 or later, which may be the application's database."""

from onejob.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]

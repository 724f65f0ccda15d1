"""The durable store: one schema in a PostgreSQL database (13 or later), also one that the application writes to."""

from onejob.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]

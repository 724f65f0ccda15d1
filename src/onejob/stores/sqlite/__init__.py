"""The embedded store: one SQLite file, shared by all processes of one machine. The machine's clock is the store's."""

from onejob.stores.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]

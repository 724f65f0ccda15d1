"""The embedded store: one SQLite file, shared by all processes of one machine. Its clock is the machine's."""

from onejob.stores.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]

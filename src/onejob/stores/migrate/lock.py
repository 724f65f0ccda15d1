"""The lock that serializes migrations in PostgreSQL."""

MIGRATION_LOCK = 7_305_804_402_471_633_272
"""The key of the advisory lock: arbitrary, the same in all processes that migrate."""

"""Alembic's revisions, one module per schema version."""

"""Adds the routes of jobs, sums of duplicates, and the id of the ledger."""

from __future__ import annotations

from alembic import context, op

from onejob.stores.migrate import statements

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Expand the schema; the previous code tolerates it."""
    for statement in statements(op.get_context().dialect.name, revision, context.config.attributes["schema"]):
        op.execute(statement)

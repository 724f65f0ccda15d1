"""Adds the entry point of jobs, so that their history keeps no entry that the row tells."""

from __future__ import annotations

from alembic import context, op

from onejob.stores.migrate import statements

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Expand the schema; the previous code tolerates it."""
    for statement in statements(op.get_context().dialect.name, revision, context.config.attributes["schema"]):
        op.execute(statement)

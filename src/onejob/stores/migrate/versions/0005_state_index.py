"""Adds the index of the states whose jobs are listed, and lists followers that have ended."""

from __future__ import annotations

from alembic import context, op

from onejob.stores.migrate import statements

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Expand the schema; the previous code tolerates it."""
    for statement in statements(op.get_context().dialect.name, revision, context.config.attributes["schema"]):
        op.execute(statement)

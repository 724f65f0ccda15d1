"""Adds the time at which the message of a waiting job was sent."""

from __future__ import annotations

from alembic import context, op

from onejob.stores.migrate import statements

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Expand the schema; the previous code tolerates it."""
    for statement in statements(op.get_context().dialect.name, revision, context.config.attributes["schema"]):
        op.execute(statement)

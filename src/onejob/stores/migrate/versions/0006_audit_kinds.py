"""Keeps refused requests and logins apart from actions in the audit log."""

from __future__ import annotations

from alembic import context, op

from onejob.stores.migrate import statements

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Expand the schema; the previous code tolerates it."""
    for statement in statements(op.get_context().dialect.name, revision, context.config.attributes["schema"]):
        op.execute(statement)

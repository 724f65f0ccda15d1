"""Creates the ledger's tables."""

from __future__ import annotations

from alembic import context, op

from onejob.stores.migrate import statements

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    for statement in statements(op.get_context().dialect.name, revision, context.config.attributes["schema"]):
        op.execute(statement)

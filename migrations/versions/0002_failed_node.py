"""Outcomes say which node failed: of a prefill and a decode node, it need not be the last.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("outcomes", sa.Column("failed_node", sa.Text(), nullable=True))


def downgrade() -> None:
    # In place: SQLite 3.35 and Postgres both can, and a copy would lose the clustered key.
    op.drop_column("outcomes", "failed_node")

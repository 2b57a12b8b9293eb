"""What operators last said of nodes and of the fleet, so that it outlives the service.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "standings",
        sa.Column("name", KEY, nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_standings"),
    )


def downgrade() -> None:
    op.drop_table("standings")

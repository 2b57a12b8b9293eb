"""Prompt text, where keeping it is switched on.

Revision ID: 0010
Revises: 0009
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "prompts",
        sa.Column("decision_id", KEY, nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("decision_id", name="pk_prompts"),
    )
    op.create_index("ix_prompts_at_us", "prompts", ["at_us"])


def downgrade() -> None:
    op.drop_table("prompts")

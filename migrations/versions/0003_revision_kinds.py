"""Revisions say what made them; changes can wait for their time.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    kind = sa.Column("kind", sa.Text(), nullable=False, server_default=sa.text("'change'"))
    detail = sa.Column("detail", sa.Text(), nullable=False, server_default=sa.text("'{}'"))
    op.add_column("revisions", kind)
    op.add_column("revisions", detail)
    op.create_table(
        "scheduled_changes",
        sa.Column("id", KEY, nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("due_us", sa.BigInteger(), nullable=False),
        sa.Column("until_us", sa.BigInteger(), nullable=True),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("changes", sa.Text(), nullable=False),
        sa.Column("expected", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_scheduled_changes"),
    )


def downgrade() -> None:
    op.drop_table("scheduled_changes")
    op.drop_column("revisions", "detail")
    op.drop_column("revisions", "kind")

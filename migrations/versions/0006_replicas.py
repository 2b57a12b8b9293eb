"""Slots of periodic work, replicas and topics of change.

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "slots",
        sa.Column("job", KEY, nullable=False),
        sa.Column("slot", sa.BigInteger(), nullable=False),
        sa.Column("replica", sa.Text(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job", "slot", name="pk_slots"),
    )
    op.create_table(
        "replicas",
        sa.Column("id", KEY, nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("started_us", sa.BigInteger(), nullable=False),
        sa.Column("seen_us", sa.BigInteger(), nullable=False),
        sa.Column("stopped_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_replicas"),
    )
    op.create_table(
        "topics",
        sa.Column("name", KEY, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_topics"),
    )


def downgrade() -> None:
    for table in ("topics", "replicas", "slots"):
        op.drop_table(table)

"""Documents of the console (saved views, results of the Lab); how long a decision took and waited.

Revision ID: 0011
Revises: 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "documents",
        sa.Column("kind", KEY, nullable=False),
        sa.Column("id", KEY, nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "id", name="pk_documents"),
    )
    for name in ("decide_s", "waited_s"):
        op.add_column("decisions", sa.Column(name, sa.Double(), nullable=True))


def downgrade() -> None:
    # In place: SQLite 3.35 and Postgres both can.
    for name in ("waited_s", "decide_s"):
        op.drop_column("decisions", name)
    op.drop_table("documents")

"""Roll-ups of requests by tenant, model and nodes; the last hours are rolled up anew for them.

Revision ID: 0013
Revises: 0012
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

BUCKET_US = 10_000_000
HOUR_US = 3_600_000_000


def whole(name: str) -> sa.Column:
    return sa.Column(name, sa.BigInteger(), nullable=False)


def upgrade() -> None:
    op.create_table(
        "share_rollups",
        sa.Column("level_s", sa.Integer(), nullable=False),
        whole("start_us"),
        whole("oldest_us"),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("level_s", "start_us", name="pk_share_rollups"),
    )
    # The last hour or two are rolled up anew. What is older has no such roll-up and is read from
    # the rows: that takes longer, but nothing else has to wait for it.
    newest_us = op.get_bind().scalar(sa.text("SELECT max(at_us) FROM decisions"))
    if newest_us is None:
        return
    since_us = (newest_us // HOUR_US - 1) * HOUR_US
    op.execute(f"INSERT INTO horizons (name, before_us) VALUES ('shares', {since_us})")
    op.execute(
        "INSERT INTO summary_marks (level_s, start_us, token)"
        f" SELECT DISTINCT 10, at_us / {BUCKET_US} * {BUCKET_US}, 0 FROM decisions"
        f" WHERE at_us >= {since_us} ON CONFLICT DO NOTHING"
    )


def downgrade() -> None:
    op.drop_table("share_rollups")
    op.execute("DELETE FROM horizons WHERE name = 'shares'")

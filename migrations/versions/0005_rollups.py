"""Roll-ups, facets and the marks that keep them exact.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
SUMS = (
    "decisions", "rejected", "finished", "failed", "aborted", "slo_missed", "prompt_tokens",
    "match_tokens", "reachable_tokens", "reported_prompt_tokens", "cached_tokens", "output_tokens",
)  # fmt: skip
BUCKET_US = 10_000_000


def whole(name: str) -> sa.Column:
    return sa.Column(name, sa.BigInteger(), nullable=False)


def upgrade() -> None:
    op.create_table(
        "rollups",
        sa.Column("level_s", sa.Integer(), nullable=False),
        sa.Column("node", KEY, nullable=False),
        whole("start_us"),
        *(whole(name) for name in SUMS),
        sa.Column("ttft", sa.LargeBinary(), nullable=False),
        sa.Column("tbt", sa.LargeBinary(), nullable=False),
        sa.Column("per_node", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("level_s", "node", "start_us", name="pk_rollups"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_rollups_level_s_start_us", "rollups", ["level_s", "start_us"])
    op.create_table(
        "facets",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("value", KEY, nullable=False),
        whole("start_us"),
        sa.PrimaryKeyConstraint("kind", "value", "start_us", name="pk_facets"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_facets_start_us", "facets", ["start_us"])
    op.create_table(
        "summary_marks",
        sa.Column("level_s", sa.Integer(), nullable=False),
        whole("start_us"),
        whole("token"),
        sa.PrimaryKeyConstraint("level_s", "start_us", "token", name="pk_summary_marks"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "horizons",
        sa.Column("name", KEY, nullable=False),
        whole("before_us"),
        sa.PrimaryKeyConstraint("name", name="pk_horizons"),
    )
    # What is stored already is to be rolled up.
    op.execute(
        "INSERT INTO summary_marks (level_s, start_us, token)"
        f" SELECT 10, bucket * {BUCKET_US}, 0 FROM ("
        f"SELECT at_us / {BUCKET_US} AS bucket FROM decisions"
        f" UNION SELECT decided_us / {BUCKET_US} FROM outcomes) AS buckets"
    )


def downgrade() -> None:
    for table in ("horizons", "summary_marks", "facets", "rollups"):
        op.drop_table(table)

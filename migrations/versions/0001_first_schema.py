"""First schema: decisions, outcomes, telemetry, events, nodes, revisions.

Revision ID: 0001
Revises:
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def where(condition: str) -> dict[str, Any]:
    """Partial on both databases."""
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


def upgrade() -> None:
    op.create_table(
        "decisions",
        sa.Column("id", KEY, nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("adapter", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("session", sa.Text(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("signal", sa.Text(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("retry_after_s", sa.Double(), nullable=False),
        sa.Column("prefill_node", sa.Text(), nullable=True),
        sa.Column("decode_node", sa.Text(), nullable=True),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens_expected", sa.Integer(), nullable=False),
        sa.Column("match_tokens", sa.Integer(), nullable=False),
        sa.Column("reachable_tokens", sa.Integer(), nullable=False),
        sa.Column("prefix_tokens", sa.Integer(), nullable=False),
        sa.Column("fetch_from", sa.Text(), nullable=True),
        sa.Column("fetch_tokens", sa.Integer(), nullable=False),
        sa.Column("predicted_queue_s", sa.Double(), nullable=True),
        sa.Column("predicted_transfer_s", sa.Double(), nullable=True),
        sa.Column("predicted_prefill_s", sa.Double(), nullable=True),
        sa.Column("predicted_ttft_s", sa.Double(), nullable=True),
        sa.Column("predicted_tbt_s", sa.Double(), nullable=True),
        sa.Column("ttft_slo_s", sa.Double(), nullable=True),
        sa.Column("tbt_slo_s", sa.Double(), nullable=True),
        sa.Column("tied", sa.Integer(), nullable=False),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.Column("excluded", sa.Text(), nullable=False),
        sa.Column("decode_excluded", sa.Text(), nullable=False),
        sa.Column("candidates", sa.Text(), nullable=False),
        sa.Column("decode_candidates", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_decisions"),
    )
    op.create_index("ix_decisions_at_us", "decisions", ["at_us"])
    op.create_index(
        "ix_decisions_below_best_at_us",
        "decisions",
        ["at_us"],
        **where("match_tokens < reachable_tokens AND status IS NULL"),
    )
    op.create_index(
        "ix_decisions_decode_node_at_us",
        "decisions",
        ["decode_node", "at_us"],
        **where("decode_node <> prefill_node"),
    )
    op.create_index("ix_decisions_prefill_node_at_us", "decisions", ["prefill_node", "at_us"])
    op.create_index(
        "ix_decisions_rejected_at_us", "decisions", ["at_us"], **where("status IS NOT NULL")
    )
    op.create_index("ix_decisions_request_id", "decisions", ["request_id"])

    op.create_table(
        "events",
        sa.Column("id", KEY, nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("kind", KEY, nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
    )
    op.create_index("ix_events_at_us", "events", ["at_us"])
    op.create_index("ix_events_node_at_us", "events", ["node", "at_us"])

    op.create_table(
        "node_telemetry",
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("node", KEY, nullable=False),
        sa.Column("running", sa.Integer(), nullable=True),
        sa.Column("waiting", sa.Integer(), nullable=True),
        sa.Column("waiting_tokens", sa.Integer(), nullable=True),
        sa.Column("kv_usage", sa.Double(), nullable=True),
        sa.Column("kv_capacity_tokens", sa.BigInteger(), nullable=True),
        sa.Column("block_size", sa.Integer(), nullable=True),
        sa.Column("process_start_s", sa.Double(), nullable=True),
        sa.Column("prompt_tokens_total", sa.Double(), nullable=True),
        sa.Column("cached_tokens_total", sa.Double(), nullable=True),
        sa.Column("preemptions_total", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("at_us", "node", name="pk_node_telemetry"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_node_telemetry_node_at_us", "node_telemetry", ["node", "at_us"])

    op.create_table(
        "nodes",
        sa.Column("id", KEY, nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("first_seen_us", sa.BigInteger(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_nodes"),
    )
    op.create_table(
        "outcomes",
        sa.Column("decision_id", KEY, nullable=False),
        sa.Column("decided_us", sa.BigInteger(), nullable=False),
        sa.Column("finished_us", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("ttft_s", sa.Double(), nullable=True),
        sa.Column("tbt_s", sa.Double(), nullable=True),
        sa.Column("tpot_s", sa.Double(), nullable=True),
        sa.Column("e2e_s", sa.Double(), nullable=True),
        sa.Column("prompt_tokens", sa.Integer(), nullable=True),
        sa.Column("cached_tokens", sa.Integer(), nullable=True),
        sa.Column("output_tokens", sa.Integer(), nullable=True),
        sa.Column("slo_missed", sa.Text(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("decided_us", "decision_id", name="pk_outcomes"),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_outcomes_failed_decided_us", "outcomes", ["kind", "decided_us"], **where("kind <> 'ok'")
    )
    op.create_index(
        "ix_outcomes_slo_missed_decided_us", "outcomes", ["decided_us"], **where("slo_missed <> ''")
    )

    op.create_table(
        "revisions",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("base", sa.Integer(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("changes", sa.Text(), nullable=False),
        sa.Column("values", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_revisions"),
    )


def downgrade() -> None:
    for table in ("revisions", "nodes", "events", "node_telemetry", "outcomes", "decisions"):
        op.drop_table(table)

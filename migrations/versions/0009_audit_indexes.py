"""Indexes that answer by themselves what the audit asks of a node, a policy, or both.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

WIDENED = (
    ("decisions", "ix_decisions_decode_node_at_us", ["decode_node", "at_us"],
     ["policy", "prefill_node"], "decode_node <> prefill_node"),
    ("outcomes", "ix_outcomes_failed_decided_us", ["kind", "decided_us"],
     ["decision_id", "prefill_node"], "kind <> 'ok'"),
    ("outcomes", "ix_outcomes_slo_missed_decided_us", ["decided_us"],
     ["decision_id", "prefill_node", "slo_missed"], "slo_missed <> ''"),
)  # fmt: skip
"""Table, index, columns, columns it gets, condition."""


def upgrade() -> None:
    for table, name, columns, more, condition in WIDENED:
        op.drop_index(name, table)
        _create(table, name, [*columns, *more], condition)
    columns = ["policy", "at_us", "prefill_node"]
    _create("decisions", "ix_decisions_policy_at_us", columns, "policy <> 'min_ttft'")


def downgrade() -> None:
    op.drop_index("ix_decisions_policy_at_us", "decisions")
    for table, name, columns, _, condition in WIDENED:
        op.drop_index(name, table)
        _create(table, name, columns, condition)


def _create(table: str, name: str, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)

"""Daily partitions on Postgres; an index on tenants; outcomes know their node.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

DAY_US = 86_400_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMES = {"decisions": "at_us", "outcomes": "decided_us"}
WITH_NODE = (
    "SELECT o.*, d.prefill_node FROM old_outcomes o LEFT JOIN decisions d ON d.id = o.decision_id"
)
KEYS = {"decisions": ("id",), "outcomes": ("decided_us", "decision_id")}


def where(condition: str) -> dict[str, Any]:
    """Partial on both databases."""
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


def upgrade() -> None:
    op.create_index(
        "ix_decisions_tenant_at_us", "decisions", ["tenant", "at_us"], **where("tenant <> ''")
    )
    if op.get_bind().dialect.name == "postgresql":
        # Outcomes first: decisions are found by their id alone as long as that is their key.
        rebuild("outcomes", partitioned=True, more=", prefill_node text", source=WITH_NODE)
        # The key begins with the time then: of the two indexes, the other one is needed.
        op.drop_index("ix_decisions_at_us", "decisions")
        rebuild("decisions", partitioned=True)
        op.create_index("ix_decisions_id", "decisions", ["id"])
        return
    op.add_column("outcomes", sa.Column("prefill_node", sa.Text(), nullable=True))
    op.execute(
        "UPDATE outcomes SET prefill_node = ("
        "SELECT d.prefill_node FROM decisions d WHERE d.id = outcomes.decision_id)"
    )


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.drop_index("ix_decisions_id", "decisions")
        for table in TIMES:
            rebuild(table, partitioned=False)
        op.create_index("ix_decisions_at_us", "decisions", ["at_us"])
    op.drop_index("ix_decisions_tenant_at_us", "decisions")
    # In place: SQLite 3.35 and Postgres both can, and a copy would lose the clustered key.
    op.drop_column("outcomes", "prefill_node")


def rebuild(table: str, *, partitioned: bool, more: str = "", source: str = "") -> None:
    """Build the table anew beside the old one, with the same rows and indexes.

    `more` columns, which `source` selects behind the old ones.
    """
    bind, time = op.get_bind(), TIMES[table]
    indexes = bind.execute(
        sa.text(
            "SELECT indexdef FROM pg_indexes WHERE tablename = :table"
            " AND schemaname = current_schema() AND indexname <> :key"
        ),
        {"table": table, "key": f"pk_{table}"},
    ).scalars()
    definitions = [definition.replace(" ON ONLY ", " ON ") for definition in indexes]
    days = bind.execute(sa.text(f"SELECT DISTINCT {time} / {DAY_US} FROM {table}")).scalars().all()
    key = ", ".join(dict.fromkeys((time, *KEYS[table])) if partitioned else KEYS[table])
    op.rename_table(table, f"old_{table}")
    by = f" PARTITION BY RANGE ({time})" if partitioned else ""
    op.execute(f"CREATE TABLE {table} (LIKE old_{table} INCLUDING DEFAULTS{more}){by}")
    for day in days if partitioned else ():
        name = f"{table}_{EPOCH + timedelta(days=day):%Y%m%d}"
        bounds = f"FROM ({day * DAY_US}) TO ({(day + 1) * DAY_US})"
        op.execute(f"CREATE TABLE {name} PARTITION OF {table} FOR VALUES {bounds}")
    op.execute(f"INSERT INTO {table} {source or f'SELECT * FROM old_{table}'}")
    op.execute(f"DROP TABLE old_{table}")
    op.execute(f"ALTER TABLE {table} ADD CONSTRAINT pk_{table} PRIMARY KEY ({key})")
    for definition in definitions:
        op.execute(definition)

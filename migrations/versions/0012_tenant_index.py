"""The tenants' index answers by itself what the audit asks of a tenant, a policy and a node.

Revision ID: 0012
Revises: 0011
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

NAME, COLUMNS = "ix_decisions_tenant_at_us", ["tenant", "at_us"]
ADDED = ["policy", "prefill_node", "decode_node"]


def upgrade() -> None:
    _replace([*COLUMNS, *ADDED])


def downgrade() -> None:
    _replace(COLUMNS)


def _replace(columns: list[str]) -> None:
    where = sa.text("tenant <> ''")
    op.drop_index(NAME, "decisions")
    op.create_index(NAME, "decisions", columns, sqlite_where=where, postgresql_where=where)

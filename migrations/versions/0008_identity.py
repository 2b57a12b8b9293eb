"""Users, tokens, keys of the data plane, and the administrative audit.

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
REFUSAL = "the administrative audit can only be added to"


def upgrade() -> None:
    op.create_table(
        "users",
        sa.Column("name", KEY, nullable=False),
        _text("role"),
        _text("password_hash"),
        sa.Column("disabled", sa.Boolean(), nullable=False),
        _whole("created_us"),
        _text("created_by"),
        _whole("changed_us"),
        sa.PrimaryKeyConstraint("name", name="pk_users"),
    )
    op.create_table(
        "tokens",
        sa.Column("id", KEY, nullable=False),
        *[_text(n) for n in ("kind", "name", "role", "owner", "digest")],
        _whole("created_us"),
        _text("created_by"),
        _whole("expires_us", nullable=True),
        _whole("revoked_us", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
    )
    op.create_index("ix_tokens_owner", "tokens", ["owner"])
    op.create_table(
        "api_keys",
        sa.Column("id", KEY, nullable=False),
        *[_text(n) for n in ("name", "tenant", "digest", "cache_salt")],
        sa.Column("requests_per_s", sa.Double(), nullable=False),
        _whole("concurrent_max"),
        _whole("tokens_per_min"),
        _whole("created_us"),
        _text("created_by"),
        _whole("expires_us", nullable=True),
        _whole("revoked_us", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
    )
    op.create_index("ix_api_keys_tenant", "api_keys", ["tenant"])
    op.create_table(
        "admin_audit",
        sa.Column("number", sa.BigInteger(), nullable=False, autoincrement=False),
        _whole("at_us"),
        *[_text(n) for n in ("actor", "kind", "role", "peer", "action", "target", "reason")],
        *[_text(n) for n in ("before", "after", "previous", "digest")],
        sa.PrimaryKeyConstraint("number", name="pk_admin_audit"),
    )
    for statement in _guards(op.get_bind().dialect.name):
        op.execute(statement)


def downgrade() -> None:
    for table in ("admin_audit", "api_keys", "tokens", "users"):
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION admin_audit_refuse()")


def _guards(dialect: str) -> list[str]:
    """Triggers that refuse to change or delete entries."""
    if dialect == "sqlite":
        return [
            f"CREATE TRIGGER admin_audit_no_{act.lower()} BEFORE {act} ON admin_audit "
            f"BEGIN SELECT RAISE(ABORT, '{REFUSAL}'); END"
            for act in ("UPDATE", "DELETE")
        ]
    return [
        "CREATE FUNCTION admin_audit_refuse() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{REFUSAL}'; END $$",
        "CREATE TRIGGER admin_audit_rows BEFORE UPDATE OR DELETE ON admin_audit "
        "FOR EACH ROW EXECUTE FUNCTION admin_audit_refuse()",
        "CREATE TRIGGER admin_audit_all BEFORE TRUNCATE ON admin_audit "
        "FOR EACH STATEMENT EXECUTE FUNCTION admin_audit_refuse()",
    ]


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False)


def _whole(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)

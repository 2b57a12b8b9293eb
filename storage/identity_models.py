"""The schema of identities and of the administrative audit.

Secrets are digests (tokens, keys) or Argon2id hashes (passwords). The audit takes inserts alone:
triggers refuse everything else, and each row carries the digest of the one before it.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Double, Index, PrimaryKeyConstraint, Table, Text
from sqlalchemy.schema import SchemaItem

from storage.models import metadata
from storage.types import key_text


def _text(name: str) -> Column[str]:
    return Column(name, Text(), nullable=False)


def _whole(name: str, *, nullable: bool = False) -> Column[int]:
    return Column(name, BigInteger(), nullable=nullable)


def _issued() -> tuple[SchemaItem, ...]:
    """What every credential has behind its own columns: who made it, its times, its key."""
    times = (_whole("expires_us", nullable=True), _whole("revoked_us", nullable=True))
    made = (_whole("created_us"), _text("created_by"))
    return (*made, *times, PrimaryKeyConstraint("id"))


users = Table(
    "users",
    metadata,
    Column("name", key_text(), nullable=False),
    _text("role"),
    _text("password_hash"),
    Column("disabled", Boolean(), nullable=False),
    _whole("created_us"),
    _text("created_by"),
    _whole("changed_us"),
    PrimaryKeyConstraint("name"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", key_text(), nullable=False),
    _text("kind"),
    _text("name"),
    _text("role"),
    _text("owner"),
    _text("digest"),
    *_issued(),
)
Index("ix_tokens_owner", tokens.c.owner)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", key_text(), nullable=False),
    _text("name"),
    _text("tenant"),
    _text("digest"),
    _text("cache_salt"),
    Column("requests_per_s", Double(), nullable=False),
    _whole("concurrent_max"),
    _whole("tokens_per_min"),
    *_issued(),
)
Index("ix_api_keys_tenant", api_keys.c.tenant)

admin_audit = Table(
    "admin_audit",
    metadata,
    Column("number", BigInteger(), nullable=False, autoincrement=False),
    _whole("at_us"),
    _text("actor"),
    _text("kind"),
    _text("role"),
    _text("peer"),
    _text("action"),
    _text("target"),
    _text("reason"),
    _text("before"),
    _text("after"),
    _text("previous"),
    _text("digest"),
    PrimaryKeyConstraint("number"),
)

TABLES = (users, tokens, api_keys, admin_audit)

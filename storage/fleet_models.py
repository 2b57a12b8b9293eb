"""The schema of what several processes share: slots of work, who is alive, what changed."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, PrimaryKeyConstraint, Table, Text

from storage.models import metadata
from storage.types import key_text


def _whole(name: str, *, nullable: bool = False) -> Column[int]:
    return Column(name, BigInteger(), nullable=nullable)


def _text(name: str) -> Column[str]:
    return Column(name, Text(), nullable=False)


slots = Table(
    "slots",
    metadata,
    Column("job", key_text(), nullable=False),
    _whole("slot"),
    _text("replica"),
    _whole("at_us"),
    PrimaryKeyConstraint("job", "slot"),
)

replicas = Table(
    "replicas",
    metadata,
    Column("id", key_text(), nullable=False),
    _text("host"),
    Column("pid", Integer(), nullable=False),
    _text("version"),
    _text("address"),
    _whole("started_us"),
    _whole("seen_us"),
    _whole("stopped_us", nullable=True),
    PrimaryKeyConstraint("id"),
)

topics = Table(
    "topics",
    metadata,
    Column("name", key_text(), nullable=False),
    _whole("number"),
    PrimaryKeyConstraint("name"),
)
"""How often something was announced as changed; whoever holds a copy compares."""

TABLES = (slots, replicas, topics)

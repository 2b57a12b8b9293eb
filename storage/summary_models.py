"""The schema of what is computed from the records: roll-ups, facets, and marks of what changed.

Whoever stores a decision or an outcome marks its ten seconds in the same transaction; the roll-up
job computes marked buckets anew from the rows and takes away the marks it saw. So whatever is
stored twice, late, or by several processes, a roll-up without a mark is exact.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, PrimaryKeyConstraint, Table
from sqlalchemy import Text as TextType

from storage.models import metadata
from storage.types import key_text

LEVELS_S = (10, 300, 3_600)
"""Lengths of the buckets, finest first; each divides the next."""
FLEET = ""
"""Node of the roll-ups over all nodes, rejections included."""
SUMS = (
    "decisions",
    "rejected",
    "finished",
    "failed",
    "aborted",
    "slo_missed",
    "prompt_tokens",
    "match_tokens",
    "reachable_tokens",
    "reported_prompt_tokens",
    "cached_tokens",
    "output_tokens",
)
"""Columns that add up; see `core.ports.TimeBucket`."""
SHARES = "shares"
"""Name of the horizon of `share_rollups`: what is older was never made, or is gone."""
FACETS = ("policy", "revision", "model")
"""Columns of decisions whose values are listed by bucket."""


def _whole(name: str) -> Column[int]:
    return Column(name, BigInteger(), nullable=False)


rollups = Table(
    "rollups",
    metadata,
    Column("level_s", Integer(), nullable=False),
    Column("node", key_text(), nullable=False),
    _whole("start_us"),
    *(_whole(name) for name in SUMS),
    Column("ttft", LargeBinary(), nullable=False),
    Column("tbt", LargeBinary(), nullable=False),
    Column("per_node", TextType(), nullable=False),
    PrimaryKeyConstraint("level_s", "node", "start_us"),
    sqlite_with_rowid=False,
)
Index(None, rollups.c.level_s, rollups.c.start_us)

share_rollups = Table(
    "share_rollups",
    metadata,
    Column("level_s", Integer(), nullable=False),
    _whole("start_us"),
    _whole("oldest_us"),
    Column("data", LargeBinary(), nullable=False),
    PrimaryKeyConstraint("level_s", "start_us"),
)
"""Requests by tenant, model and nodes, a bucket a row: a table packed by `share_groups`."""

facets = Table(
    "facets",
    metadata,
    Column("kind", TextType(), nullable=False),
    Column("value", key_text(), nullable=False),
    _whole("start_us"),
    PrimaryKeyConstraint("kind", "value", "start_us"),
    sqlite_with_rowid=False,
)
Index(None, facets.c.start_us)

summary_marks = Table(
    "summary_marks",
    metadata,
    Column("level_s", Integer(), nullable=False),
    _whole("start_us"),
    _whole("token"),
    PrimaryKeyConstraint("level_s", "start_us", "token"),
    sqlite_with_rowid=False,
)

horizons = Table(
    "horizons",
    metadata,
    Column("name", key_text(), nullable=False),
    _whole("before_us"),
    PrimaryKeyConstraint("name"),
)
"""Before which time the rows of a table are gone on purpose, so nothing is computed from them."""

TABLES = (rollups, share_rollups, facets, summary_marks, horizons)

"""The schema of the records: nodes, decisions, outcomes, telemetry, events, revisions.

Rows are only ever inserted (nodes and standings apart), so that a batch can be stored twice
without harm, and by COPY. Times are microseconds since 1970, UTC; JSON is text, because nothing
is queried inside it. An outcome stands in its own table: it comes later than its decision, or
earlier when batches cross, and is joined by the decision's id.

On Postgres decisions and outcomes are partitioned by day, so the key of decisions begins with the
time there; one id has one time, so it is unique all the same.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Double,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    and_,
    text,
)
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from storage.types import key_text

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _required(name: str, kind: type[Text] | type[Integer] | type[BigInteger]) -> Column[object]:
    return Column(name, kind(), nullable=False)


def _seconds(name: str) -> Column[float]:
    return Column(name, Double(), nullable=True)


def _count(name: str) -> Column[int]:
    return Column(name, Integer(), nullable=True)


decisions = Table(
    "decisions",
    metadata,
    Column("id", key_text(), nullable=False),
    _required("at_us", BigInteger),
    _required("request_id", Text),
    _required("attempt", Integer),
    _required("model", Text),
    _required("adapter", Text),
    _required("tenant", Text),
    _required("priority", Integer),
    _required("session", Text),
    _required("policy", Text),
    _required("revision", Integer),
    _required("signal", Text),
    _count("status"),
    _required("code", Text),
    _required("message", Text),
    Column("retry_after_s", Double(), nullable=False),
    Column("prefill_node", Text(), nullable=True),
    Column("decode_node", Text(), nullable=True),
    _required("prompt_tokens", Integer),
    _required("output_tokens_expected", Integer),
    _required("match_tokens", Integer),
    _required("reachable_tokens", Integer),
    _required("prefix_tokens", Integer),
    Column("fetch_from", Text(), nullable=True),
    _required("fetch_tokens", Integer),
    _seconds("predicted_queue_s"),
    _seconds("predicted_transfer_s"),
    _seconds("predicted_prefill_s"),
    _seconds("predicted_ttft_s"),
    _seconds("predicted_tbt_s"),
    _seconds("ttft_slo_s"),
    _seconds("tbt_slo_s"),
    _required("tied", Integer),
    _required("notes", Text),
    # The long texts stand last: scans for the columns above stop before them.
    _required("excluded", Text),
    _required("decode_excluded", Text),
    _required("candidates", Text),
    _required("decode_candidates", Text),
    # Added later, so behind them: read with a whole decision only.
    _seconds("decide_s"),
    _seconds("waited_s"),
    PrimaryKeyConstraint("id"),
    postgresql_partition_by="RANGE (at_us)",
)

# Both databases sort equal times by id as they read, so the indexes need not repeat the long id.
# Columns behind the time are checked before a row is looked up, also those of a partial index's
# own condition, which SQLite checks once more.
# No index on columns that mostly hold one value (revision, model): a walk along the time finds a
# common value at once, and skips to a rare one by the `facets` of `summary_models`.
Index(None, decisions.c.at_us, info={"only": "sqlite"})
Index("ix_decisions_id", decisions.c.id, info={"only": "postgresql"})
Index(None, decisions.c.prefill_node, decisions.c.at_us)
Index(None, decisions.c.request_id)
_apart = text("decode_node <> prefill_node")
Index(
    "ix_decisions_decode_node_at_us",
    decisions.c.decode_node,
    decisions.c.at_us,
    decisions.c.policy,
    decisions.c.prefill_node,
    sqlite_where=_apart,
    postgresql_where=_apart,
)
PREVAILING = "min_ttft"
"""The policy of most decisions, that of a fresh configuration: the index holds the others."""
_deviating = text(f"policy <> '{PREVAILING}'")
Index(
    "ix_decisions_policy_at_us",
    decisions.c.policy,
    decisions.c.at_us,
    decisions.c.prefill_node,
    sqlite_where=_deviating,
    postgresql_where=_deviating,
)
_tenant = text("tenant <> ''")
Index(
    "ix_decisions_tenant_at_us",
    decisions.c.tenant,
    decisions.c.at_us,
    decisions.c.policy,
    decisions.c.prefill_node,
    decisions.c.decode_node,
    sqlite_where=_tenant,
    postgresql_where=_tenant,
)
_rejected = text("status IS NOT NULL")
Index(
    "ix_decisions_rejected_at_us",
    decisions.c.at_us,
    sqlite_where=_rejected,
    postgresql_where=_rejected,
)
_below = text("match_tokens < reachable_tokens AND status IS NULL")
Index(
    "ix_decisions_below_best_at_us",
    decisions.c.at_us,
    sqlite_where=_below,
    postgresql_where=_below,
)

outcomes = Table(
    "outcomes",
    metadata,
    Column("decision_id", key_text(), nullable=False),
    _required("decided_us", BigInteger),
    _required("finished_us", BigInteger),
    _required("kind", Text),
    _seconds("ttft_s"),
    _seconds("tbt_s"),
    _seconds("tpot_s"),
    _seconds("e2e_s"),
    _count("prompt_tokens"),
    _count("cached_tokens"),
    _count("output_tokens"),
    _required("slo_missed", Text),
    _count("status"),
    _required("error", Text),
    Column("failed_node", Text(), nullable=True),
    # The decision's node again, so that latencies by node need no join.
    Column("prefill_node", Text(), nullable=True),
    # The decision's time comes first: rows lie in time order, ranges need no further index, and
    # the key fits native partitions by time.
    PrimaryKeyConstraint("decided_us", "decision_id"),
    sqlite_with_rowid=False,
    postgresql_partition_by="RANGE (decided_us)",
)
_failed = text("kind <> 'ok'")
Index(
    "ix_outcomes_failed_decided_us",
    outcomes.c.kind,
    outcomes.c.decided_us,
    outcomes.c.decision_id,
    outcomes.c.prefill_node,
    sqlite_where=_failed,
    postgresql_where=_failed,
)
_missed = text("slo_missed <> ''")
Index(
    "ix_outcomes_slo_missed_decided_us",
    outcomes.c.decided_us,
    outcomes.c.decision_id,
    outcomes.c.prefill_node,
    outcomes.c.slo_missed,
    sqlite_where=_missed,
    postgresql_where=_missed,
)

nodes = Table(
    "nodes",
    metadata,
    Column("id", key_text(), nullable=False),
    _required("spec", Text),
    _required("state", Text),
    _required("first_seen_us", BigInteger),
    _required("updated_us", BigInteger),
    PrimaryKeyConstraint("id"),
)

standings = Table(
    "standings",
    metadata,
    Column("name", key_text(), nullable=False),
    _required("data", Text),
    _required("updated_us", BigInteger),
    PrimaryKeyConstraint("name"),
)
"""What operators last said of a node (its id) or of the whole fleet (a name with a slash)."""

prompts = Table(
    "prompts",
    metadata,
    Column("decision_id", key_text(), nullable=False),
    _required("at_us", BigInteger),
    _required("text", Text),
    PrimaryKeyConstraint("decision_id"),
)
"""Redacted prompt text, where keeping it is switched on (`records.keep_prompts`)."""
Index(None, prompts.c.at_us)

node_telemetry = Table(
    "node_telemetry",
    metadata,
    _required("at_us", BigInteger),
    Column("node", key_text(), nullable=False),
    _count("running"),
    _count("waiting"),
    _count("waiting_tokens"),
    Column("kv_usage", Double(), nullable=True),
    Column("kv_capacity_tokens", BigInteger(), nullable=True),
    _count("block_size"),
    _seconds("process_start_s"),
    Column("prompt_tokens_total", Double(), nullable=True),
    Column("cached_tokens_total", Double(), nullable=True),
    Column("preemptions_total", Double(), nullable=True),
    PrimaryKeyConstraint("at_us", "node"),
    sqlite_with_rowid=False,
)
Index(None, node_telemetry.c.node, node_telemetry.c.at_us)

events = Table(
    "events",
    metadata,
    Column("id", key_text(), nullable=False),
    _required("at_us", BigInteger),
    Column("kind", key_text(), nullable=False),
    _required("node", Text),
    _required("data", Text),
    PrimaryKeyConstraint("id"),
)
Index(None, events.c.at_us)
Index(None, events.c.node, events.c.at_us)

revisions = Table(
    "revisions",
    metadata,
    Column("number", Integer(), nullable=False, autoincrement=False),
    _required("base", Integer),
    _required("at_us", BigInteger),
    _required("author", Text),
    _required("reason", Text),
    _required("changes", Text),
    _required("values", Text),
    Column("kind", Text(), nullable=False, server_default=text("'change'")),
    Column("detail", Text(), nullable=False, server_default=text("'{}'")),
    PrimaryKeyConstraint("number"),
)

scheduled_changes = Table(
    "scheduled_changes",
    metadata,
    Column("id", key_text(), nullable=False),
    _required("created_us", BigInteger),
    _required("due_us", BigInteger),
    Column("until_us", BigInteger(), nullable=True),
    _required("action", Text),
    _required("author", Text),
    _required("reason", Text),
    _required("changes", Text),
    _required("expected", Text),
    _required("state", Text),
    _required("note", Text),
    _count("revision"),
    PrimaryKeyConstraint("id"),
)


def ends(
    o: ReadOnlyColumnCollection[str, Any], at_us: ColumnElement[int], key: ColumnElement[str]
) -> ColumnElement[bool]:
    """Whether it is the outcome of the decision of that time and id."""
    return and_(o.decided_us == at_us, o.decision_id == key)

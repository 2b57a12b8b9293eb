"""Records to rows and back; the one place that knows both shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import RowMapping

from core.domain import NodeSpec, Telemetry
from core.ports import (
    DecisionRecord,
    EventRecord,
    OutcomeRecord,
    RevisionRecord,
    ScheduledRecord,
    StoredDecision,
    StoredNode,
)
from storage.models import decisions, node_telemetry, outcomes
from storage.types import from_micros, to_micros

Row = dict[str, Any]

_DECISION = tuple(c.name for c in decisions.columns if c.name != "at_us")
_OUTCOME = tuple(c.name for c in outcomes.columns if not c.name.endswith("_us"))
_DECISION_FIELDS = tuple("at" if c.name == "at_us" else c.name for c in decisions.columns)
_OUTCOME_FIELDS = tuple(
    {"decided_us": "decided_at", "finished_us": "finished_at"}.get(c.name, c.name)
    for c in outcomes.columns
)
_READING = tuple(c.name for c in node_telemetry.columns if c.name not in ("at_us", "node"))
_SCHEDULED = ("id", "action", "author", "reason", "state", "note", "revision")
_WIDTH = len(_DECISION_FIELDS)
BOTH = (*decisions.columns, *(c.label(f"outcome_{c.name}") for c in outcomes.columns))
"""Columns to select for `to_stored`: a decision's, then those of its outcome."""


def decision_row(record: DecisionRecord) -> Row:
    """The `decisions` row of a record."""
    row = {name: getattr(record, name) for name in _DECISION}
    row["at_us"] = to_micros(record.at)
    return row


def outcome_row(record: OutcomeRecord) -> Row:
    """The `outcomes` row of a record."""
    row = {name: getattr(record, name) for name in _OUTCOME}
    row["decided_us"] = to_micros(record.decided_at)
    row["finished_us"] = to_micros(record.finished_at)
    return row


def telemetry_row(node: str, at: datetime, reading: Telemetry) -> Row:
    """The `node_telemetry` row of a reading."""
    row = {name: getattr(reading, name) for name in _READING}
    return {"node": node, "at_us": to_micros(at), **row}


def event_row(record: EventRecord) -> Row:
    """The `events` row of a record; TypeError where its data is not JSON."""
    return {
        "id": record.id,
        "at_us": to_micros(record.at),
        "kind": record.kind,
        "node": record.node,
        "data": _json(record.data),
    }


def node_row(spec: NodeSpec, state: str, at: datetime) -> Row:
    """The `nodes` row of a registered node."""
    at_us = to_micros(at)
    return {
        "id": spec.id,
        "spec": _json(spec),
        "state": state,
        "first_seen_us": at_us,
        "updated_us": at_us,
    }


def revision_row(record: RevisionRecord) -> Row:
    """The `revisions` row of a record."""
    return {
        "number": record.number,
        "base": record.base,
        "at_us": to_micros(record.at),
        "author": record.author,
        "reason": record.reason,
        "changes": _json(record.changes),
        "values": _json(record.values),
        "kind": record.kind,
        "detail": _json(record.detail),
    }


def scheduled_row(record: ScheduledRecord) -> Row:
    """The `scheduled_changes` row of a record."""
    row = {name: getattr(record, name) for name in _SCHEDULED}
    return {
        **row,
        "created_us": to_micros(record.created_at),
        "due_us": to_micros(record.due_at),
        "until_us": None if record.until_at is None else to_micros(record.until_at),
        "changes": _json(record.changes),
        "expected": _json(record.expected),
    }


def to_stored(row: Sequence[Any]) -> StoredDecision:
    """A decision and its outcome from a row of the columns `BOTH`."""
    mine = dict(zip(_DECISION_FIELDS, row[:_WIDTH], strict=True))
    mine["at"] = from_micros(mine["at"])
    theirs = dict(zip(_OUTCOME_FIELDS, row[_WIDTH:], strict=True))
    if theirs["decision_id"] is None:
        return StoredDecision(DecisionRecord(**mine))
    theirs["decided_at"] = from_micros(theirs["decided_at"])
    theirs["finished_at"] = from_micros(theirs["finished_at"])
    return StoredDecision(DecisionRecord(**mine), OutcomeRecord(**theirs))


def to_reading(row: RowMapping) -> Telemetry:
    """A reading from a `node_telemetry` row."""
    return Telemetry(**{name: row[name] for name in _READING})


def to_event(row: RowMapping) -> EventRecord:
    """A record from an `events` row."""
    return EventRecord(
        id=row["id"],
        at=from_micros(row["at_us"]),
        kind=row["kind"],
        node=row["node"],
        data=msgspec.json.decode(row["data"]),
    )


def to_node(row: RowMapping) -> StoredNode:
    """A registered node from a `nodes` row; fields this release does not know are dropped."""
    spec: Mapping[str, Any] = msgspec.json.decode(row["spec"])
    known = {f.name for f in dataclasses.fields(NodeSpec)}
    return StoredNode(
        spec=msgspec.convert({k: v for k, v in spec.items() if k in known}, NodeSpec),
        state=row["state"],
        first_seen_at=from_micros(row["first_seen_us"]),
        updated_at=from_micros(row["updated_us"]),
    )


def to_revision(row: RowMapping) -> RevisionRecord:
    """A record from a `revisions` row."""
    return RevisionRecord(
        number=row["number"],
        base=row["base"],
        at=from_micros(row["at_us"]),
        author=row["author"],
        reason=row["reason"],
        changes=msgspec.json.decode(row["changes"]),
        values=msgspec.json.decode(row["values"]),
        kind=row["kind"],
        detail=msgspec.json.decode(row["detail"]),
    )


def to_scheduled(row: RowMapping) -> ScheduledRecord:
    """A record from a `scheduled_changes` row."""
    return ScheduledRecord(
        **{name: row[name] for name in _SCHEDULED},
        created_at=from_micros(row["created_us"]),
        due_at=from_micros(row["due_us"]),
        until_at=None if row["until_us"] is None else from_micros(row["until_us"]),
        changes=msgspec.json.decode(row["changes"]),
        expected=msgspec.json.decode(row["expected"]),
    )


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()

"""Records to rows and back; the one place that knows both shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
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
    StandingRecord,
    StoredDecision,
    StoredNode,
)
from storage.models import decisions, node_telemetry, outcomes
from storage.types import from_micros, to_micros

Row = dict[str, Any]
Values = tuple[Any, ...]
"""A row in the order of its table's `COLUMNS`."""

_DECISION_FIELDS = tuple("at" if c.name == "at_us" else c.name for c in decisions.columns)
_OUTCOME_FIELDS = tuple(
    {"decided_us": "decided_at", "finished_us": "finished_at"}.get(c.name, c.name)
    for c in outcomes.columns
)
_READING = tuple(str(c.name) for c in node_telemetry.columns if c.name not in ("at_us", "node"))
_RENAMED = {"at": "at_us", "decided_at": "decided_us", "finished_at": "finished_us"}
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "nodes": ("id", "spec", "state", "first_seen_us", "updated_us"),
    "decisions": tuple(_RENAMED.get(f, f) for f in DecisionRecord.__struct_fields__),
    "outcomes": tuple(_RENAMED.get(f, f) for f in OutcomeRecord.__struct_fields__),
    "node_telemetry": ("at_us", "node", *_READING),
    "events": ("id", "at_us", "kind", "node", "data"),
    "standings": ("name", "data", "updated_us"),
    "prompts": ("decision_id", "at_us", "text"),
}
"""Tables the sink fills, in the order they are filled, and the order of their rows' values."""
TIME_AT = {"decisions": 1, "outcomes": 1}
"""Where the time of the decision stands in these rows."""
_SCHEDULED = ("id", "action", "author", "reason", "state", "note", "revision")
_LONG = ("excluded", "decode_excluded", "candidates", "decode_candidates", "decide_s", "waited_s")
assert _DECISION_FIELDS[-len(_LONG) :] == _LONG
_OUTCOME = tuple(c.label(f"outcome_{c.name}") for c in outcomes.columns)
BOTH = (*_OUTCOME, *decisions.columns)
"""Columns to select for `to_stored`: an outcome's, then those of its decision."""
BRIEF = BOTH[: -len(_LONG)]
"""The same without the decision's long texts and what lies behind them, which are empty then."""
_WIDTH = len(_OUTCOME)


def decision_values(record: DecisionRecord) -> Values:
    """The `decisions` row of a record; ValueError for a time without zone."""
    values = msgspec.structs.astuple(record)
    return (values[0], to_micros(record.at), *values[2:])


def outcome_values(record: OutcomeRecord) -> Values:
    """The `outcomes` row of a record; ValueError for a time without zone."""
    values = msgspec.structs.astuple(record)
    return (values[0], to_micros(record.decided_at), to_micros(record.finished_at), *values[3:])


def telemetry_values(node: str, at: datetime, reading: Telemetry) -> Values:
    """The `node_telemetry` row of a reading."""
    return (to_micros(at), node, *(getattr(reading, name) for name in _READING))


def event_values(record: EventRecord) -> Values:
    """The `events` row of a record; TypeError where its data is not JSON."""
    return tuple(event_row(record).values())


def node_values(spec: NodeSpec, state: str, at: datetime) -> Values:
    """The `nodes` row of a registered node, seen first and last at `at`."""
    at_us = to_micros(at)
    return (spec.id, _json(spec), state, at_us, at_us)


def standing_values(name: str, data: Mapping[str, Any], at: datetime) -> Values:
    """The `standings` row of what was last said at `at`; TypeError where it is not JSON."""
    return (name, _json(data), to_micros(at))


def prompt_values(decision_id: str, at: datetime, render: Callable[[], str]) -> Values:
    """The `prompts` row of a decision; `render` makes the text as it may be kept."""
    return (decision_id, to_micros(at), render())


def mended(values: Values) -> Values:
    """The row with what no database text can hold (NUL, half characters) replaced."""
    return tuple(
        value.replace("\0", "\ufffd").encode(errors="replace").decode()
        if isinstance(value, str)
        else value
        for value in values
    )


def event_row(record: EventRecord) -> Row:
    """The `events` row of a record; TypeError where its data is not JSON."""
    return {
        "id": record.id,
        "at_us": to_micros(record.at),
        "kind": record.kind,
        "node": record.node,
        "data": _json(record.data),
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
    """A decision and its outcome from a row of the columns `BOTH` or `BRIEF`."""
    mine = dict(zip(_DECISION_FIELDS, row[_WIDTH:], strict=False))
    mine["at"] = from_micros(mine["at"])
    if row[0] is None:
        return StoredDecision(DecisionRecord(**mine))
    theirs = dict(zip(_OUTCOME_FIELDS, row[:_WIDTH], strict=True))
    theirs["decided_at"] = mine["at"]  # outcomes are joined by the decision's time
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


def to_standing(row: RowMapping) -> StandingRecord:
    """A record from a `standings` row."""
    at = from_micros(row["updated_us"])
    return StandingRecord(name=row["name"], data=msgspec.json.decode(row["data"]), at=at)


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

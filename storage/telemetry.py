"""Questions about readings, events and nodes."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, select

from core.errors import BadRequest
from core.ports import EventRecord, StandingRecord, StoredNode, TelemetryPoint
from storage.models import events, node_telemetry, nodes, standings
from storage.rows import to_event, to_node, to_reading, to_standing
from storage.types import from_micros, to_micros

_HIGH = "\U0010ffff"


def telemetry(
    connection: Connection, start: datetime, end: datetime, node: str | None, limit: int
) -> list[TelemetryPoint]:
    """The newest `limit` readings in [start, end), in time order."""
    _check_limit(limit, 1_000_000)
    t = node_telemetry.c
    statement = select(node_telemetry).where(t.at_us >= to_micros(start), t.at_us < to_micros(end))
    if node is not None:
        statement = statement.where(t.node == node)
    newest = statement.order_by(t.at_us.desc(), t.node.desc()).limit(limit)
    rows = connection.execute(newest).mappings().all()
    return [
        TelemetryPoint(row["node"], from_micros(row["at_us"]), to_reading(row))
        for row in reversed(rows)
    ]


def recent_events(
    connection: Connection,
    start: datetime | None,
    end: datetime | None,
    kind: str | None,
    node: str | None,
    limit: int,
) -> list[EventRecord]:
    """Events newest first; `kind` may end in ``*``."""
    _check_limit(limit, 10_000)
    e = events.c
    statement = select(events)
    if start is not None:
        statement = statement.where(e.at_us >= to_micros(start))
    if end is not None:
        statement = statement.where(e.at_us < to_micros(end))
    if kind is not None and kind.endswith("*"):
        prefix = kind[:-1]
        statement = statement.where(e.kind >= prefix, e.kind < prefix + _HIGH)
    elif kind is not None:
        statement = statement.where(e.kind == kind)
    if node is not None:
        statement = statement.where(e.node == node)
    newest = statement.order_by(e.at_us.desc(), e.id.desc()).limit(limit)
    return [to_event(row) for row in connection.execute(newest).mappings()]


def registered_nodes(connection: Connection) -> list[StoredNode]:
    """Every node ever registered, by id."""
    rows = connection.execute(select(nodes).order_by(nodes.c.id)).mappings()
    return [to_node(row) for row in rows]


def standings_by_name(connection: Connection) -> list[StandingRecord]:
    """What operators last said, by name."""
    rows = connection.execute(select(standings).order_by(standings.c.name)).mappings()
    return [to_standing(row) for row in rows]


def _check_limit(limit: int, largest: int) -> None:
    if not 1 <= limit <= largest:
        raise BadRequest(f"limit: {limit} is outside 1..{largest}", field="limit")

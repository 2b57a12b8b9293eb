"""Where records go: a `RecordSink` takes them and never makes the caller wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from core.domain import NodeSpec, Telemetry
from core.ports.records import DecisionRecord, OutcomeRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkCounters:
    """What a sink did since it started; `queued` is now."""

    queued: int
    written: int
    """Rows stored, duplicates apart."""
    dropped: int
    """Rows given up because the queue was full or a row could not be stored at all."""
    failures: int
    """Failed attempts to store a batch."""
    last_error: str = ""
    available: bool = True
    """Whether the last attempt succeeded."""
    lag_s: float = 0.0
    """Age of the oldest row in the queue."""
    last_batch_rows: int = 0
    last_batch_s: float = 0.0
    """How long the last stored batch took."""
    spooled: int = 0
    """Rows in the local spool, waiting for the database."""
    spool_bytes: int = 0
    spool_bytes_max: int = 0
    """Where the spool begins to drop its oldest rows; 0 where there is none."""
    spool_damaged: int = 0
    """Stretches of spool files that could not be read."""
    spool_failures: int = 0
    """Failed attempts to write the spool."""


class RecordSink(Protocol):
    """Takes records. No method blocks or raises; what cannot be taken is dropped and counted."""

    def put_decision(self, record: DecisionRecord) -> None:
        """Keep a decision or rejection."""
        ...

    def put_outcome(self, record: OutcomeRecord) -> None:
        """Keep an outcome; it may come before its decision is stored."""
        ...

    def put_telemetry(self, node: str, at: datetime, reading: Telemetry) -> None:
        """Keep one reading of a node's gauges."""
        ...

    def put_event(self, kind: str, node: str, data: Mapping[str, Any], at: datetime) -> None:
        """Keep a transition; `data` must be JSON-serialisable."""
        ...

    def put_node(self, spec: NodeSpec, state: str, at: datetime) -> None:
        """Keep a node as registered, with its life-cycle state (see `NODE_STATES`)."""
        ...

    def put_standing(self, name: str, data: Mapping[str, Any], at: datetime) -> None:
        """Keep what operators last said of `name`; `data` must be JSON-serialisable."""
        ...

    def put_prompt(self, decision_id: str, at: datetime, render: Callable[[], str]) -> None:
        """Keep a decision's prompt; `render`, called from another thread, gives its text."""
        ...

    def counters(self) -> SinkCounters:
        """Figures for metrics and the console."""
        ...


NODE_STATES = ("active", "draining", "removed")

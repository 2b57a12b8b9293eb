"""Small records for the storage tests, and ways to keep them and wait for what must come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import text

from core.ports import AuditDraft, DecisionRecord, OutcomeRecord
from storage.database import writer_engine
from storage.store import Storage, Store

T0 = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def decision(number: int, **changes: Any) -> DecisionRecord:
    """Decision `number`, made `number` seconds after T0."""
    fields: dict[str, Any] = {
        "id": f"0197{number:06d}",
        "at": T0 + timedelta(seconds=number),
        "request_id": f"r-{number}",
        "model": "m",
        "policy": "min_ttft",
        "revision": 1,
        "prompt_tokens": 1000,
        "signal": "exact",
        "prefill_node": "p0",
        "decode_node": "p0",
        "match_tokens": 600,
        "reachable_tokens": 600,
    }
    return DecisionRecord(**{**fields, **changes})


def rejected(number: int, **changes: Any) -> DecisionRecord:
    """Rejection `number`."""
    nowhere = {"prefill_node": None, "decode_node": None, "match_tokens": 0, "signal": ""}
    return decision(number, **{**nowhere, "status": 429, "code": "predicted_ttft_slo", **changes})


def outcome(number: int, **changes: Any) -> OutcomeRecord:
    """Outcome of decision `number`, two seconds later."""
    at = T0 + timedelta(seconds=number)
    fields: dict[str, Any] = {
        "decision_id": f"0197{number:06d}",
        "decided_at": at,
        "finished_at": at + timedelta(seconds=2),
        "kind": "ok",
        "prefill_node": "p0",
    }
    return OutcomeRecord(**{**fields, **changes})


def draft(action: str = "user.added", **more: Any) -> AuditDraft:
    """An entry of the administrative audit, made at T0."""
    fields = {"at": T0, "actor": "root", "kind": "local", "role": "admin", "peer": ""}
    return AuditDraft(action=action, **{**fields, **more})


def put(storage: Storage, *records: DecisionRecord | OutcomeRecord) -> None:
    """Hand the records to the sink."""
    for record in records:
        if isinstance(record, DecisionRecord):
            storage.sink.put_decision(record)
        else:
            storage.sink.put_outcome(record)


def keep(storage: Storage, *records: DecisionRecord | OutcomeRecord) -> Store:
    """Store the records and wait until they are stored, every one."""
    put(storage, *records)
    assert storage.sink.flush(30.0), storage.sink.counters()
    assert storage.sink.counters().dropped == 0
    return storage.store


def rows(url: str, query: str) -> list[tuple[object, ...]]:
    """What a query finds, on a connection of its own."""
    engine = writer_engine(url)
    try:
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(query))]
    finally:
        engine.dispose()


def execute(url: str, *statements: str) -> None:
    """Run statements in one transaction of their own."""
    engine = writer_engine(url)
    try:
        with engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))
    finally:
        engine.dispose()


def wait_for(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Poll until the condition holds; AssertionError when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition did not come true in time"
        threading.Event().wait(0.005)

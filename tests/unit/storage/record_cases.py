"""Small records for the storage tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from core.ports import DecisionRecord, OutcomeRecord

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


def outcome(number: int, **changes: Any) -> OutcomeRecord:
    """Outcome of decision `number`, two seconds later."""
    at = T0 + timedelta(seconds=number)
    fields: dict[str, Any] = {
        "decision_id": f"0197{number:06d}",
        "decided_at": at,
        "finished_at": at + timedelta(seconds=2),
        "kind": "ok",
        "ttft_s": 0.5,
        "tbt_s": 0.02,
        "prompt_tokens": 1000,
        "cached_tokens": 592,
        "output_tokens": 50,
    }
    return OutcomeRecord(**{**fields, **changes})

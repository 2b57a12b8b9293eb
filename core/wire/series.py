"""Measurements over time."""

from __future__ import annotations

from datetime import datetime

from core.wire.base import Answer
from core.wire.fleet import Quantiles


class SeriesPoint(Answer):
    """One step of time; None where there was nothing to measure."""

    at: datetime
    requests: int = 0
    """Decided, including rejected."""
    rejected: int = 0
    finished: int = 0
    errors: int = 0
    """Engine errors and time-outs."""
    aborted: int = 0
    good: int = 0
    """Finished within both limits."""
    ttft_s: Quantiles | None = None
    tbt_s: Quantiles | None = None
    hit_achieved: float | None = None
    hit_reachable: float | None = None
    hit_reported: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    inflight: int | None = None
    queued_tokens: float | None = None
    per_node: dict[str, int] = {}
    """Decisions per prefill node."""
    load: dict[str, float] = {}
    """load(n) per node at the end of the step (live window only)."""


class Series(Answer):
    """GET /series: `live` = last five minutes from memory, `minutes` = stored, per minute."""

    window: str
    step_s: float
    points: list[SeriesPoint]
    ttft_slo_s: float = 0.0
    tbt_slo_s: float = 0.0

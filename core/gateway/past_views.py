"""From stored requests and readings to distributions: margins, calibration, gauges. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from core import wire
from core.domain import Telemetry
from core.ports import RequestShares, TelemetryPoint, Timing, Timings

Floats = npt.NDArray[np.float64]
MARGIN_EDGES = np.geomspace(0.001, 100.0, 51)
"""Observed / limit; ten bins a decade, and 1 is an edge."""
BINS_A_DECADE = 10
POINTS_MAX = 300
BIN_COUNT_MIN = 5
"""Fewer requests say nothing about a spread."""


def shares_view(found: RequestShares, since: datetime, until: datetime) -> wire.Shares:
    """GET /shares."""
    return wire.Shares(
        since=since,
        until=until,
        decisions=found.decisions,
        covered_from=found.covered_from,
        complete=found.complete,
        groups=[
            wire.ShareView(**{name: getattr(g, name) for name in wire.ShareView.model_fields})
            for g in found.groups
        ],
    )


def timings_view(found: Timings, since: datetime, until: datetime) -> wire.TimingsView:
    """GET /timings."""
    rows = found.requests
    return wire.TimingsView(
        since=since,
        until=until,
        requests=len(rows),
        covered_from=found.covered_from,
        complete=found.complete,
        margins=_margins(rows),
        ttft=calibration(*_columns(rows, lambda t: (t.predicted_ttft_s, t.ttft_s))),
        tbt=calibration(*_columns(rows, lambda t: (t.predicted_tbt_s, t.tbt_s))),
    )


def _margins(rows: Sequence[Timing]) -> list[wire.MarginBin]:
    ttft = _counts(*_columns(rows, lambda t: (t.ttft_slo_s, t.ttft_s)))
    tbt = _counts(*_columns(rows, lambda t: (t.tbt_slo_s, t.tbt_s)))
    return [
        wire.MarginBin(low=low, high=high, ttft=int(a), tbt=int(b))
        for (low, high), a, b in zip(pairwise(MARGIN_EDGES.tolist()), ttft, tbt, strict=True)
    ]


def _counts(limits: Floats, observed: Floats) -> npt.NDArray[np.int64]:
    # A request exactly at its limit has kept it, so it belongs below the edge at 1.
    ratio = np.clip(observed / limits * (1 - 1e-9), MARGIN_EDGES[0], MARGIN_EDGES[-1])
    return np.histogram(ratio, MARGIN_EDGES)[0]


def calibration(predicted: Floats, observed: Floats) -> wire.Calibration:
    """How observed times spread around predictions; both in seconds, positive."""
    if not len(predicted):
        return wire.Calibration(count=0)
    ratio = observed / predicted
    every = -(-len(predicted) // POINTS_MAX)
    pairs = zip(predicted[::every].tolist(), observed[::every].tolist(), strict=True)
    return wire.Calibration(
        count=len(predicted),
        bias=float(np.median(ratio)),
        within_factor_2=float(np.mean((ratio >= 0.5) & (ratio <= 2.0))),
        bins=_bins(predicted, ratio),
        points=[(float(f"{p:.4g}"), float(f"{o:.4g}")) for p, o in pairs],
    )


def _bins(predicted: Floats, ratio: Floats) -> list[wire.CalibrationBin]:
    number = np.floor(np.log10(predicted) * BINS_A_DECADE).astype(np.int64)
    bins = []
    for n in np.unique(number).tolist():
        inside = ratio[number == n]
        if len(inside) < BIN_COUNT_MIN:
            continue
        p10, p50, p90 = np.percentile(inside, [10, 50, 90]).tolist()
        bins.append(
            wire.CalibrationBin(
                low_s=10 ** (n / BINS_A_DECADE),
                high_s=10 ** ((n + 1) / BINS_A_DECADE),
                count=len(inside),
                ratio_p10=p10,
                ratio_p50=p50,
                ratio_p90=p90,
            )
        )
    return bins


def _columns(
    rows: Sequence[Timing], pair: Callable[[Timing], tuple[float | None, float | None]]
) -> tuple[Floats, Floats]:
    """Two columns of those requests that have both values, positive."""
    both = [(a, b) for a, b in map(pair, rows) if a and b and a > 0 and b > 0]
    table = np.array(both, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def readings_view(
    node: str, found: Sequence[TelemetryPoint], since: datetime, until: datetime, points_max: int
) -> wire.Readings:
    """GET /nodes/{id}/readings; of each stretch that is thinned out the last reading stays."""
    every = -(-len(found) // points_max) if found else 1
    kept = list(found)[::-1][::every][::-1]
    before: Telemetry | None = None
    points = []
    for point in kept:
        points.append(_reading(point, before))
        before = point.reading
    return wire.Readings(node=node, since=since, until=until, points=points)


def _reading(point: TelemetryPoint, before: Telemetry | None) -> wire.ReadingView:
    now = point.reading
    cached = _grown(before, now, "cached_tokens_total")
    prompts = _grown(before, now, "prompt_tokens_total")
    return wire.ReadingView(
        at=point.at,
        running=now.running,
        waiting=now.waiting,
        kv_usage=now.kv_usage,
        hit_share=min(cached / prompts, 1.0) if cached is not None and prompts else None,
        preempted=_grown(before, now, "preemptions_total"),
    )


def _grown(before: Telemetry | None, now: Telemetry, name: str) -> float | None:
    """Growth of a counter; None where it is unknown or began anew."""
    old = getattr(before, name) if before is not None else None
    new = getattr(now, name)
    return new - old if old is not None and new is not None and new >= old else None

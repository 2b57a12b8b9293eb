"""What a run measured: one row a request, and the figures made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from core.simulation.trace_stats import summary

Floats = npt.NDArray[np.float64]

SERVED, REJECTED, REJECTED_LATE, FAILED = 1, 2, 3, 4


class Records:
    """Parallel lists over requests, filled as they end. NaN and 0 where nothing happened."""

    __slots__ = (
        "arrival_s", "attempts", "cached", "decode_node", "end_s", "fetched", "node",
        "predicted_s", "prompt", "queue_s", "reachable", "status", "tbt_s", "tpot_s", "ttft_s",
    )  # fmt: skip

    def __init__(self, prompts: Sequence[int]) -> None:
        n = len(prompts)
        nan = float("nan")
        self.prompt = list(prompts)
        self.arrival_s = [nan] * n
        self.ttft_s = [nan] * n
        self.predicted_s = [nan] * n
        self.queue_s = [nan] * n
        self.tbt_s = [nan] * n
        self.tpot_s = [nan] * n
        self.end_s = [nan] * n
        self.cached = [0] * n
        self.fetched = [0] * n
        self.reachable = [0] * n
        self.node = [-1] * n
        self.decode_node = [-1] * n
        self.attempts = [0] * n
        self.status = [0] * n


@dataclass(slots=True)
class Samples:
    """Per-node load over time, for plots: rows are moments, columns nodes."""

    at_s: list[float] = field(default_factory=list)
    queue_s: list[list[float]] = field(default_factory=list)
    running: list[list[float]] = field(default_factory=list)
    replicas: list[list[int]] = field(default_factory=list)
    """Holders of the watched prefixes, by moment."""
    watched: list[str] = field(default_factory=list)


@dataclass(slots=True)
class RunResult:
    """A finished run: records, counters of the planners, and `summary()` of it all."""

    label: str
    records: Records
    busy_s: list[float]
    prefill_nodes: int
    span_s: float
    ttft_slo_s: float
    tbt_slo_s: float
    prefill_only: bool
    counters: dict[str, int]
    samples: Samples | None = None
    wall_s: float = 0.0
    stopped: bool = False

    def ttft(self) -> Floats:
        """TTFT of served requests, seconds, in order of arrival."""
        return self._served(self.records.ttft_s)

    def tbt(self) -> Floats:
        """TBT (mean of the longest 10 % of gaps) of served requests with a second token."""
        values = self._served(self.records.tbt_s)
        return values[~np.isnan(values)]

    def _served(self, column: list[float]) -> Floats:
        served = np.array(self.records.status) == SERVED
        values: Floats = np.array(column, np.float64)[served]
        return values

    def good(self) -> npt.NDArray[np.bool_]:
        """Requests that were served within both limits."""
        r = self.records
        tbt = np.nan_to_num(np.array(r.tbt_s), nan=0.0)
        served = np.array(r.status) == SERVED
        kept: npt.NDArray[np.bool_] = (
            served
            & (np.nan_to_num(np.array(r.ttft_s), nan=np.inf) <= self.ttft_slo_s)
            & (tbt <= self.tbt_slo_s)
        )
        return kept

    def summary(self) -> dict[str, Any]:
        """Figures that a seed determines, in a fixed order; rounded, so that bytes repeat."""
        r = self.records
        status = np.array(r.status)
        served = status == SERVED
        prompt = np.array(r.prompt)[served]
        total = max(int(prompt.sum()), 1)
        cached = int(np.array(r.cached)[served].sum())
        good = int(self.good().sum())
        return {
            "label": self.label,
            "requests": len(status),
            "served": int(served.sum()),
            "rejected": int(((status == REJECTED) | (status == REJECTED_LATE)).sum()),
            "rejected_after_prefill": int((status == REJECTED_LATE).sum()),
            "failed": int((status == FAILED).sum()),
            "unfinished": int((status == 0).sum()),
            "ttft_s": _rounded(self.ttft(), 1.0),
            "tbt_ms": _rounded(self.tbt(), 1e3),
            "tpot_ms": _rounded(_known(self._served(r.tpot_s)), 1e3),
            "queue_s": _rounded(_known(self._served(r.queue_s)), 1.0),
            "hit_ratio": round(cached / total, 6),
            "fetched_ratio": round(int(np.array(r.fetched)[served].sum()) / total, 6),
            "reachable_hit_ratio": round(int(np.array(r.reachable)[served].sum()) / total, 6),
            "goodput_rps": round(good / self.span_s, 6) if self.span_s else 0.0,
            "offered_rps": round(len(status) / self.span_s, 6) if self.span_s else 0.0,
            "good_share": round(good / max(len(status), 1), 6),
            "imbalance": self.imbalance(),
            "utilisation": self.utilisation(),
            **self.counters,
        }

    def imbalance(self) -> float:
        """Prefill nodes times the largest node's share of the prefill time: 1 is even."""
        busy = np.array(self.busy_s[: self.prefill_nodes])
        return round(float(len(busy) * busy.max() / busy.sum()), 4) if busy.sum() else 0.0

    def utilisation(self) -> float:
        """Share of the span that prefill nodes computed; above 1 when they finish after it."""
        busy = np.array(self.busy_s[: self.prefill_nodes])
        return round(float(busy.mean() / self.span_s), 4) if self.span_s else 0.0

    def speed(self) -> dict[str, float]:
        """How fast the run was: the only figures that differ from run to run."""
        rate = len(self.records.status) / self.wall_s if self.wall_s else 0.0
        return {"wall_s": round(self.wall_s, 3), "simulated_requests_per_s": round(rate, 1)}


def _known(values: Floats) -> Floats:
    return values[~np.isnan(values)]


def _rounded(values: Floats, scale: float) -> dict[str, float]:
    return summary(values * scale, digits=4)

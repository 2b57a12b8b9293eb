"""Parameter sweeps: every combination on a grid, its Pareto front, and the best point."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from core.errors import BadRequest
from core.simulation.compare import mean_summary
from core.simulation.results import SERVED, RunResult
from core.simulation.runner import Progress, run_all
from core.simulation.scenario import Scenario
from core.simulation.workload import Workload
from core.tunables import parse, resolve

SLICES = 4
"""Equal parts of the trace's time, each a sample of its own for the confidence interval."""
POINTS_MAX = 10_000
OBJECTIVES: tuple[tuple[str, int], ...] = (
    ("ttft_s.p50", 1),
    ("ttft_s.p99", 1),
    ("tbt_ms.p99", 1),
    ("hit_ratio", -1),
    ("imbalance", 1),
)
"""Path of a figure, and 1 where less is better, -1 where more is."""
_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179,
         2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086)  # fmt: skip
"""Two-sided 95 % quantiles of Student's t for 1, 2, ... 20 degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One swept parameter: full path and its values in order."""

    path: str
    values: tuple[Any, ...]


def parse_axis(text: str, policy: str) -> Axis:
    """``NAME=START:STOP:STEP`` (stop included) or ``NAME=A|B|C`` as an axis."""
    name, equals, spec = text.partition("=")
    if not equals:
        raise BadRequest(f"param: expected NAME=START:STOP:STEP, not {text!r}", field="param")
    path = resolve(name.strip(), policy)
    if ":" not in spec:
        return Axis(path, tuple(parse(path, part) for part in spec.split("|")))
    try:
        start, stop, step = (float(part) for part in spec.split(":"))
    except ValueError:
        text = f"{name}: expected START:STOP:STEP, not {spec!r}"
        raise BadRequest(text, field=name) from None
    if not (0 < step < math.inf and -math.inf < start <= stop < math.inf):
        raise BadRequest(f"{name}: expected STEP > 0 and STOP >= START", field=name)
    if (stop - start) / step >= POINTS_MAX:
        text = f"{name}: {spec!r} has more than {POINTS_MAX:,} values"
        raise BadRequest(text, field=name)
    count = math.floor((stop - start) / step + 1e-9) + 1
    values = (round(start + i * step, 12) for i in range(count))
    return Axis(path, tuple(parse(path, _plain(value)) for value in values))


def _plain(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


@dataclass(frozen=True, slots=True)
class Point:
    """One run of one grid point."""

    summary: dict[str, Any]
    slices: list[float]
    """Mean TTFT in seconds of the requests that arrived in each slice of the time."""


def reduce_point(result: RunResult) -> Point:
    """Figures of the run, and mean TTFT by slice of arrival time."""
    r = result.records
    served = np.array(r.status) == SERVED
    arrival, ttft = np.array(r.arrival_s)[served], np.array(r.ttft_s)[served]
    width = result.span_s / SLICES or 1.0
    part = np.minimum((arrival / width).astype(int), SLICES - 1)
    means = [float(ttft[part == i].mean()) if (part == i).any() else 0.0 for i in range(SLICES)]
    return Point(result.summary(), means)


def sweep(
    base: Scenario,
    workload: Workload,
    *,
    axes: Sequence[Axis],
    seeds: Sequence[int],
    workers: int = 0,
    ray: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Run the grid; returns points in grid order, the Pareto front and the best point.

    The best point has the least mean TTFT. Its interval is a 95 % t-interval over (seed, slice)
    of mean TTFT; since slices differ by their load, `against_next` compares it with the
    runner-up pair by pair.
    """
    grid = list(itertools.product(*(axis.values for axis in axes)))
    if len(grid) * len(seeds) > POINTS_MAX:
        text = f"param: {len(grid)} points with {len(seeds)} seeds exceed {POINTS_MAX} runs"
        raise BadRequest(text, field="param")
    settings = [dict(zip((a.path for a in axes), values, strict=True)) for values in grid]
    scenarios = [
        replace(base, params=dict(base.params) | setting, seed=seed)
        for setting in settings
        for seed in seeds
    ]
    runs: list[Point] = run_all(
        scenarios, workload, workers=workers, ray=ray, progress=progress, reduce=reduce_point
    )
    points = []
    for i in range(len(runs) // len(seeds)):
        part = runs[i * len(seeds) : (i + 1) * len(seeds)]
        points.append(
            {"params": settings[i], **mean_summary([p.summary for p in part])}
            | {"slices_s": [p.slices for p in part]}
        )
    front = pareto(points)
    for i, point in enumerate(points):
        point["pareto"] = i in front
    return {
        "policy": base.policy,
        "points": points,
        "pareto": [points[i]["params"] for i in front],
        "best": _best(points),
        "runs": len(runs),
        "wanted": len(scenarios),
    }


def pareto(points: Sequence[dict[str, Any]]) -> list[int]:
    """Positions of points that no other point equals or beats in every objective."""
    if not points:
        return []
    costs = np.array([[sign * _at(p, path) for path, sign in OBJECTIVES] for p in points])
    kept = []
    for i, cost in enumerate(costs):
        dominated = (costs <= cost).all(axis=1) & (costs < cost).any(axis=1)
        if not dominated.any():
            kept.append(i)
    return kept


def _at(point: dict[str, Any], path: str) -> float:
    group, _, name = path.partition(".")
    return float(point[group][name] if name else point[group])


def _best(points: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    if not points:
        return None
    order = sorted(range(len(points)), key=lambda i: points[i]["ttft_s"]["mean"])
    best = points[order[0]]
    samples = np.array(best["slices_s"]).ravel()
    out = {
        "params": best["params"],
        "ttft_mean_s": best["ttft_s"]["mean"],
        "slice_mean_s": interval(samples),
    }
    if len(order) > 1:
        following = points[order[1]]
        differences = np.array(following["slices_s"]).ravel() - samples
        out["against_next"] = {"params": following["params"], "saves_s": interval(differences)}
    return out


def interval(samples: np.ndarray) -> dict[str, float]:
    """Mean and 95 % Student interval of independent samples."""
    n = len(samples)
    mean = float(samples.mean())
    if n < 2:
        return {"mean": round(mean, 6), "low": round(mean, 6), "high": round(mean, 6)}
    t = _T_95[n - 2] if n - 2 < len(_T_95) else 1.96 + 2.4 / (n - 1)
    half = t * float(samples.std(ddof=1)) / math.sqrt(n)
    return {
        "mean": round(mean, 6),
        "low": round(mean - half, 6),
        "high": round(mean + half, 6),
    }

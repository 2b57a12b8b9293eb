"""Several policies on one trace at several loads, averaged over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from core.errors import BadRequest
from core.simulation.results import RunResult
from core.simulation.runner import Progress, run_all
from core.simulation.scenario import Scenario
from core.simulation.workload import Workload
from core.tunables import parse, resolve

CURVE_POINTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A policy with parameters of its own, as written: ``linear:alpha=0.7:beta=0.3``."""

    label: str
    policy: str
    params: dict[str, Any]

    def scenario(self, base: Scenario) -> Scenario:
        """The base scenario under this arm."""
        return replace(base, policy=self.policy, params=dict(base.params) | self.params)


def parse_arms(text: str) -> list[Arm]:
    """Arms from a comma-separated list; a name may carry parameters after a colon.

    ``linear:alpha=0.7:beta=0.3,min_ttft`` are two arms. Raises BadRequest or Invalid naming
    what is wrong.
    """
    arms = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, *settings = item.split(":")
        params = dict(parse_param(setting, name) for setting in settings)
        arms.append(Arm(label=item, policy=name, params=params))
    if not arms:
        raise BadRequest("policies: expected at least one name", field="policies")
    return arms


def parse_param(text: str, policy: str) -> tuple[str, Any]:
    """``NAME=VALUE`` as (full tunable path, value)."""
    name, equals, value = text.partition("=")
    if not equals:
        raise BadRequest(f"param: expected NAME=VALUE, not {text!r}", field="param")
    path = resolve(name.strip(), policy)
    return path, parse(path, value.strip())


@dataclass(frozen=True, slots=True)
class Compared:
    """What of one run a comparison keeps: its figures, its TTFT and TBT curves, its samples."""

    summary: dict[str, Any]
    ttft_curve: list[float]
    """Quantiles of TTFT in seconds at CURVE_POINTS even steps of probability."""
    tbt_curve: list[float]
    samples: Any
    wall_s: float


def reduce_run(result: RunResult) -> Compared:
    """Keep what a comparison shows."""
    steps = np.linspace(0.0, 1.0, CURVE_POINTS)
    ttft, tbt = result.ttft(), result.tbt()
    return Compared(
        summary=result.summary(),
        ttft_curve=np.round(np.quantile(ttft, steps), 4).tolist() if len(ttft) else [],
        tbt_curve=np.round(np.quantile(tbt, steps), 6).tolist() if len(tbt) else [],
        samples=result.samples,
        wall_s=result.wall_s,
    )


def compare(
    base: Scenario,
    workload: Workload,
    *,
    arms: Sequence[Arm],
    loads: Sequence[float],
    seeds: Sequence[int],
    workers: int = 1,
    ray: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Rows (arm by load, figures averaged over seeds) and curves of the first seed.

    Returns {"rows": [...], "curves": [...], "runs": n, "wanted": n}.
    """
    plan = [(arm, load, seed) for load in loads for arm in arms for seed in seeds]
    scenarios = [replace(arm.scenario(base), load=load, seed=seed) for arm, load, seed in plan]
    runs = run_all(
        scenarios, workload, workers=workers, ray=ray, progress=progress, reduce=reduce_run
    )
    rows, curves = [], []
    for start in range(0, len(runs) - len(seeds) + 1, len(seeds)):
        arm, load, _ = plan[start]
        part: list[Compared] = runs[start : start + len(seeds)]
        head = {"label": arm.label, "load": load}
        rows.append(head | mean_summary([c.summary for c in part]))
        curves.append(
            head
            | {"ttft_s": part[0].ttft_curve, "tbt_s": part[0].tbt_curve, "samples": part[0].samples}
        )
    return {"rows": rows, "curves": curves, "runs": len(runs), "wanted": len(scenarios)}


def mean_summary(summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Figures averaged over seeds; the label is dropped, `ttft_mean_by_seed` is added."""
    first = summaries[0]
    merged: dict[str, Any] = {}
    for name, value in first.items():
        if isinstance(value, dict):
            merged[name] = {k: _mean([s[name][k] for s in summaries]) for k in value}
        elif isinstance(value, (int, float)):
            merged[name] = _mean([s[name] for s in summaries])
    merged["seeds"] = len(summaries)
    merged["ttft_mean_by_seed"] = [s["ttft_s"]["mean"] for s in summaries]
    return merged


def _mean(values: Sequence[float]) -> float:
    if all(v == values[0] for v in values):
        return values[0]
    return round(float(np.mean(values)), 6)

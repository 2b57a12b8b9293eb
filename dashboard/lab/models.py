"""Jobs of the Lab as rows and words, axes from text, and points as drafts. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from core import wire
from dashboard.parts import format as fmt
from dashboard.tuning import draft as dr
from dashboard.tuning.draft import Draft, word
from dashboard.tuning.models import verdict

STATES = {
    "waiting": "◷ waits",
    "running": "▶ runs",
    "done": "✓ done",
    "cancelled": "○ cancelled",
    "failed": "✕ failed",
}
METHODS = {
    "simulate": "Simulate: play requests on a simulated fleet from empty caches",
    "rescore": "Re-score: make recorded decisions again, each in the state it was made in",
}
VALUES_MAX = 50
MEASURES: tuple[tuple[str, str], ...] = (
    ("ttft_mean_s", "TTFT mean"),
    ("ttft_p50_s", "TTFT p50"),
    ("ttft_p90_s", "TTFT p90"),
    ("ttft_p99_s", "TTFT p99"),
    ("tbt_mean_ms", "TBT mean"),
    ("tbt_p99_ms", "TBT p99"),
    ("hit", "Cache hit"),
    ("imbalance", "Imbalance"),
    ("good_share", "Met their limits"),
    ("goodput_rps", "Goodput/s"),
    ("rejected", "Refused"),
    ("moved", "Decisions that move"),
)
NAMES = dict(MEASURES)
MORE_IS_BETTER = frozenset({"hit", "good_share", "goodput_rps"})
PARETO_WORDS = (
    "◆ Pareto: no other configuration is as good in all of times, cache hit and balance, and "
    "better in one of them."
)


def figure_text(name: str, value: float | None) -> str:
    """A figure of a point as an operator reads it."""
    if value is None:
        return fmt.NONE
    if name.endswith("_s"):
        return fmt.seconds(value)
    if name.endswith("_ms"):
        return fmt.seconds(value / 1e3)
    if name in ("hit", "good_share", "moved"):
        return fmt.share(value, 1)
    return fmt.figure(value) if name == "rejected" else fmt.digits(value)


def front_of(points: Sequence[wire.LabPoint], x: str, y: str) -> list[wire.LabPoint]:
    """Points that no other one equals or beats in both figures, by the first."""

    def costs(p: wire.LabPoint) -> tuple[float, float]:
        known = [(name, p.figures.get(name) or 0.0) for name in (x, y)]
        first, second = (-v if name in MORE_IS_BETTER else v for name, v in known)
        return first, second

    found, best = list[wire.LabPoint](), (math.inf, math.inf)
    for point in sorted(points, key=costs):
        cost = costs(point)
        if cost[1] < best[1] or cost == best:
            found.append(point)
            best = cost
    return sorted(found, key=lambda p: p.figures.get(x) or 0.0)


def axis_values(text: str, item: wire.TunableView) -> tuple[list[Any], str]:
    """Values of a swept parameter from ``0.1:0.9:0.2`` or ``0.1, 0.5``; and what is wrong."""
    text = text.strip()
    try:
        values = _stepped(text) if ":" in text else _listed(text, item)
    except ValueError:
        return [], f"{item.path}: expected FROM:TO:STEP or values with commas, not {text!r}"
    if isinstance(item.default, int) and not isinstance(item.default, bool):
        values = [int(v) if isinstance(v, float) and v == int(v) else v for v in values]
    for value in values:
        wrong = dr.complaint(item, value)
        if wrong:
            return [], wrong
    if len(values) > VALUES_MAX:
        return [], f"{item.path}: {len(values)} values, at most {VALUES_MAX}"
    return values, "" if values else f"{item.path}: no value"


def _stepped(text: str) -> list[Any]:
    start, stop, step = (float(part) for part in text.split(":"))
    if step <= 0 or stop < start or not all(map(math.isfinite, (start, stop, step))):
        raise ValueError(text)
    count = min(math.floor((stop - start) / step + 1e-9) + 1, VALUES_MAX + 1)
    return [round(start + i * step, 10) for i in range(count)]


def _listed(text: str, item: wire.TunableView) -> list[Any]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if isinstance(item.default, bool):
        words = {"on": True, "true": True, "off": False, "false": False}
        if any(p not in words for p in parts):
            raise ValueError(text)
        return [words[p] for p in parts]
    return [p if isinstance(item.default, str) else float(p) for p in parts]


def runs_of(method: str, arms: int, axes: Mapping[str, Sequence[object]], seeds: int) -> int:
    """Runs that a job takes, the live configuration's included."""
    grid = math.prod(len(v) for v in axes.values()) if axes else 0
    return (1 + arms + grid) * (seeds if method == "simulate" else 1)


# -- jobs ------------------------------------------------------------------------------------


def job_rows(jobs: Sequence[wire.LabJob]) -> list[dict[str, object]]:
    """Jobs, newest first."""
    return [
        {
            "Asked at": j.created_at,
            "State": STATES.get(j.state, j.state),
            "Progress": j.done / j.total if j.total else 0.0,
            "Runs": f"{j.done} of {j.total}",
            "Method": "re-score" if j.method == "rescore" else "simulate",
            "Source": j.source,
            "By": j.author,
            "Reason": j.reason,
            "Note": j.error,
        }
        for j in jobs
    ]


def job_words(j: wire.LabJob) -> str:
    """A job in a sentence."""
    what = "decisions made again" if j.method == "rescore" else "requests simulated"
    if j.state == "done":
        took = ""
        if j.started_at and j.ended_at:
            took = f" in {fmt.seconds((j.ended_at - j.started_at).total_seconds())}"
        return f"{j.requests} {what} under {len(j.points)} configurations{took}."
    if j.state == "running":
        return f"{j.done} of {j.total} runs are done."
    if j.state == "waiting":
        return "It waits for those before it."
    return j.error or "It was cancelled."


def best_words(j: wire.LabJob) -> str:
    """What the best point gains against the live configuration."""
    best = next((p for p in j.points if p.label == j.best), None)
    live = next((p for p in j.points if p.live), None)
    if best is None or live is None:
        return "No point has a mean TTFT to compare."
    if best.live:
        return (
            "The live one: of those that serve most requests within their limits, to one in a "
            "hundred, it has the least mean TTFT."
        )
    parts = [
        f"{name} {figure_text(n, best.figures[n])} against {figure_text(n, live.figures[n])} live"
        for n, name in (
            ("good_share", "requests within their limits"),
            ("ttft_mean_s", "mean TTFT"),
        )
        if best.figures.get(n) is not None and live.figures.get(n) is not None
    ]
    return f"{best.label}: {'; '.join(parts)}."


def point_rows(j: wire.LabJob) -> list[dict[str, object]]:
    """All points with their figures, the live one first, then by mean TTFT."""
    shown = [n for n, _ in MEASURES if any(p.figures.get(n) is not None for p in j.points)]
    live = next((p for p in j.points if p.live), None)
    base = live.figures.get("ttft_mean_s") if live else None
    ordered = sorted(j.points, key=lambda p: (not p.live, _or_last(p.figures.get("ttft_mean_s"))))
    return [
        {
            "Configuration": p.label,
            "Mark": _marks(p, j.best),
            **{NAMES[n]: figure_text(n, p.figures.get(n)) for n in shown},
            "TTFT against live": _against(base, p.figures.get("ttft_mean_s"), p.live),
        }
        for p in ordered
    ]


def _marks(p: wire.LabPoint, best: str) -> str:
    marks = [
        "● live" if p.live else "",
        "★ best" if p.label == best else "",
        "◆ Pareto" if p.pareto else "",
    ]
    return " ".join(m for m in marks if m)


def _against(base: float | None, value: float | None, live: bool) -> str:
    if live or base is None or value is None:
        return fmt.NONE
    return verdict(base, value)[1]


def _or_last(value: float | None) -> float:
    return math.inf if value is None else value


# -- from a point to a draft -------------------------------------------------------------------


def draft_of(point: wire.LabPoint, job: wire.LabJob) -> Draft:
    """The point's changes as a draft, made from the revision that was live when it was asked."""
    return Draft(job.base, dict(point.params))


def changes_words(point: wire.LabPoint) -> str:
    """What the point changes against the configuration that was live."""
    if not point.params:
        return "nothing: this is what was live"
    return ", ".join(f"{p} {word(v)}" for p, v in point.params.items())


def curve_rows(points: Sequence[wire.LabPoint]) -> list[dict[str, object]]:
    """The table twin of the distributions: quantiles of TTFT."""
    rows: list[dict[str, object]] = []
    for p in points:
        if not p.ttft_curve_s:
            continue
        last = len(p.ttft_curve_s) - 1
        shown = {f"{q} %": fmt.seconds(p.ttft_curve_s[round(q / 100 * last)])
                 for q in (10, 25, 50, 75, 90, 95, 99)}  # fmt: skip
        rows.append({"Configuration": p.label, **shown})
    return rows

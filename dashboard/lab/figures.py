"""The Lab's charts as plain Plotly dictionaries: distributions, and points against each other."""

from __future__ import annotations

from collections.abc import Sequence

from core import wire
from dashboard.lab.models import NAMES, figure_text, front_of
from dashboard.parts.theme import Figure, Palette, axis_title, layout

CURVES_MAX = 7
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid")


def curves(
    points: Sequence[wire.LabPoint], p: Palette, *, name: str = "TTFT", limit_s: float = 0.0
) -> Figure:
    """Distributions: share of requests at or below a time, on a log axis."""
    shown = [q for q in points if _of(q, name)][:CURVES_MAX]
    traces: list[Figure] = []
    for i, q in enumerate(shown):
        values = _of(q, name)
        last = len(values) - 1
        traces.append(
            {
                "type": "scatter", "mode": "lines", "name": q.label,
                "x": [max(v, 1e-5) for v in values],
                "y": [round(100 * k / last, 2) for k in range(len(values))],
                "line": {
                    "color": p.text if q.live else p.categories[i % len(p.categories)],
                    "dash": "solid" if q.live else _DASHES[i % len(_DASHES)],
                    "width": 3 if q.live else 2,
                },
                "hovertemplate": "%{x:.3g} s: %{y:.0f} %",
            }
        )  # fmt: skip
    shapes = []
    if limit_s:
        shapes.append(
            {
                "type": "line", "x0": limit_s, "x1": limit_s, "yref": "paper", "y0": 0, "y1": 1,
                "line": {"color": p.bad, "dash": "dash", "width": 1.5},
            }
        )  # fmt: skip
    return {
        "data": traces,
        "layout": layout(
            p,
            height=360,
            hovermode="closest",
            showlegend=True,
            shapes=shapes,
            xaxis={"type": "log", "ticksuffix": " s", "title": axis_title(p, name)},
            yaxis={"ticksuffix": " %", "range": [0, 101], "title": axis_title(p, "of requests")},
            meta="; ".join(
                f"{q.label}: half within {_of(q, name)[len(_of(q, name)) // 2]:.3g} s"
                for q in shown
            ),
        ),
    }


def _of(q: wire.LabPoint, name: str) -> list[float]:
    return q.ttft_curve_s if name == "TTFT" else q.tbt_curve_s


def pareto(job: wire.LabJob, p: Palette, *, x: str, y: str) -> Figure:
    """Every point by two figures; those on the front of these two are joined, the live one is
    marked."""
    known = [q for q in job.points if _known(q, x) and _known(q, y)]
    front = front_of(known, x, y)
    others = [q for q in known if not q.live and all(q is not on for on in front)]
    groups = (
        ("other points", others, "circle-open", p.muted),
        ("Pareto front of these two", front, "diamond", p.categories[0]),
        ("live", [q for q in known if q.live], "star", p.categories[1]),
    )
    traces = [
        {
            "type": "scatter", "mode": "lines+markers" if group is front else "markers",
            "name": name,
            "line": {"width": 1.5, "dash": "dot", "color": colour},
            "x": [q.figures[x] for q in group], "y": [q.figures[y] for q in group],
            "text": [q.label for q in group],
            "marker": {"symbol": symbol, "size": 15 if symbol == "star" else 11, "color": colour},
            "hovertemplate": "%{text}<br>%{x:.4g}, %{y:.4g}<extra></extra>",
        }
        for name, group, symbol, colour in groups
        if group
    ]  # fmt: skip
    told = [f"{q.label}: {figure_text(x, q.figures[x])}, {figure_text(y, q.figures[y])}"
            for q in front]  # fmt: skip
    return {
        "data": traces,
        "layout": layout(
            p,
            height=360,
            hovermode="closest",
            showlegend=True,
            xaxis={"title": axis_title(p, _title(x))},
            yaxis={"title": axis_title(p, _title(y))},
            meta=f"On the front: {'; '.join(told[:8]) or 'none'}.",
        ),
    }


def _known(q: wire.LabPoint, name: str) -> bool:
    return q.figures.get(name) is not None


def _title(name: str) -> str:
    unit = " (s)" if name.endswith("_s") else " (ms)" if name.endswith("_ms") else ""
    return NAMES.get(name, name) + unit

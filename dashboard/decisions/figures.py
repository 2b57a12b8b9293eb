"""Charts of one decision as plain Plotly dictionaries. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from core import wire
from dashboard.decisions.models import Segment, adds_up
from dashboard.parts import format as fmt
from dashboard.parts.theme import Figure, Palette, layout

BARS_MAX = 16
_PATTERNS = ("", "/", ".", "x", "-", "\\", "+")


def waterfall(segments: Sequence[Segment], p: Palette, *, limit_s: float | None) -> Figure:
    """Two lanes on one time axis, in milliseconds; a dashed line at the TTFT limit if it is near.

    A limit far beyond everything measured would press the bars to the left edge: it is left out
    then, and the tile above still names it.
    """
    end = max((s.start_s + s.length_s for s in segments), default=0.0)
    traces = [_segment(s, i, p) for i, s in enumerate(segments)]
    near = limit_s is not None and limit_s <= 2 * end
    return {
        "data": traces,
        "layout": layout(
            p,
            height=150,
            barmode="overlay",
            hovermode="closest",
            showlegend=True,
            xaxis={"ticksuffix": " ms", "rangemode": "tozero"},
            yaxis={
                "type": "category",
                "categoryorder": "array",
                "categoryarray": ["observed", "predicted"],
                "showgrid": False,
            },
            shapes=[_limit(limit_s * 1e3, p)] if near and limit_s is not None else [],
            meta="; ".join(f"{s.lane} {s.name} {fmt.seconds(s.length_s)}" for s in segments),
        ),
    }


def _segment(s: Segment, i: int, p: Palette) -> Figure:
    return {
        "type": "bar",
        "orientation": "h",
        "name": f"{s.lane}: {s.name} {fmt.seconds(s.length_s)}",
        "y": [s.lane],
        "x": [s.length_s * 1e3],
        "base": [s.start_s * 1e3],
        "marker": {
            "color": p.categories[i % len(p.categories)],
            "pattern": {"shape": _PATTERNS[i % len(_PATTERNS)]},
        },
        "hovertemplate": f"{s.lane}, {s.name}: {fmt.seconds(s.length_s)}<extra></extra>",
    }


def _limit(x_ms: float, p: Palette) -> Figure:
    return {
        "type": "line",
        "x0": x_ms,
        "x1": x_ms,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"color": p.bad, "dash": "dash", "width": 1.5},
    }


def candidates(selection: wire.SelectionView, p: Palette) -> Figure:
    """Horizontal bars, best candidate on top: stacked terms where they add up to the total.

    Where a policy multiplies or subtracts, stacking would lie: then one bar shows the total.
    """
    shown = selection.candidates[:BARS_MAX]
    labels = [f"{c.node} ✓" if c.chosen else c.node for c in shown]
    if adds_up(selection):
        names = list(dict.fromkeys(name for c in shown for name in c.terms))
        bars = [(name, [c.terms.get(name, 0.0) for c in shown]) for name in names]
        # A term that is nothing everywhere would only fill the legend.
        bars = [bar for bar in bars if any(bar[1])] or bars[:1]
    else:
        bars = [("total", [c.total for c in shown])]
    best = "shortest" if selection.sense == "min" else "longest"
    return {
        "data": [_bar(i, name, labels, values, p) for i, (name, values) in enumerate(bars)],
        "layout": layout(
            p,
            height=92 + 26 * max(len(shown), 2),
            barmode="stack",
            hovermode="y unified",
            showlegend=True,
            bargap=0.3,
            xaxis={"rangemode": "tozero"},
            yaxis={"type": "category", "autorange": "reversed", "showgrid": False},
            meta=f"The {best} bar wins; chosen: {_chosen(selection)}.",
        ),
    }


def _bar(i: int, name: str, labels: list[str], values: list[float], p: Palette) -> Figure:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": labels,
        "x": values,
        "marker": {
            "color": p.categories[i % len(p.categories)],
            "pattern": {"shape": _PATTERNS[i % len(_PATTERNS)]},
        },
        "hovertemplate": "%{x:.4g}",
    }


def _chosen(selection: wire.SelectionView) -> str:
    return next((c.node for c in selection.candidates if c.chosen), "none")

"""Charts of the SLO page, as plain Plotly dictionaries. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import tzinfo

from core import wire
from dashboard.parts import format as fmt
from dashboard.parts.theme import Figure, Palette, axis_title, layout, room
from dashboard.slo.models import calibration_words

HEIGHT = 300
DECADES_FINE = 2.5
"""An axis over more of them has a tick each decade only: more would overlap in a narrow window."""


def margins(view: wire.TimingsView, p: Palette) -> Figure:
    """Distribution of observed / limit on a log axis; right of 1 the limit is missed."""
    x = [(b.low * b.high) ** 0.5 for b in view.margins]
    width = [b.high - b.low for b in view.margins]
    bars = [
        {
            "type": "bar", "name": name, "x": x, "y": counts, "width": width, "opacity": 0.75,
            "marker": {"color": colour, "pattern": {"shape": shape}},
            "hovertemplate": "%{y} requests at %{x:.2g} of the limit",
        }
        for name, counts, colour, shape in (
            ("TTFT", [b.ttft for b in view.margins], p.categories[0], ""),
            ("TBT", [b.tbt for b in view.margins], p.categories[1], "/"),
        )
    ]  # fmt: skip
    most = max((max(b.ttft, b.tbt) for b in view.margins), default=1)
    limit = {
        "type": "scatter", "mode": "lines", "name": "limit", "x": [1, 1], "y": [0, max(most, 1)],
        "line": {"color": p.bad, "width": 1.5, "dash": "dash"}, "hoverinfo": "skip",
    }  # fmt: skip
    missed = {
        name: sum(getattr(b, name.lower()) for b in view.margins if b.low > 0.99)
        for name in ("TTFT", "TBT")
    }
    return {
        "data": [*bars, limit],
        "layout": layout(
            p,
            height=HEIGHT,
            margin=room(),
            barmode="overlay",
            bargap=0,
            hovermode="closest",
            xaxis={
                "type": "log", "title": axis_title(p, "observed / limit"),
                "tickvals": [0.001, 0.01, 0.1, 1, 10, 100],
                "ticktext": ["0.001", "0.01", "0.1", "1", "10", "100"],
            },
            yaxis={"rangemode": "tozero", "title": axis_title(p, "requests")},
            meta=f"{missed['TTFT']} over the TTFT limit, {missed['TBT']} over the TBT limit",
        ),
    }  # fmt: skip


def attainment(series: wire.Series, objective: float, p: Palette, *, zone: tzinfo) -> Figure:
    """Share of the finished requests that kept both limits, over time."""
    x = [fmt.axis_time(point.at, zone) for point in series.points]
    y = [_kept(point) for point in series.points]
    known = [v for v in y if v is not None]
    return {
        "data": [
            {
                "type": "scatter", "mode": "lines+markers", "name": "attainment", "x": x, "y": y,
                "line": {"color": p.categories[0], "width": 2}, "marker": {"size": 4},
                "connectgaps": False, "hovertemplate": "%{y:.1f} %",
            },
            {
                "type": "scatter", "mode": "lines", "name": f"objective {objective:.2%}",
                "x": [x[0], x[-1]] if x else [], "y": [100 * objective] * (2 if x else 0),
                "line": {"color": p.bad, "width": 1.5, "dash": "dash"}, "hoverinfo": "skip",
            },
        ],
        "layout": layout(
            p,
            height=HEIGHT,
            margin=room(),
            yaxis={"ticksuffix": " %"},
            meta=f"Lowest {min(known):g} %, last {known[-1]:g} %" if known else "Nothing finished",
        ),
    }  # fmt: skip


def _kept(point: wire.SeriesPoint) -> float | None:
    finished = point.finished - point.aborted
    return round(100 * min(point.good / finished, 1.0), 2) if finished > 0 else None


def _log_ticks(values: Sequence[float]) -> Figure:
    """Ticks of a logarithmic axis in s, in full: the library's own leave out leading digits."""
    known = [v for v in values if v > 0]
    decades = math.log10(max(known) / min(known)) if known else 0.0
    steps = (1, 2, 5) if decades <= DECADES_FINE else (1,)
    ticks = [m * 10.0**e for e in range(-6, 4) for m in steps]
    texts = [f"{s:.6f}".rstrip("0").rstrip(".") for s in ticks]
    return {"tickvals": ticks, "ticktext": texts}


def calibration(c: wire.Calibration, p: Palette, colour: str) -> Figure:
    """Predicted against observed seconds, both logarithmic; on the line they agree."""
    x, y = [a for a, _ in c.points], [b for _, b in c.points]
    both = [*x, *y]
    low, high = min(both, default=0.01), max(both, default=1.0)
    middle = [(b.low_s * b.high_s) ** 0.5 for b in c.bins]
    return {
        "data": [
            {
                "type": "scatter", "mode": "markers", "name": "requests", "x": x, "y": y,
                "marker": {"size": 5, "color": colour, "opacity": 0.45},
                "hovertemplate": "predicted %{x:.3g} s, observed %{y:.3g} s",
            },
            {
                "type": "scatter", "mode": "lines+markers", "name": "median", "x": middle,
                "y": [m * b.ratio_p50 for m, b in zip(middle, c.bins, strict=True)],
                "line": {"color": p.text, "width": 2}, "marker": {"size": 6},
                "hovertemplate": "median %{y:.3g} s",
            },
            {
                "type": "scatter", "mode": "lines", "name": "as predicted", "x": [low, high],
                "y": [low, high], "line": {"color": p.muted, "width": 1.5, "dash": "dash"},
                "hoverinfo": "skip",
            },
        ],
        "layout": layout(
            p,
            height=HEIGHT + 20,
            margin=room(left=64),
            hovermode="closest",
            xaxis={"type": "log", "title": axis_title(p, "predicted s"), **_log_ticks(both)},
            yaxis={"type": "log", "title": axis_title(p, "observed s"), **_log_ticks(both)},
            meta=calibration_words(c),
        ),
    }  # fmt: skip

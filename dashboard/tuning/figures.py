"""Charts of the Tuning page as plain Plotly dictionaries. Pure."""

from __future__ import annotations

from datetime import datetime, tzinfo

from core import wire
from dashboard.parts import figures
from dashboard.parts import format as fmt
from dashboard.parts.theme import Figure, Palette, axis_title, layout

MOVES_SHOWN = 12


def moves(p: wire.PreviewView, palette: Palette) -> Figure:
    """Bars: decisions that would move, by pair of nodes, most on top."""
    shown = p.moves[:MOVES_SHOWN]
    labels = [f"{m.source} → {m.target}" for m in shown]
    counts = [m.count for m in shown]
    trace = {
        "type": "bar",
        "orientation": "h",
        "y": labels,
        "x": counts,
        "text": [str(c) for c in counts],
        "textposition": "auto",
        "textangle": 0,
        "marker": {"color": palette.categories[0]},
        "hovertemplate": "%{y}: %{x} decisions<extra></extra>",
    }
    rest = sum(m.count for m in p.moves[MOVES_SHOWN:])
    more = f"; {rest} more between other pairs" if rest else ""
    return {
        "data": [trace],
        "layout": layout(
            palette,
            height=64 + 26 * max(len(shown), 2),
            hovermode="closest",
            showlegend=False,
            xaxis={"title": axis_title(palette, "decisions"), "rangemode": "tozero"},
            yaxis={"type": "category", "autorange": "reversed", "showgrid": False},
            meta="; ".join(f"{lab}: {n}" for lab, n in zip(labels, counts, strict=True)) + more,
        ),
    }


def around(series: wire.Series, at: datetime, palette: Palette, *, zone: tzinfo) -> Figure:
    """TTFT and TBT against their limits, with a line where the revision became live."""
    made = figures.slo_ratio(series, palette, zone=zone)
    x = fmt.axis_time(at, zone)
    made["layout"]["shapes"] = [
        {
            "type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1,
            "line": {"color": palette.accent, "width": 2},
        }
    ]  # fmt: skip
    made["layout"]["annotations"] = [
        {
            "x": x, "yref": "paper", "y": 0, "xanchor": "left", "yanchor": "bottom",
            "xshift": 3, "text": "change", "showarrow": False,
            "font": {"color": palette.accent, "size": 12},
        }
    ]  # fmt: skip
    made["layout"]["margin"] = {"l": 8, "r": 12, "t": 24, "b": 8}
    return made

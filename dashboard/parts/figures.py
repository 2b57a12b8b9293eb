"""The overview's charts as plain Plotly dictionaries. Pure.

Gaps in time stay gaps: where nothing was measured there is no point, and no line over it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo
from itertools import pairwise

from core import wire
from dashboard.parts import format as fmt
from dashboard.parts.marks import Mark
from dashboard.parts.theme import Figure, Palette, layout, room

ROW_PX = 22
HEAT_ROWS_MAX = 256
NAMED_MAX = 24
"""More rows than this are too low for their names."""
RACK_SEPARATOR = " · "


def load_heat(
    series: wire.Series,
    nodes: Sequence[str],
    p: Palette,
    *,
    zone: tzinfo,
    span: bool,
    racks: Mapping[str, str] | None = None,
) -> Figure:
    """Load of each node over time (percent), busiest node on top; of very many, the busiest.

    With `span` (stored minutes, which keep no load) the cells count requests placed instead.
    With `racks` (node -> rack) the nodes of a rack stand together, and lines divide the racks.
    """
    times = [fmt.axis_time(point.at, zone) for point in series.points]
    cells = {n: _cells(series, n, placed=span) for n in nodes}
    busiest = sorted(cells, key=lambda n: (-_mean(cells[n]), n))[:HEAT_ROWS_MAX]
    names = {n: _row_name(n, racks) for n in busiest}
    rows = {names[n]: cells[n] for n in busiest}
    order = [names[n] for n in _heat_order(busiest, racks)]
    unit = "requests" if span else "% load"
    trace = {
        "type": "heatmap",
        "x": times,
        "y": order,
        "z": [rows[n] for n in order],
        "colorscale": [[i / (len(p.heat) - 1), c] for i, c in enumerate(p.heat)],
        "zmin": 0,
        "zmax": _most(rows) if span else 100,
        "hoverongaps": False,
        "hovertemplate": "%{y}, %{x|%H:%M:%S}: %{z} " + unit + "<extra></extra>",
        "xgap": 0.5,
        "ygap": 1,
        "colorbar": {
            "thickness": 10,
            "len": 1.0,
            "outlinewidth": 0,
            "ticksuffix": "" if span else " %",
            "tickfont": {"color": p.muted, "size": 11},
        },
    }
    height = 62 + max(4, len(order)) * (ROW_PX if len(order) <= 16 else 360 // len(order) + 1)
    return {
        "data": [trace],
        "layout": layout(
            p,
            height=max(170, min(height, 460)),
            margin=room(left=_left(order), right=68 if span else 84, above=8, below=50),
            hovermode="closest",
            xaxis={"showgrid": False},
            yaxis={
                "showgrid": False,
                "type": "category",
                "showticklabels": len(order) <= NAMED_MAX,
            },
            shapes=_rack_lines(order, p) if racks else [],
            meta=_summary_heat(rows, unit),
        ),
    }


def _left(names: Sequence[str]) -> int:
    """Room (px) for the names of the rows, where there are any."""
    return 16 if len(names) > NAMED_MAX else 10 + round(6.5 * max(map(len, names), default=0))


def _row_name(node: str, racks: Mapping[str, str] | None) -> str:
    return node if racks is None else f"{racks.get(node) or 'no rack'}{RACK_SEPARATOR}{node}"


def _heat_order(busiest: Sequence[str], racks: Mapping[str, str] | None) -> list[str]:
    """From the bottom row up: the least busy first, or rack by rack from Z to A."""
    rising = list(reversed(busiest))
    if racks is None:
        return rising
    return sorted(rising, key=lambda n: racks.get(n) or "", reverse=True)


def _rack_lines(order: Sequence[str], p: Palette) -> list[Figure]:
    """A line between two rows whose racks differ; rows are numbered from the bottom."""
    rack = [name.split(RACK_SEPARATOR)[0] for name in order]
    return [
        {
            "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": i + 0.5, "y1": i + 0.5,
            "line": {"color": p.text, "width": 1.5},
        }
        for i, (one, other) in enumerate(pairwise(rack))
        if one != other
    ]  # fmt: skip


def _cells(series: wire.Series, node: str, *, placed: bool) -> list[int | None]:
    if placed:
        return [point.per_node.get(node, 0) for point in series.points]
    return [
        round(100 * point.load[node]) if node in point.load else None for point in series.points
    ]


def _most(rows: dict[str, list[int | None]]) -> int:
    """Top of the colour scale for counts; 1 where nothing happened, so that zero stays zero."""
    return max((c for cells in rows.values() for c in cells if c), default=1)


def _mean(cells: Sequence[int | None]) -> float:
    known = [c for c in cells if c is not None]
    return sum(known) / len(known) if known else -1.0


def _summary_heat(rows: dict[str, list[int | None]], unit: str) -> str:
    ranked = sorted(rows, key=lambda n: -_mean(rows[n]))[:3]
    shown = ", ".join(f"{n} {_mean(rows[n]):.0f}" for n in ranked if _mean(rows[n]) >= 0)
    return f"Node by time; highest means in {unit}: {shown or 'nothing measured'}."


def slo_ratio(
    series: wire.Series, p: Palette, *, zone: tzinfo, marks: Sequence[Mark] = ()
) -> Figure:
    """TTFT and TBT as observed / limit on a log axis: above 1 the limit is missed.

    `marks` are changes: a line each, with what it was on a sign at the limit.
    """
    times = [fmt.axis_time(point.at, zone) for point in series.points]
    traces = []
    for name, limit, pick, colour in (
        ("TTFT", series.ttft_slo_s, lambda s: s.ttft_s, p.categories[0]),
        ("TBT", series.tbt_slo_s, lambda s: s.tbt_s, p.categories[1]),
    ):
        for q, dash, width in (("p99", "solid", 2.2), ("p50", "dot", 1.4)):
            traces.append(
                _line(f"{name} {q}", times, _ratios(series, pick, q, limit), colour, dash, width)
            )
    traces += [_limit(times, p), _signs(marks, p, zone)]
    changes = f" {len(marks)} changes are marked." if marks else ""
    return {
        "data": traces,
        "layout": layout(
            p,
            height=270,
            margin=room(left=58, above=66),  # the legend has two rows
            shapes=[_mark_line(mark, p, zone) for mark in marks],
            yaxis={
                "type": "log",
                "tickvals": [0.001, 0.01, 0.1, 1, 10, 100],
                "ticktext": ["0.001", "0.01", "0.1", "1 = limit", "10", "100"],
            },
            meta=f"Observed latency as a share of its limit; above 1 the limit is missed.{changes}",
        ),
    }


def _signs(marks: Sequence[Mark], p: Palette, zone: tzinfo) -> Figure:
    """Signs at the limit that say what was changed; the trace is there without any, so that the
    others keep their places."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "changes",
        "x": [fmt.axis_time(mark.at, zone) for mark in marks],
        "y": [1] * len(marks),
        "hovertext": [mark.words for mark in marks],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {"symbol": "diamond", "size": 10, "color": p.text},
        "showlegend": bool(marks),
    }


def _mark_line(mark: Mark, p: Palette, zone: tzinfo) -> Figure:
    at = fmt.axis_time(mark.at, zone)
    return {
        "type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1,
        "line": {"color": p.text, "width": 1, "dash": "dot"},
    }  # fmt: skip


def _limit(times: Sequence[str], p: Palette) -> Figure:
    """The line at 1, as a trace: so it is always in view without a range of its own.

    A range that follows the data would undo the reader's zoom at each refresh.
    """
    ends = [times[0], times[-1]] if times else []
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "limit",
        "x": ends,
        "y": [1] * len(ends),
        "line": {"color": p.bad, "width": 1.5, "dash": "dash"},
        "hoverinfo": "skip",
    }


def _ratios(
    series: wire.Series,
    pick: Callable[[wire.SeriesPoint], wire.Quantiles | None],
    q: str,
    limit_s: float,
) -> list[float | None]:
    found = [pick(point) for point in series.points]
    return [None if v is None or not limit_s else _rounded(getattr(v, q) / limit_s) for v in found]


def reuse(series: wire.Series, p: Palette, *, zone: tzinfo) -> Figure:
    """Cache reuse over time: reachable, achieved, reported by the engines (percent)."""
    times = [fmt.axis_time(point.at, zone) for point in series.points]
    lines = (
        ("reachable", [s.hit_reachable for s in series.points], p.categories[3], "dash"),
        ("achieved", [s.hit_achieved for s in series.points], p.categories[0], "solid"),
        ("reported by engines", [s.hit_reported for s in series.points], p.categories[2], "dot"),
    )
    traces = [
        _line(name, times, [None if v is None else _rounded(100 * v) for v in values], c, dash, 2.0)
        for name, values, c, dash in lines
    ]
    return {
        "data": traces,
        "layout": layout(
            p,
            height=270,
            margin=room(),
            yaxis={"range": [0, 102], "ticksuffix": " %"},
            meta="Share of prompt tokens found in caches: reachable, achieved, reported.",
        ),
    }


def traffic(series: wire.Series, p: Palette, *, zone: tzinfo) -> Figure:
    """Requests per second over time, split by what became of them at once."""
    times = [fmt.axis_time(point.at, zone) for point in series.points]
    step = series.step_s or 1.0
    bars = (
        ("placed", [s.requests - s.rejected for s in series.points], p.categories[0], ""),
        ("refused", [s.rejected for s in series.points], p.categories[1], "/"),
        ("failed on engine", [s.errors for s in series.points], p.bad, "x"),
    )
    traces = [
        {
            "type": "bar",
            "name": name,
            "x": times,
            "y": [_rounded(v / step) for v in values],
            "marker": {"color": colour, "pattern": {"shape": shape}, "line": {"width": 0}},
            "hovertemplate": "%{y} /s",
        }
        for name, values, colour, shape in bars
    ]
    return {
        "data": traces,
        "layout": layout(
            p,
            height=270,
            margin=room(),
            barmode="stack",
            bargap=0.15,
            yaxis={"rangemode": "tozero", "ticksuffix": " /s"},
            meta="Requests per second: placed, refused, failed on an engine.",
        ),
    }


def _line(
    name: str,
    x: Sequence[str],
    y: Sequence[float | None],
    colour: str,
    dash: str,
    width: float,
) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"color": colour, "dash": dash, "width": width},
        "marker": {"size": 3, "color": colour},
        "connectgaps": False,
    }


def _rounded(value: float) -> float:
    """Four significant digits: less to send."""
    return float(f"{value:.4g}")

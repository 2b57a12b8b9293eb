"""Charts of one node, as plain Plotly dictionaries. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo

from core import wire
from dashboard.parts import format as fmt
from dashboard.parts.theme import Figure, Palette, layout, room

HEIGHT = 250


def shares_chart(readings: wire.Readings, p: Palette, *, zone: tzinfo) -> Figure:
    """KV use and reuse over time, percent."""
    x = [fmt.axis_time(point.at, zone) for point in readings.points]
    kv = [_percent(point.kv_usage) for point in readings.points]
    hits = [_percent(point.hit_share) for point in readings.points]
    return {
        "data": [
            _line("KV use", x, kv, p.categories[0], "solid"),
            _line("reuse, as it reports", x, hits, p.categories[2], "dot"),
        ],
        "layout": layout(
            p,
            height=HEIGHT,
            margin=room(),
            yaxis={"range": [0, 103], "ticksuffix": " %"},
            meta=f"KV use last {_last(kv, ' %')}, reuse last {_last(hits, ' %')}",
        ),
    }


def batch_chart(readings: wire.Readings, p: Palette, *, zone: tzinfo) -> Figure:
    """Running and waiting requests over time, as the engine reports them."""
    x = [fmt.axis_time(point.at, zone) for point in readings.points]
    running = [point.running for point in readings.points]
    waiting = [point.waiting for point in readings.points]
    return {
        "data": [
            _line("running", x, running, p.categories[0], "solid"),
            _line("waiting", x, waiting, p.categories[1], "dash"),
        ],
        "layout": layout(
            p,
            height=HEIGHT,
            margin=room(),
            yaxis={"rangemode": "tozero", **_whole([*running, *waiting])},
            meta=f"Running last {_last(running)}, waiting last {_last(waiting)}",
        ),
    }


def load_chart(series: wire.Series, node_id: str, p: Palette, *, zone: tzinfo) -> Figure:
    """Load and requests placed on the node, from the service's memory."""
    x = [fmt.axis_time(point.at, zone) for point in series.points]
    load = [_percent(point.load.get(node_id)) for point in series.points]
    placed = [point.per_node.get(node_id, 0) for point in series.points]
    bars = {
        "type": "bar", "name": "requests placed", "x": x, "y": placed, "yaxis": "y2",
        "marker": {"color": p.line},
    }  # fmt: skip
    return {
        "data": [bars, _line("load", x, load, p.categories[0], "solid")],
        "layout": layout(
            p,
            height=HEIGHT,
            margin=room(),
            yaxis={"range": [0, 103], "ticksuffix": " %"},
            yaxis2={
                "overlaying": "y", "side": "right", "rangemode": "tozero", "showgrid": False,
                "automargin": True, "tickfont": {"color": p.muted, "size": 12},
                **_whole(placed),
            },
            meta=f"Load last {_last(load, ' %')}; {sum(placed)} requests placed",
        ),
    }  # fmt: skip


def reading_rows(readings: wire.Readings) -> list[dict[str, object]]:
    """The table twin, newest first."""
    return [
        {
            "Time": point.at,
            "KV use": point.kv_usage,
            "Running": point.running,
            "Waiting": point.waiting,
            "Reuse": point.hit_share,
            "Preempted": point.preempted,
        }
        for point in reversed(readings.points)
    ]


def _whole(counts: Sequence[int | None]) -> dict[str, object]:
    """Ticks of an axis of requests: whole ones, four at most."""
    most = max((count or 0 for count in counts), default=0)
    return {"tickmode": "linear", "tick0": 0, "dtick": max(-(-most // 4), 1)}


def _line(name: str, x: Sequence[str], y: Sequence[float | None], colour: str, dash: str) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"color": colour, "dash": dash, "width": 2},
        "marker": {"size": 3, "color": colour},
        "connectgaps": False,
    }


def _percent(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 1)


def _last(values: Sequence[float | None], unit: str = "") -> str:
    found = next((v for v in reversed(values) if v is not None), None)
    return "not reported" if found is None else f"{found:g}{unit}"

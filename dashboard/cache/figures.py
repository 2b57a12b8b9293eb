"""Charts of the Cache page, as plain Plotly dictionaries. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, tzinfo
from itertools import pairwise

from core import wire
from dashboard.cache import models as cm
from dashboard.parts import format as fmt
from dashboard.parts.theme import Figure, Palette, axis_title, layout, room

TREE_PX = 560
REPLICATION_PX = 280
CELLS_MAX = 500
"""More than this takes the browser seconds."""


def icicle(cells: Sequence[wire.TreeCellView], mode: str, p: Palette) -> Figure:
    """The tree from left (a prompt's beginning) to right; area is tokens, colour the mode."""
    kept = _closed(cells[:CELLS_MAX])
    classes = [0 if cm.is_others(c) or not c.parent else cm.colour_class(c, mode) for c in kept]
    top = "" if sum(not c.parent for c in kept) == 1 else "start"
    trace = {
        "type": "icicle",
        "ids": [c.key for c in kept],
        "labels": [_label(c) for c in kept],
        "parents": [c.parent or top for c in kept],
        "values": [_area(c, kept) for c in kept],
        "branchvalues": "remainder",
        "hovertext": [cm.cell_words(c) for c in kept],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "tiling": {"orientation": "h", "pad": 1},
        "pathbar": {"visible": False},
        "sort": False,
        "marker": {
            "colors": [_fill(c, n, p) for c, n in zip(kept, classes, strict=True)],
            "line": {"width": 1, "color": p.page},
        },
        "insidetextfont": {"color": [_ink(n, c, p) for c, n in zip(kept, classes, strict=True)]},
        "textposition": "middle left",
    }
    if top:
        for name, value in (
            ("ids", top), ("labels", "all prompts"), ("parents", ""), ("values", 0),
            ("hovertext", "everything the index lists"),
        ):  # fmt: skip
            trace[name].insert(0, value)  # type: ignore[attr-defined]
        trace["marker"]["colors"].insert(0, p.panel)  # type: ignore[index]
        trace["insidetextfont"]["color"].insert(0, p.text)  # type: ignore[index]
    shown = sum(1 for c in kept if c.parent and not cm.is_others(c))
    return {
        "data": [trace],
        "layout": layout(
            p,
            height=TREE_PX,
            margin={"l": 0, "r": 0, "t": 0, "b": 0},
            hovermode="closest",
            uniformtext={"minsize": 10, "mode": "hide"},
            meta=f"{shown} runs of blocks, coloured by {mode}; the table below lists them",
        ),
    }


def _closed(cells: Sequence[wire.TreeCellView]) -> list[wire.TreeCellView]:
    """Cells whose parents are there: a cell without would blank the chart."""
    seen: set[str] = set()
    kept = []
    for c in cells:
        if c.key not in seen and (not c.parent or c.parent in seen):
            seen.add(c.key)
            kept.append(c)
    return kept


def _area(cell: wire.TreeCellView, cells: Sequence[wire.TreeCellView]) -> int:
    """Tokens; what was left out gets the area of the smallest cell beside it."""
    if not cm.is_others(cell):
        return cell.tokens
    beside = [c.tokens for c in cells if c.parent == cell.parent and c.tokens]
    return min(beside, default=1)


def _label(cell: wire.TreeCellView) -> str:
    if cm.is_others(cell) or not cell.parent:
        return cell.label if len(cell.label) != 16 else f"{cell.label[:8]}…"
    return f"{fmt.count(cell.tokens)} tokens"


def _fill(cell: wire.TreeCellView, number: int, p: Palette) -> str:
    return p.panel if cm.is_others(cell) or not cell.parent else p.heat[number]


def _ink(number: int, cell: wire.TreeCellView, p: Palette) -> str:
    """Dark on pale fills, pale on dark ones, in either theme."""
    if cm.is_others(cell) or not cell.parent:
        return p.text
    return ink(p.heat[number])


def ink(fill: str) -> str:
    """Black or white, whichever stands out more on a fill (WCAG relative luminance)."""
    channels = [int(fill[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if (light + 0.05) / 0.05 > 1.05 / (light + 0.05) else "#ffffff"


def legend(mode: str, p: Palette) -> list[tuple[str, str]]:
    """(colour, words) of the classes."""
    return [(p.heat[i], step.words) for i, step in enumerate(cm.SCALES[mode])]


def replication(found: wire.Replication, p: Palette, *, zone: tzinfo) -> Figure:
    """Copies of a block on average, and distinct blocks, over time."""
    shown = _with_gaps(found.points)
    x = [fmt.axis_time(at, zone) for at, _ in shown]
    mean = [round(q.copies / q.blocks, 3) if q and q.blocks else None for _, q in shown]
    blocks = [q.blocks if q else None for _, q in shown]
    line = {"type": "scatter", "mode": "lines+markers", "x": x, "connectgaps": False}
    last = next((m for m in reversed(mean) if m is not None), None)
    return {
        "data": [
            {
                **line, "name": "copies of a block, mean", "y": mean, "marker": {"size": 3},
                "line": {"color": p.categories[0], "width": 2},
            },
            {
                **line, "name": "distinct blocks", "y": blocks, "yaxis": "y2",
                "marker": {"size": 3},
                "line": {"color": p.categories[1], "width": 2, "dash": "dot"},
            },
        ],
        "layout": layout(
            p,
            height=REPLICATION_PX,
            margin=room(right=54),
            yaxis={"rangemode": "tozero"},
            yaxis2={
                "overlaying": "y", "side": "right", "rangemode": "tozero", "showgrid": False,
                "automargin": True, "tickfont": {"color": p.muted, "size": 12},
            },
            meta="No sample yet" if last is None else f"{last:g} copies of a block on average now",
        ),
    }  # fmt: skip


def _with_gaps(
    points: Sequence[wire.ReplicationPoint],
) -> list[tuple[datetime, wire.ReplicationPoint | None]]:
    """Samples with nothing between two that lie far apart: no line is drawn over an outage."""
    apart = [b.at - a.at for a, b in pairwise(points)]
    far = 3 * sorted(apart)[len(apart) // 2] if apart else timedelta.max
    out: list[tuple[datetime, wire.ReplicationPoint | None]] = []
    for i, point in enumerate(points):
        if i and apart[i - 1] > far > timedelta(0):
            out.append((points[i - 1].at + apart[i - 1] / 2, None))
        out.append((point.at, point))
    return out


def holders_chart(found: wire.HotPrefixes, p: Palette) -> Figure:
    """How many of the hottest prefixes have how many holders."""
    counts: dict[int, int] = {}
    for prefix in found.prefixes:
        counts[len(prefix.holders)] = counts.get(len(prefix.holders), 0) + 1
    most = max(counts, default=1)
    x = list(range(most + 1))
    return {
        "data": [
            {
                "type": "bar", "x": x, "y": [counts.get(n, 0) for n in x],
                "marker": {"color": [p.bad if n == 0 else p.categories[0] for n in x]},
                "hovertemplate": "%{y} prefixes on %{x} nodes<extra></extra>",
            }
        ],
        "layout": layout(
            p,
            height=REPLICATION_PX,
            hovermode="closest",
            bargap=0.2,
            xaxis={"title": axis_title(p, "nodes that hold it"), "dtick": max(1, (most + 1) // 12)},
            yaxis={"title": axis_title(p, "hot prefixes"), "rangemode": "tozero"},
            meta=f"{counts.get(0, 0)} of {len(found.prefixes)} hot prefixes are held by nobody",
        ),
    }  # fmt: skip


def replication_rows(found: wire.Replication) -> list[dict[str, object]]:
    """The table twin, newest first."""
    return [
        {
            "Time": q.at,
            "Distinct blocks": q.blocks,
            "Copies": q.copies,
            "Copies of a block": round(q.copies / q.blocks, 3) if q.blocks else None,
            "Given up": q.evicted,
        }
        for q in reversed(found.points)
    ]

"""Requests from tenants through prefill to decode, as a bounded graph and as a table. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from core import wire
from dashboard.parts.theme import Figure, Palette, layout

TENANTS_SHOWN = 8
NODES_SHOWN = 16
"""Per column; the rest is one box. At most 8 x 17 + 17 x 17 links."""
REFUSED = "refused"
OTHER_NODES = "other nodes"
NO_TENANT = "(no tenant)"
MEASURES = ("requests", "prompt tokens", "tokens computed")


@dataclass(frozen=True, slots=True)
class Graph:
    """Boxes of three columns and the links between neighbouring ones."""

    boxes: tuple[tuple[int, str], ...]
    """(column, name), in the order of the links' numbers."""
    links: tuple[tuple[int, int, int], ...]
    """(from, to, amount)."""
    total: int


def measured(g: wire.ShareView, measure: str) -> int:
    """What a group counts for."""
    if measure == MEASURES[0]:
        return g.decisions
    return g.prompt_tokens - (g.match_tokens if measure == MEASURES[2] else 0)


def graph(shares: wire.Shares, measure: str) -> Graph:
    """The flow; the smallest boxes of each column are put together."""
    amounts: list[Counter[str]] = [Counter(), Counter(), Counter()]
    for g in shares.groups:
        for column, name in enumerate(_way(g)):
            if name:
                amounts[column][name] += measured(g, measure)
    names = [
        _merging(amounts[0], TENANTS_SHOWN, "other tenants"),
        _merging(amounts[1], NODES_SHOWN, OTHER_NODES),
        _merging(amounts[2], NODES_SHOWN, OTHER_NODES),
    ]
    links: Counter[tuple[tuple[int, str], tuple[int, str]]] = Counter()
    for g in shares.groups:
        way = [(c, names[c][name]) for c, name in enumerate(_way(g)) if name]
        for one, other in pairwise(way):
            links[one, other] += measured(g, measure)
    boxes = sorted({box for link, amount in links.items() if amount for box in link})
    number = {box: i for i, box in enumerate(boxes)}
    return Graph(
        boxes=tuple(boxes),
        links=tuple(
            (number[one], number[other], amount)
            for (one, other), amount in sorted(links.items())
            if amount
        ),
        total=sum(amounts[0].values()),
    )


def _way(g: wire.ShareView) -> tuple[str, str, str]:
    tenant = g.tenant or NO_TENANT
    if g.others:
        return tenant, OTHER_NODES, OTHER_NODES
    if not g.prefill_node:
        return tenant, REFUSED, ""
    return tenant, g.prefill_node, g.decode_node or g.prefill_node


def _merging(amounts: Mapping[str, int], most: int, rest: str) -> dict[str, str]:
    """Name -> the name of its box: its own for the largest, `rest` for the others."""
    names = [name for name in amounts if name != rest]
    ranked = sorted(names, key=lambda name: (name != REFUSED, -amounts[name], name))
    kept = set(ranked if len(amounts) <= most else ranked[: most - 1])
    return {name: name if name in kept else rest for name in amounts}


def sankey(found: Graph, measure: str, p: Palette) -> Figure:
    """The flow as a Sankey diagram; links carry their tenant's colour, then grey."""
    tenants = [name for column, name in found.boxes if column == 0]
    colour = {name: p.categories[i % len(p.categories)] for i, name in enumerate(tenants)}
    columns = max((column for column, _ in found.boxes), default=0)
    height = max(300, 60 + 34 * max(_sizes(found.boxes).values(), default=1))
    return {
        "data": [
            {
                "type": "sankey",
                "arrangement": "snap",
                "valueformat": ",.0f",
                "valuesuffix": f" {measure}",
                "node": {
                    "label": [name for _, name in found.boxes],
                    "color": [_box_colour(box, colour, p) for box in found.boxes],
                    "pad": 14,
                    "thickness": 16,
                    "line": {"width": 0},
                },
                "link": {
                    "source": [a for a, _, _ in found.links],
                    "target": [b for _, b, _ in found.links],
                    "value": [v for _, _, v in found.links],
                    "color": [
                        _link_colour(found.boxes[a], found.boxes[b], colour, p)
                        for a, b, _ in found.links
                    ],
                },
                "textfont": {"color": p.text, "size": 13, "shadow": "none"},
            }
        ],
        "layout": layout(
            p,
            height=min(height, 640),
            hovermode="closest",
            margin={"l": 4, "r": 4, "t": 12, "b": 12},
            meta=f"{found.total:,} {measure} in {columns + 1} columns; the table below lists them",
        ),
    }


def _sizes(boxes: Iterable[tuple[int, str]]) -> Counter[int]:
    return Counter(column for column, _ in boxes)


def _box_colour(box: tuple[int, str], colour: Mapping[str, str], p: Palette) -> str:
    column, name = box
    if name == REFUSED:
        return p.bad
    return colour[name] if column == 0 else p.accent if column == 1 else p.muted


def _link_colour(
    one: tuple[int, str], other: tuple[int, str], colour: Mapping[str, str], p: Palette
) -> str:
    base = p.bad if other[1] == REFUSED else colour[one[1]] if one[0] == 0 else p.muted
    red, green, blue = (int(base[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.32)"


def coverage(shares: wire.Shares, since: str) -> str:
    """How many requests are shown, and whether these are all; `since`: the oldest one's time."""
    if shares.complete:
        return f"all {shares.decisions:,} requests of the window"
    return f"the newest {shares.decisions:,} requests, back to {since}"


def rows(shares: wire.Shares) -> list[dict[str, object]]:
    """The table twin: one row a tenant, model and pair of nodes, the largest first."""
    return [
        {
            "Tenant": g.tenant or NO_TENANT,
            "Model": g.model,
            "Prefill": OTHER_NODES if g.others else g.prefill_node or "✕ refused",
            "Decode": OTHER_NODES if g.others else g.decode_node or g.prefill_node,
            "Requests": g.decisions,
            "Failed": g.failed,
            "Limits missed": g.slo_missed,
            "Prompt tokens": g.prompt_tokens,
            "Reuse": g.match_tokens / g.prompt_tokens if g.prompt_tokens else None,
        }
        for g in shares.groups
    ]

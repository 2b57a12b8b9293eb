"""What is different about a set of decisions: shares of every value, here against the rest. Pure.

As in the "bubble up" of observability tools: for each dimension and value, its share among the
selected decisions against its share among the others, the most divergent first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from core import wire
from dashboard.parts import format as fmt
from dashboard.parts.theme import Figure, Palette, layout

LEAST = 5
"""Fewer decisions on a side are no comparison."""
NOTABLE = 0.05
"""Smaller differences of shares are not shown."""
SHOWN = 15


@dataclass(frozen=True, slots=True)
class Difference:
    """One value of one dimension."""

    dimension: str
    value: str
    selected: float
    """Share among the selected decisions."""
    rest: float

    @property
    def gap(self) -> float:
        """How much more of it the selected ones have."""
        return self.selected - self.rest


def _bucket(value: float, edges: Sequence[float]) -> str:
    low = 0.0
    for high in edges:
        if value < high:
            return f"{fmt.count(low)} to {fmt.count(high)}"
        low = high
    return f"{fmt.count(low)} or more"


def _hit(row: wire.DecisionRow) -> str:
    if not row.prompt_tokens:
        return fmt.NONE
    share = row.match_tokens / row.prompt_tokens
    for high, name in ((0.01, "none"), (0.25, "below 25 %"), (0.5, "25 to 50 %"),
                       (0.75, "50 to 75 %")):  # fmt: skip
        if share < high:
            return name
    return "75 % or more"


def _outcome(row: wire.DecisionRow) -> str:
    if not row.routed:
        return f"refused: {row.code}"
    if row.outcome is None:
        return "still open"
    missed = f", missed {row.outcome.slo_missed}" if row.outcome.slo_missed else ""
    return f"{row.outcome.kind}{missed}"


_LENGTHS = (256, 1024, 4096, 16384, 65536)
DIMENSIONS: tuple[tuple[str, Callable[[wire.DecisionRow], str]], ...] = (
    ("Prefill node", lambda r: r.prefill_node or "none"),
    ("Decode node", lambda r: r.decode_node or "none"),
    ("Tenant", lambda r: r.tenant or "none"),
    ("Model", lambda r: r.model),
    ("Adapter", lambda r: r.adapter or "none"),
    ("Policy", lambda r: r.policy),
    ("Revision", lambda r: str(r.revision)),
    ("Cache signal", lambda r: r.signal),
    ("Outcome", _outcome),
    ("Attempts", lambda r: str(r.retries + 1)),
    ("Fetched from another node", lambda r: "yes" if r.fetch_from else "no"),
    ("Prompt tokens", lambda r: _bucket(r.prompt_tokens, _LENGTHS)),
    ("Cache hit", _hit),
)
_FIGURES: tuple[tuple[str, Callable[[wire.DecisionRow], float | None], Callable[..., str]], ...] = (
    ("Prompt tokens", lambda r: float(r.prompt_tokens), fmt.count),
    ("Cache hit", lambda r: r.match_tokens / r.prompt_tokens if r.prompt_tokens else None,
     lambda v: fmt.share(v, 1)),
    ("Reachable hit", lambda r: r.reachable_tokens / r.prompt_tokens if r.prompt_tokens else None,
     lambda v: fmt.share(v, 1)),
    ("TTFT predicted", lambda r: r.predicted_ttft_s if r.routed else None, fmt.seconds),
    ("Queue predicted", lambda r: r.predicted_queue_s if r.routed else None, fmt.seconds),
    ("TTFT observed", lambda r: r.outcome.ttft_s if r.outcome else None, fmt.seconds),
    ("TBT observed", lambda r: r.outcome.tbt_s if r.outcome else None, fmt.seconds),
)  # fmt: skip


def rest_of(
    everything: Sequence[wire.DecisionRow], selected: Sequence[wire.DecisionRow]
) -> list[wire.DecisionRow]:
    """The decisions that were not selected."""
    ids = {row.id for row in selected}
    return [row for row in everything if row.id not in ids]


def differences(
    selected: Sequence[wire.DecisionRow], rest: Sequence[wire.DecisionRow]
) -> list[Difference]:
    """Values whose share differs notably, most divergent first; empty with too few decisions."""
    if len(selected) < LEAST or len(rest) < LEAST:
        return []
    found = []
    for name, of in DIMENSIONS:
        here, there = Counter(map(of, selected)), Counter(map(of, rest))
        for value in {*here, *there}:
            d = Difference(name, value, here[value] / len(selected), there[value] / len(rest))
            if abs(d.gap) >= NOTABLE:
                found.append(d)
    return sorted(found, key=lambda d: (-abs(d.gap), d.dimension, d.value))[:SHOWN]


def difference_rows(found: Sequence[Difference]) -> list[dict[str, object]]:
    """The table twin of the chart."""
    return [
        {
            "Dimension": d.dimension,
            "Value": d.value,
            "Selected": fmt.share(d.selected, 1),
            "The rest": fmt.share(d.rest, 1),
            "In words": "▲ more often here" if d.gap > 0 else "▼ more seldom here",
            "Times": fmt.digits(d.selected / d.rest) if d.rest else "only here",
        }
        for d in found
    ]


def figure_rows(
    selected: Sequence[wire.DecisionRow], rest: Sequence[wire.DecisionRow]
) -> list[dict[str, object]]:
    """Medians of what is measured, here against the rest."""
    rows: list[dict[str, object]] = []
    for name, of, show in _FIGURES:
        a = [v for r in selected if (v := of(r)) is not None]
        b = [v for r in rest if (v := of(r)) is not None]
        rows.append(
            {
                "Median of": name,
                "Selected": show(median(a)) if a else fmt.NONE,
                "The rest": show(median(b)) if b else fmt.NONE,
            }
        )
    return rows


def difference_figure(found: Sequence[Difference], p: Palette) -> Figure:
    """Two bars a value: its share among the selected, and among the rest."""
    labels = [f"{d.dimension}: {d.value}" for d in found]
    bars = [
        {
            "type": "bar", "orientation": "h", "name": name, "y": labels, "x": values,
            "marker": {"color": colour, "pattern": {"shape": shape}},
            "hovertemplate": "%{x} %",
        }
        for name, values, colour, shape in (
            ("selected", [round(100 * d.selected, 1) for d in found], p.categories[0], ""),
            ("the rest", [round(100 * d.rest, 1) for d in found], p.categories[4], "/"),
        )
    ]  # fmt: skip
    return {
        "data": bars,
        "layout": layout(
            p,
            height=90 + 34 * max(len(found), 2),
            barmode="group",
            hovermode="y unified",
            showlegend=True,
            xaxis={"ticksuffix": " %", "range": [0, 100]},
            yaxis={"type": "category", "autorange": "reversed", "showgrid": False},
            meta="; ".join(
                f"{lab}: {fmt.share(d.selected)} here, {fmt.share(d.rest)} elsewhere"
                for lab, d in zip(labels, found, strict=True)
            ),
        ),
    }

"""A decision weighed again, as rows, words and a selection that the charts can draw. Pure."""

from __future__ import annotations

from core import wire
from dashboard.parts import format as fmt
from dashboard.tuning.draft import word


def tried_words(told: wire.WhatIfView) -> str:
    """What was changed against the base, as the end of a sentence."""
    parts = [f"`{p}` {word(v[0])} → {word(v[1])}" for p, v in told.changes.items() if len(v) == 2]
    return f", with {', '.join(parts)}" if parts else ", unchanged"


def as_selection(told: wire.WhatIfView) -> wire.SelectionView:
    """The candidates as any other selection."""
    return wire.SelectionView(
        sense=told.sense,
        size=len(told.candidates),
        candidates=[
            wire.CandidateView(
                rank=c.rank, node=c.node, total=c.total, chosen=c.chosen, inputs={}, terms=c.terms
            )
            for c in told.candidates
        ],
    )


def what_if_rows(told: wire.WhatIfView) -> list[dict[str, object]]:
    """Candidates, best first, with what the record said."""
    names = list(dict.fromkeys(name for c in told.candidates for name in c.terms))
    return [
        {
            "Rank": c.rank,
            "Node": c.node,
            "Mark": _mark(c),
            "Total": _figure(c.total),
            "Recorded total": _figure(c.recorded_total),
            **{f"term: {name}": _figure(c.terms.get(name)) for name in names},
            "TTFT predicted": fmt.seconds(c.ttft_s),
            "Match tokens": c.match_tokens,
        }
        for c in told.candidates
    ]


def _mark(c: wire.WhatIfCandidate) -> str:
    if c.chosen and c.recorded:
        return "✓ chosen, as recorded"
    if c.chosen:
        return "✓ would be chosen"
    return "○ was chosen" if c.recorded else ""


def _figure(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")

"""Everything that changed, on one time line: acts, revisions and transitions as sentences. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo

from core import wire
from dashboard.alerts.evidence import alert_evidence
from dashboard.breaker.models import evidence_words
from dashboard.parts import format as fmt
from dashboard.parts.theme import Figure, Palette, layout
from dashboard.tuning.models import changes_words

LANES: dict[str, tuple[str, ...]] = {
    "Configuration": ("tunables", "guard", "canary", "shadow"),
    "Breakers": ("node_breaker", "global_breaker", "panic", "hotspot"),
    "Nodes": ("node", "engine", "health"),
    "Cache signal": ("trust",),
    "Migrations": ("migration",),
    "Lab": ("lab",),
    "Identity": ("identity", "user", "token", "auth"),
    "Alerts": ("alert",),
    "Service": ("service",),
}
"""Lane of the time line -> first parts of the kinds in it."""
OTHER = "Other"
ALL = "all"
_SYMBOLS = tuple("circle diamond square triangle-up cross x star pentagon hexagon".split())
_HIDDEN = frozenset(
    "author actor reason changes scheduled revision before cause base kind evidence".split()
)
"""Told elsewhere in the row; a guard's evidence is its reason."""
WORDS_MAX = 220


def lane_of(kind: str) -> str:
    """Lane of an event's kind."""
    first = kind.partition(".")[0]
    return next((lane for lane, firsts in LANES.items() if first in firsts), OTHER)


def kinds_of(lane: str) -> list[str]:
    """Patterns of the history's filter for a lane; empty asks for everything."""
    return [f"{first}.*" for first in LANES.get(lane, ())]


def who(e: wire.EventView) -> str:
    """Who did it; empty where it moved by itself."""
    return str(e.data.get("author") or e.data.get("actor") or "")


def sentence(e: wire.EventView) -> str:
    """What happened, in a line."""
    first, _, what = e.kind.partition(".")
    revision = e.data.get("revision")
    name = what.replace("_", " ")
    if first == "tunables":
        live = f"Revision {revision}: " if revision else ""
        return f"{live}{name}"
    if first == "alert":
        return f"{e.data.get('alert', 'alert')}: {name}"
    if e.kind == "engine.restarted" and e.data.get("cause") == "connection_refused":
        return f"{e.node}: engine gone, nobody listens"
    if e.kind == "node.running" and e.data.get("before") == "running":
        return f"{e.node}: its cache and its requests are taken for lost"
    if e.node:
        return f"{e.node}: {first.replace('_', ' ')} {name}"
    group = str(e.data.get("group", ""))[:8]
    return f"{first.replace('_', ' ')} {name}" + (f" ({group})" if group else "")


def details(e: wire.EventView) -> str:
    """Changes, cause and evidence, in a line."""
    parts = []
    changes = e.data.get("changes")
    if isinstance(changes, dict) and changes and all(_pair(v) for v in changes.values()):
        parts.append(changes_words(changes))
    before = str(e.data.get("before", "")).replace("_", " ")
    cause = str(e.data.get("cause", "")).replace("_", " ")
    parts += [f"was {before}" if before else "", cause]
    rest = {k: v for k, v in e.data.items() if k not in _HIDDEN}
    if e.kind.startswith("alert."):
        parts.append(_alert(rest, over=e.kind.endswith(".resolved")))
    else:
        parts.append(evidence_words(rest))
    text = "; ".join(p for p in parts if p)
    return text if len(text) <= WORDS_MAX else text[: WORDS_MAX - 1] + "…"


def _alert(data: dict[str, object], *, over: bool) -> str:
    """What was alerted, how far from the limit, and what stood behind it; when over, at last."""
    value, limit = data.get("value"), data.get("limit")
    far = ""
    if isinstance(value, (int, float)) and isinstance(limit, (int, float)):
        last = "at last " if over else ""
        far = f"{last}{fmt.figure(value)} where the limit is {fmt.figure(limit)}"
    found = alert_evidence(str(data.get("alert", "")), data)
    return "; ".join(p for p in (str(data.get("summary", "")), far, found) if p)


def _pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2


def change_rows(events: Sequence[wire.EventView]) -> list[dict[str, object]]:
    """The table, newest first as it comes."""
    return [
        {
            "Time": e.at,
            "Lane": lane_of(e.kind),
            "What": sentence(e),
            "By": who(e) or "by itself",
            "Reason": str(e.data.get("reason", "")),
            "Details": details(e),
            "Kind": e.kind,
        }
        for e in events
    ]


def matching(
    events: Sequence[wire.EventView], *, by: str = "", text: str = ""
) -> list[wire.EventView]:
    """Events whose author and words hold the texts."""
    by, text = by.strip().lower(), text.strip().lower()
    return [
        e
        for e in events
        if by in (who(e) or "by itself").lower()
        and text in f"{sentence(e)} {details(e)} {e.data.get('reason', '')} {e.kind}".lower()
    ]


def timeline(events: Sequence[wire.EventView], p: Palette, *, zone: tzinfo) -> Figure:
    """One mark an event, by lane; what people did is filled, the rest is open."""
    lanes = [lane for lane in (*LANES, OTHER) if any(lane_of(e.kind) == lane for e in events)]
    traces = []
    for lane in lanes:
        mine = [e for e in events if lane_of(e.kind) == lane]
        i = [*LANES, OTHER].index(lane)
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": lane,
                "x": [fmt.axis_time(e.at, zone) for e in mine],
                "y": [lane] * len(mine),
                "text": [_hover(e) for e in mine],
                "marker": {
                    "size": 11, "color": p.categories[i % len(p.categories)],
                    "symbol": [_SYMBOLS[i] if who(e) else f"{_SYMBOLS[i]}-open" for e in mine],
                    "line": {"width": 1.5},
                },
                "hovertemplate": "%{x|%H:%M:%S} %{text}<extra></extra>",
            }
        )  # fmt: skip
    counts = [f"{lane} {sum(lane_of(e.kind) == lane for e in events)}" for lane in lanes]
    return {
        "data": traces,
        "layout": layout(
            p,
            height=80 + 34 * max(len(lanes), 2),
            hovermode="closest",
            showlegend=False,
            yaxis={"type": "category", "autorange": "reversed"},
            meta=f"Events by lane: {', '.join(counts) or 'none'}.",
        ),
    }


def _hover(e: wire.EventView) -> str:
    reason = str(e.data.get("reason", ""))
    by = f" by {who(e)}" if who(e) else ""
    return f"{sentence(e)}{by}" + (f": {reason[:80]}" if reason else "")

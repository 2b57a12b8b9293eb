"""Breakers, the hotspot detector's evidence, and transitions as rows and words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core import wire
from dashboard.overview.models import Tile
from dashboard.parts import format as fmt
from dashboard.parts.theme import Figure, Level, Palette, layout
from dashboard.tuning.draft import word

GLOBAL = "global breaker"
STATES: dict[str, tuple[Level, str]] = {
    "closed": ("ok", "closed"),
    "open": ("bad", "open"),
    "half_open": ("warn", "half open"),
    "tripped": ("bad", "tripped by hand"),
    "held": ("warn", "held closed"),
}
MEANS: dict[str, tuple[str, str]] = {
    "closed": ("the policy places every request", "takes requests"),
    "open": ("requests go round robin until the timer ends", "takes no requests until the timer"),
    "half_open": ("the policy is tried again; a firing opens it", "takes a few trial requests"),
    "tripped": ("requests go round robin", "takes no requests"),
    "held": ("nothing opens it until the end", "stays in whatever its errors say"),
}
"""State -> what it means for the global breaker, for a node's."""
ACTIONS = {
    "trip": "Trip: shut it",
    "reset": "Reset: close it",
    "hold": "Hold: keep it closed",
}
MACHINES = {
    "all": "",
    "node breakers": "node_breaker.*",
    "global breaker": "global_breaker.*",
    "hotspot detector": "hotspot.*",
    "panic": "panic.*",
}
"""Choice of what moved -> kinds of its events."""
MINUTES_MAX = 24 * 60
_RULES: dict[str, str] = {
    "hotspot.enabled": "Detector",
    "hotspot.window_s": "Detector: sliding window",
    "hotspot.requests_min": "Stage 1: least requests of a group",
    "hotspot.cooldown_s": "Stage 2: holders leave the candidates for",
    "hotspot.trips_to_open": "Firings in a row that open the global breaker",
    "hotspot.open_s": "Global breaker: first open time",
    "breaker.consecutive_failures": "Node: failures in a row that open",
    "breaker.error_rate": "Node: share of failures that opens",
    "breaker.error_rate_requests_min": "Node: least requests before the share counts",
    "breaker.open_s": "Node: first open time, doubles each time",
    "breaker.half_open_successes": "Node: trial successes that close it",
    "breaker.ejected_share_max": "Most of the fleet that may be out",
    "breaker.panic_share": "Below this share, breakers are ignored",
}
_MACHINES = {
    "node_breaker": "Node breaker",
    "global_breaker": "Global breaker",
    "panic": "Panic",
    "hotspot": "Hotspot detector",
    "trust": "Cache trust",
    "health": "Health",
}


@dataclass(frozen=True, slots=True)
class Act:
    """What an operator is about to do."""

    target: str
    """Empty for the global breaker."""
    action: str
    minutes: float | None

    @property
    def confirm(self) -> str:
        """What is to be typed: tripping takes capacity or the policy away."""
        if self.action != "trip":
            return ""
        return self.target or "ROUND ROBIN"

    @property
    def missing(self) -> str:
        """What still has to be said; empty where the act is complete."""
        if self.action == "hold" and self.minutes is None:
            return "A hold needs an end."
        if self.action == "reset" and self.minutes is not None:
            return "A reset has no end; a hold keeps it closed for a time."
        return ""

    @property
    def words(self) -> str:
        """The act in a sentence."""
        name = f"node {self.target}" if self.target else "the global breaker"
        ends = "until it is reset" if self.minutes is None else f"for {self.minutes:g} min"
        if self.action == "trip":
            return f"Trip {name} {ends}"
        return f"Close {name}" if self.action == "reset" else f"Keep {name} closed {ends}"


def breaker_tile(b: wire.BreakerView) -> Tile:
    """The global breaker."""
    level, name = STATES.get(b.state, ("none", b.state))
    ends = f"ends in {fmt.seconds(b.until_s)}" if b.until_s is not None else "no end set"
    parts = [b.reason, f"by {b.actor}" if b.actor else "", "" if b.state == "closed" else ends]
    means = MEANS.get(b.state, ("", ""))[0]
    return Tile("Global breaker", name, level, means, ", ".join(p for p in parts if p),
                "Open or tripped, requests go round robin whatever the policy")  # fmt: skip


def node_tiles(state: wire.FleetState) -> list[Tile]:
    """How many nodes are out, and why panic may ignore it."""
    t = state.totals
    out = [n for n in state.nodes if n.breaker.state not in ("closed", "held")]
    level: Level = "ok" if not out else "bad" if t.panic else "warn"
    names = fmt.listed([n.id for n in out]) or "every breaker lets requests through"
    return [
        Tile(
            "Nodes out by their breaker", str(len(out)), level, f"of {t.nodes} nodes", names,
            "Open, half open or tripped",
        ),
        Tile(
            "Panic", "on" if t.panic else "off", "bad" if t.panic else "ok",
            "ejections are ignored" if t.panic else "ejections hold",
            f"{t.eligible} of {t.nodes} nodes take requests",
            "With too few nodes left, breakers are ignored: slow beats refused",
        ),
    ]  # fmt: skip


def node_rows(nodes: Sequence[wire.NodeView]) -> list[dict[str, object]]:
    """Every node's breaker, those that are not closed first."""
    ordered = sorted(nodes, key=lambda n: n.breaker.state == "closed")
    return [
        {
            "Node": n.id,
            "Breaker": _state_words(n.breaker.state),
            "Means": _meaning(n),
            "Ends in": fmt.seconds(n.breaker.until_s),
            "Reason": n.breaker.reason,
            "By": n.breaker.actor or ("itself" if n.breaker.state != "closed" else ""),
            "Openings in a row": n.breaker.streak,
        }
        for n in ordered
    ]


def _meaning(n: wire.NodeView) -> str:
    """What a breaker's state means for requests; a closed one lets through what comes at all."""
    if n.breaker.state == "closed" and n.health == "dead":
        return "none: the node is dead"
    if n.breaker.state == "closed" and n.draining:
        return "none: the node drains"
    return MEANS.get(n.breaker.state, ("", ""))[1]


def _state_words(state: str) -> str:
    level, name = STATES.get(state, ("none", state))
    sign = {"ok": "✓", "warn": "▲", "bad": "✕", "none": "○"}[level]
    return f"{sign} {name}"


def rule_rows(items: Sequence[wire.TunableView]) -> list[dict[str, object]]:
    """The thresholds in force, in the order in which they act."""
    known = {item.path: item for item in items}
    return [
        {"Threshold": title, "Value": word(known[p].value, known[p].unit), "Parameter": p}
        for p, title in _RULES.items()
        if p in known
    ]


def group_rows(h: wire.HotspotView) -> list[dict[str, object]]:
    """The detector's counts by prefix group, with what would make it fire."""
    return [
        {
            "Prefix group": g.group,
            "State": {"calm": "✓ calm", "alert": "▲ alert", "filtered": "✕ filtered"}.get(
                g.state, g.state
            ),
            "Requests": g.requests,
            "Share of requests": round(g.share, 4),
            "Holders' share of nodes": round(g.holder_share, 4),
            "Holders": f"{g.holders} of {g.nodes}",
            "In a row on holders": f"{g.run} of {g.run_limit}" if g.run_limit else fmt.NONE,
            "Firings": f"{g.firings} of {h.trips_to_open}",
            "Left out": ", ".join(g.excluded) or fmt.NONE,
            "Ends in": fmt.seconds(g.ends_in_s),
        }
        for g in h.groups
    ]


def group_figure(h: wire.HotspotView, p: Palette) -> Figure:
    """Bars: a group's share of the requests; marks: its holders' share of the nodes.

    A bar beyond its mark asks more of the holders than their share of the fleet: stage 1.
    """
    shown = h.groups[:12]
    names = [f"{g.group[:8]} {g.state}" for g in shown]
    share = [round(100 * g.share, 2) for g in shown]
    holders = [round(100 * g.holder_share, 2) for g in shown]
    bars = {
        "type": "bar", "orientation": "h", "name": "share of requests", "y": names, "x": share,
        "marker": {"color": p.categories[0]}, "hovertemplate": "%{x} % of requests",
    }  # fmt: skip
    marks = {
        "type": "scatter", "mode": "markers", "name": "holders' share of nodes", "y": names,
        "x": holders, "hovertemplate": "holders are %{x} % of the nodes",
        "marker": {"symbol": "line-ns-open", "size": 18, "line": {"width": 3, "color": p.bad}},
    }  # fmt: skip
    told = [f"{n}: {a} % of requests, holders {b} %" for n, a, b in zip(names, share, holders,
                                                                       strict=True)]  # fmt: skip
    return {
        "data": [bars, marks],
        "layout": layout(
            p,
            height=96 + 28 * max(len(shown), 2),
            hovermode="y unified",
            showlegend=True,
            xaxis={"ticksuffix": " %", "rangemode": "tozero"},
            yaxis={"type": "category", "autorange": "reversed", "showgrid": False},
            meta="; ".join(told),
        ),
    }


def detector_words(h: wire.HotspotView) -> tuple[Level, str]:
    """What the detector says, in a sentence."""
    if not h.enabled:
        return "none", "The detector is off: nothing is filtered and nothing opens by itself."
    hot = [g for g in h.groups if g.state != "calm"]
    if not hot:
        return "ok", f"No prefix group asks for more than its holders' share ({h.window_s:g} s)."
    worst = hot[0]
    return "warn", (
        f"Group {worst.group[:8]} has {fmt.share(worst.share)} of the requests on "
        f"{worst.holders} of {worst.nodes} nodes; "
        f"{'1 group is' if len(hot) == 1 else f'{len(hot)} groups are'} not calm."
    )


def transition_rows(events: Sequence[wire.EventView]) -> list[dict[str, object]]:
    """Transitions, newest first, with their evidence in words."""
    return [
        {
            "Time": e.at,
            "Machine": _MACHINES.get(e.kind.partition(".")[0], e.kind.partition(".")[0]),
            "Of": e.node or str(e.data.get("group", ""))[:8] or "fleet",
            "From": str(e.data.get("before", "")).replace("_", " "),
            "To": e.kind.partition(".")[2].replace("_", " "),
            "Cause": str(e.data.get("cause", "")).replace("_", " "),
            "By": str(e.data.get("actor", "")),
            "Reason": str(e.data.get("reason", "")),
            "Evidence": evidence_words(e.data),
        }
        for e in events
    ]


_NOT_EVIDENCE = frozenset({"before", "cause", "reason", "actor", "group"})


def evidence_words(data: dict[str, object]) -> str:
    """The counts behind an event, in a line."""
    pairs = ((k, v) for k, v in data.items() if k not in _NOT_EVIDENCE and v not in ("", None))
    return ", ".join(f"{k.removesuffix('_s').replace('_', ' ')} {_plain(k, v)}" for k, v in pairs)


def _plain(name: str, value: object) -> str:
    if name.endswith("_s") and isinstance(value, (int, float)):
        return fmt.seconds(float(value))
    if isinstance(value, list):
        return ", ".join(_plain("", v) for v in value) or "none"
    if isinstance(value, dict):
        return f"({evidence_words(value)})"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return word(value)
    return fmt.figure(float(value))

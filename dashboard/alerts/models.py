"""Alerts, their evidence and periodic jobs as rows and words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, tzinfo
from typing import Any

from core import wire
from dashboard.alerts.evidence import alert_evidence
from dashboard.overview.models import Tile
from dashboard.parts import format as fmt
from dashboard.parts.theme import Figure, Level, Palette, layout

STATES: dict[str, tuple[Level, str]] = {
    "firing": ("bad", "✕ fires"),
    "pending": ("warn", "▲ may fire soon"),
    "resolved": ("none", "○ over"),
    "inactive": ("ok", "✓ quiet"),
}
EVIDENCE: dict[str, tuple[str, str, dict[str, str]]] = {
    "slo_burn_fast": ("views/slo.py", "SLO", {}),
    "slo_burn_slow": ("views/slo.py", "SLO", {}),
    "slo_burn_long": ("views/slo.py", "SLO", {}),
    "panic": ("views/breaker.py", "Breaker", {}),
    "nodes_dead": ("views/nodes.py", "Nodes", {}),
    "cache_signal_lost": ("views/changes.py", "Cache signal changes", {"lane": "Cache signal"}),
    "spool_filling": ("views/storage.py", "Storage & health", {}),
    "records_dropped": ("views/storage.py", "Storage & health", {}),
    "audit_broken": ("views/settings.py", "Audit", {}),
    "loop_lag": ("views/storage.py", "Storage & health", {}),
    "decisions_slow": ("views/storage.py", "Storage & health", {}),
    "load_uneven": ("views/nodes.py", "Nodes", {}),
    "hit_uneven": ("views/nodes.py", "Nodes", {}),
    "hit_missed": ("views/decisions.py", "Decisions below the best match", {"below_best": "true"}),
    "hotspots": ("views/breaker.py", "Breaker", {"machine": "hotspot detector"}),
}
"""Rule -> (page, its title, parameters) with the evidence."""
_COUNTED = frozenset({"nodes", "records", "groups"})


def evidence_page(a: wire.AlertView) -> tuple[str, str, dict[str, str]]:
    """Where the evidence of an alert is; a single dead node's own page."""
    dead = a.evidence.get("dead")
    if isinstance(dead, list) and len(dead) == 1:
        return "views/nodes.py", str(dead[0]), {"node": str(dead[0])}
    return EVIDENCE.get(a.name, ("views/changes.py", "Changes", {}))


def value_words(value: float | None, unit: str) -> str:
    """A monitor's value with its unit."""
    if value is None:
        return fmt.NONE
    if unit == "s":
        return fmt.seconds(value)
    if unit == "share":
        return fmt.share(value, 1)
    if unit.startswith("1/"):
        return f"{fmt.digits(value)}{unit[1:]}"
    one = unit[:-1] if value == 1 and unit.endswith("s") else unit
    return f"{fmt.digits(value)} {one}".strip()


def rule_words(a: wire.AlertView, unit: str) -> str:
    """When a rule fires."""
    side = "below" if a.below else "above"
    held = f" for {fmt.seconds(a.for_s)}" if a.for_s else ""
    also = f", and {a.also} above {fmt.share(a.also_limit, 0)}," if a.also else ""
    return f"{a.monitor} {side} {value_words(a.limit, unit)}{also}{held}"


def alert_tiles(alerts: Sequence[wire.AlertView], webhook: wire.WebhookView) -> list[Tile]:
    """How many fire, how many may, and whether anybody is told."""
    firing = [a for a in alerts if a.state == "firing"]
    pages = [a for a in firing if a.severity == "page"]
    unknown = [a for a in firing if a.acknowledged is None]
    level: Level = "bad" if pages else "warn" if firing else "ok"
    pending = sum(a.state == "pending" for a in alerts)
    told = "failing" if webhook.last_error and webhook.waiting else "on"
    return [
        Tile(
            "Firing", str(len(firing)), level,
            ("pages" if pages else "tickets only") if firing else "nothing fires",
            fmt.listed([a.name for a in firing]) or "every rule is quiet",
            "Pages: users suffer. Tickets: they may soon.",
        ),
        Tile(
            "Not acknowledged", str(len(unknown)), "warn" if unknown else "ok",
            "nobody said that they know" if unknown else "nothing waits for anybody", "",
            "Of those that fire.",
        ),
        Tile("May fire soon", str(pending), "warn" if pending else "ok",
             "over the limit, not long enough" if pending else "none", "", ""),
        Tile(
            "Webhook", told if webhook.on else "off",
            "bad" if told == "failing" else "ok" if webhook.on else "none",
            f"{webhook.sent} sent" if webhook.on else "alerts are shown here only",
            webhook.last_error, "Tells alerts to an address of yours; see the settings.",
        ),
    ]  # fmt: skip


def alert_rows(
    alerts: Sequence[wire.AlertView], units: dict[str, str], zone: tzinfo
) -> list[dict[str, object]]:
    """Every rule and how it stands, firing ones first as they come."""
    return [
        {
            "State": STATES.get(a.state, ("none", a.state))[1],
            "Severity": "▲ page" if a.severity == "page" else "○ ticket",
            "Alert": a.name,
            "Summary": a.summary,
            "Now": value_words(a.value, units.get(a.monitor, "")),
            "Rule": rule_words(a, units.get(a.monitor, "")),
            "Since": fmt.moment(a.since, zone)[5:19] if a.since else fmt.NONE,
            "Acknowledged": a.acknowledged.author if a.acknowledged else "",
        }
        for a in alerts
    ]


def alert_text(a: wire.AlertView, units: dict[str, str], now: datetime) -> str:
    """One alert in sentences: how long, how bad, why."""
    unit = units.get(a.monitor, "")
    parts = [f"{rule_words(a, unit)}; now {value_words(a.value, unit)}"]
    if a.worst is not None:
        parts.append(f"worst {value_words(a.worst, unit)}")
    if a.since is not None and a.state in ("firing", "pending"):
        parts.append(f"for {fmt.seconds((now - a.since).total_seconds())}")
    if found := alert_evidence(a.name, a.evidence):
        parts.append(found)
    if a.acknowledged is not None:
        parts.append(f"{a.acknowledged.author} knows of it: {a.acknowledged.note}")
    return "; ".join(parts) + "."


def monitor_figure(
    series: wire.MonitorSeries, alert: wire.AlertView, unit: str, p: Palette, *, zone: tzinfo
) -> Figure:
    """The last hour of an alert's monitor, with its limit as a line."""
    at = series.names.index(alert.monitor) if alert.monitor in series.names else 0
    x = [fmt.axis_time(point.at, zone) for point in series.points]
    y = [point.values[at] for point in series.points]
    known = [v for v in y if v is not None]
    trace = {
        "type": "scatter", "mode": "lines", "name": alert.monitor, "x": x, "y": y,
        "line": {"color": p.categories[0], "width": 2}, "connectgaps": False,
    }  # fmt: skip
    limit = {
        "type": "scatter", "mode": "lines", "name": "limit", "hoverinfo": "skip",
        "x": x[:1] + x[-1:], "y": [alert.limit] * len(x[:1] + x[-1:]),
        "line": {"color": p.bad, "width": 1.5, "dash": "dash"},
    }  # fmt: skip
    told = f"between {min(known):.4g} and {max(known):.4g}" if known else "nothing measured"
    return {
        "data": [trace, limit],
        "layout": layout(
            p,
            height=230,
            showlegend=True,
            yaxis={"rangemode": "tozero", **_ticks(unit, max([*known, alert.limit]))},
            meta=f"{alert.monitor} in the last hour: {told}; limit {alert.limit:g}.",
        ),
    }


def _ticks(unit: str, most: float) -> dict[str, Any]:
    """Ticks of an axis up to `most`: counts are whole, times below a second in ms."""
    if unit == "share":
        return {"tickformat": ".0%"}
    if unit == "s" and most < 1:
        return {"tickformat": "~s", "ticksuffix": "s"}
    if unit in _COUNTED:
        return {"tickformat": ",d", "title": {"text": unit}} | ({"dtick": 1} if most < 5 else {})
    return {"ticksuffix": unit[1:] if unit.startswith("1/") else f" {unit}" if unit else ""}


def job_rows(
    jobs: Sequence[wire.JobView], *, now: datetime, zone: tzinfo
) -> list[dict[str, object]]:
    """Periodic work, what fails first."""
    ordered = sorted(jobs, key=lambda j: not j.last_error)
    return [
        {
            "State": _job_state(j),
            "Job": j.name,
            "What": j.what,
            "Every": fmt.seconds(j.every_s),
            "Last": fmt.ago((now - j.last_at).total_seconds()) if j.last_at else "never",
            "Took": fmt.seconds(j.last_s),
            "Next": fmt.clock(j.next_at, zone) if j.next_at else fmt.NONE,
            "Runs": j.runs,
            "Failures": j.failures,
            "Error": j.last_error,
        }
        for j in ordered
    ]


def _job_state(j: wire.JobView) -> str:
    if j.last_error:
        return "✕ failed last"
    if j.running:
        return "▶ runs"
    return "✓ well" if j.last_at else "○ not yet"

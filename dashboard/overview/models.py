"""From the admin API's answers to what the overview shows. Pure: no I/O, no clock, no widgets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from core import wire
from dashboard.api.feed import Look
from dashboard.parts import format as fmt
from dashboard.parts.theme import Level

STALE_S = 3.0
"""Older data is announced as stale; three ticks of the poller."""
FEW_REQUESTS = 100
"""Of fewer the 99th percentile is the slowest one, which alone is no reason for an alarm."""
NEAR_LIMIT = 0.8
"""Share of a latency limit from which it is called near."""
LOSS_WARN, LOSS_BAD = 0.2, 0.5
"""Share of the reachable reuse that was not achieved."""
REFUSED_WARN, REFUSED_BAD = 0.01, 0.05
LOAD_WARN, LOAD_BAD = 0.7, 0.9
_OUT = ("open", "half_open", "tripped")
"""States of a breaker that keep requests from a node, or from the policy."""
_SHOWN_CHARS = 60
ORDERS = ("by load", "by rack")
"""How the rows of the node picture are ordered."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One stat tile: a figure, its meaning in a word, and what it stands on."""

    name: str
    value: str
    level: Level
    word: str
    sub: str
    help: str


@dataclass(frozen=True, slots=True)
class Notice:
    """A message above the page's content."""

    level: Level
    title: str
    text: str = ""


# -- condition of the connection ---------------------------------------------------------------


def connection_notice(look: Look, *, now: datetime, clock: str, url: str) -> Notice | None:
    """What stands between the reader and fresh data; None when all is well.

    `clock` is the time of the last good answer as the reader's clock shows it.
    """
    if look.unreadable:
        return Notice("bad", "The service's answers cannot be read", f"{look.error}. Asked {url}.")
    if look.refused:
        return Notice("bad", "The service does not let you in", f"{_sentence(look.error)} ({url})")
    if look.error and look.state is None:
        return Notice(
            "bad",
            "The service does not answer",
            f"{_sentence(look.error)} ({url}). The console tries again every second and goes on "
            "by itself once it answers. Start it with `conductor serve` or `conductor up`.",
        )
    age = look.age_s(now)
    if look.error:
        return Notice(
            "bad",
            "The service does not answer",
            f"{_sentence(look.error)} ({url}). What you see is from {clock}, "
            f"{fmt.ago(age)}. The console tries again every second.",
        )
    if age is None:
        return Notice("none", "Waiting for the service's first answer", f"Asking {url}.")
    if age > STALE_S:
        return Notice(
            "warn", "The data is stale", f"The last answer is from {clock}, {fmt.ago(age)}."
        )
    return None


def no_nodes_notice(state: wire.FleetState) -> Notice | None:
    """Why there is no fleet to look at; None when there is one."""
    if state.nodes:
        return None
    return Notice(
        "none",
        "No node is registered",
        "Name nodes in the configuration (`[[nodes]]`), or register one: "
        "`POST /admin/v1/nodes` with its `id` and `url`. "
        "`conductor up` without nodes starts an emulated fleet.",
    )


def fleet_notice(state: wire.FleetState) -> Notice | None:
    """Why there is nothing to look at yet; None when there is."""
    if not state.nodes:
        return no_nodes_notice(state)
    if not state.totals.decisions:
        return Notice(
            "none",
            "No request so far",
            f"{_plural(state.totals.eligible, 'node')} ready. Send one to `/v1/chat/completions`, "
            "or replay a trace with `conductor replay`.",
        )
    return None


def not_used(parameter: str, value: str, wanted: str) -> Notice:
    """That a parameter of the address could not be used, and what it takes."""
    return unused(parameter, value, f"`{parameter}` takes {wanted}.")


def unused(parameter: str, value: str, why: str) -> Notice:
    """That a part of the address was left out, and why."""
    shown = value if len(value) <= _SHOWN_CHARS else f"{value[:_SHOWN_CHARS]}…"
    return Notice("warn", f"Not used: {parameter}={shown}", why)


def forbidden_notice(least: str, role: str) -> Notice:
    """Why a reader of this role does not see a page."""
    return Notice(
        "warn",
        "This page is not for your role",
        f"It needs the role `{least}`; you are `{role}`. Whoever administers the installation "
        "can give you that role.",
    )


def freshness(look: Look, now: datetime) -> tuple[Level, str]:
    """Level and words of the data-age badge."""
    age = look.age_s(now)
    if look.error:
        return "bad", "no answer" if age is None else f"no answer, {fmt.ago(age)}"
    if age is None:
        return "none", "no data yet"
    return ("warn" if age > STALE_S else "ok"), fmt.ago(age)


def breaker_summary(state: wire.FleetState) -> tuple[Level, str]:
    """Level and words of the breaker badge."""
    out = [n.id for n in state.nodes if n.breaker.state in _OUT]
    if state.breaker.state in _OUT:
        return "bad", f"global {_spoken(state.breaker.state)}: round robin"
    if state.totals.panic:
        return "bad", "panic: breakers ignored"
    if out:
        return "warn", f"{_plural(len(out), 'node')} out"
    return "ok", "all closed"


def alert_summary(state: wire.FleetState) -> tuple[str, Level]:
    """Number of firing alerts, with a level: what nobody has acknowledged is worst."""
    unheard = [a for a in state.alerts if not a.acknowledged]
    if any(a.severity == "page" for a in unheard):
        return str(len(state.alerts)), "bad"
    return str(len(state.alerts)), "warn" if state.alerts else "ok"


def problem_summary(state: wire.FleetState) -> tuple[str, Level]:
    """Number of known problems, with a level."""
    found = problems(state, most=1000)
    worst: Level = "bad" if any(level == "bad" for level, _ in found) else "warn"
    return str(len(found)), worst if found else "ok"


# -- tiles -------------------------------------------------------------------------------------


def tiles(state: wire.FleetState) -> list[Tile]:
    """The six stat tiles of the overview."""
    t = state.totals
    return [
        _traffic(t),
        _latency("TTFT p99", t.ttft_s, t.ttft_slo_s, "time to first token"),
        _latency("TBT p99", t.tbt_s, t.tbt_slo_s, "time between tokens"),
        _reuse(t),
        _refused(t),
        _busiest(state),
    ]


def _traffic(t: wire.Totals) -> Tile:
    available = f"{t.eligible} of {t.nodes} nodes take requests"
    if t.nodes and not t.eligible:
        level, word = "bad", "no node available"
    elif t.eligible < t.nodes:
        level, word = "warn", f"{t.nodes - t.eligible} not available"
    elif not t.requests_per_s:
        level, word = "none", "idle"
    else:
        level, word = "ok", "all nodes available"
    return Tile(
        "Requests",
        fmt.rate(t.requests_per_s),
        level,  # type: ignore[arg-type]
        word,
        f"{available}; {t.inflight:,} in flight, {fmt.rate(t.goodput_per_s)} within limits",
        "Decisions per second over the last minute, refusals included. GET /state totals."
        "requests_per_s, goodput_per_s.",
    )


def _latency(name: str, q: wire.Quantiles | None, limit_s: float, meaning: str) -> Tile:
    about = f"99th percentile of the {meaning} over the last minute, beside its limit."
    if q is None:
        return Tile(name, fmt.NONE, "none", "nothing finished", _limit(limit_s), about)
    ratio = q.p99 / limit_s if limit_s else 0.0
    level: Level = "bad" if ratio > 1 else "warn" if ratio > NEAR_LIMIT else "ok"
    word = {"bad": "limit missed", "warn": "near the limit", "ok": "within limit"}[level]
    if ratio > 1 and q.count < FEW_REQUESTS and q.p90 <= limit_s:
        level, word = "warn", f"only the slowest of {q.count} missed it"
    return Tile(
        name,
        fmt.seconds(q.p99),
        level,
        f"{word}, {fmt.share(ratio)} of it",
        f"{_limit(limit_s)}; p50 {fmt.seconds(q.p50)}, {fmt.count(q.count)} requests",
        about,
    )


def _limit(limit_s: float) -> str:
    return f"limit {fmt.seconds(limit_s)}"


def _reuse(t: wire.Totals) -> Tile:
    about = (
        "Prompt tokens found in the chosen node's cache, as a share of all prompt tokens. "
        "Reachable: the best match anywhere in the fleet. Reported: what the engines said."
    )
    if t.hit_achieved is None:
        return Tile("Cache reuse", fmt.NONE, "none", "no prompts", "last minute", about)
    reachable = t.hit_reachable or 0.0
    lost = 1 - t.hit_achieved / reachable if reachable > 0 else 0.0
    level: Level = "bad" if lost > LOSS_BAD else "warn" if lost > LOSS_WARN else "ok"
    word = f"{fmt.share(1 - lost)} of reachable"
    if reachable <= 0:
        level, word = "none", "nothing to reuse yet"
    sub = f"reachable {fmt.share(t.hit_reachable)}; engines report {fmt.share(t.hit_reported)}"
    return Tile("Cache reuse", fmt.share(t.hit_achieved), level, word, sub, about)


def _refused(t: wire.Totals) -> Tile:
    about = "Requests refused by the scheduler, and requests that failed on an engine; last minute."
    if t.rejected_share is None and t.error_share is None:
        return Tile("Refused", fmt.NONE, "none", "no requests", "last minute", about)
    refused, failed = t.rejected_share or 0.0, t.error_share or 0.0
    worst = max(refused, failed)
    level: Level = "bad" if worst > REFUSED_BAD else "warn" if worst > REFUSED_WARN else "ok"
    word = {"bad": "high", "warn": "raised", "ok": "none" if not worst else "low"}[level]
    total = f"{fmt.count(t.rejections)} refused since the start"
    return Tile(
        "Refused", fmt.share(refused, 1), level, word, f"failed {fmt.share(failed, 1)}; {total}",
        about,
    )  # fmt: skip


def _busiest(state: wire.FleetState) -> Tile:
    about = "The node with the highest load(n): the larger of its KV, batch and queue shares."
    if not state.nodes:
        return Tile("Busiest node", fmt.NONE, "none", "no nodes", "", about)
    worst = max(state.nodes, key=lambda n: n.load.load)
    load = worst.load.load
    level: Level = "bad" if load >= LOAD_BAD else "warn" if load >= LOAD_WARN else "ok"
    word = {"bad": "overloaded", "warn": "busy", "ok": "has room"}[level]
    mean = sum(n.load.load for n in state.nodes) / len(state.nodes)
    sub = f"{worst.id}, queue {fmt.seconds(worst.load.queue_s)}; fleet mean {fmt.share(mean)}"
    return Tile("Busiest node", fmt.share(load), level, word, sub, about)


# -- problems ----------------------------------------------------------------------------------


def problems(state: wire.FleetState, most: int = 5) -> list[tuple[Level, str]]:
    """What to look at first, worst first: the service's sentences, then nodes' warnings."""
    found: list[tuple[Level, str]] = []
    if (whole := state.breaker).state in _OUT:
        text = f"global breaker {_spoken(whole.state)}: requests go round robin"
        found.append(("bad", text + _why(whole.reason)))
    found += [(_gravity(text), text) for text in state.problems]
    told = " ".join(state.problems)
    for n in state.nodes:
        if n.breaker.state in _OUT:
            words = f"breaker {_spoken(n.breaker.state)}{_why(n.breaker.reason)}"
            found.append(("bad", f"{n.id}: {words}"))
        if n.id not in told:
            found += [("warn", f"{n.id}: {w}") for w in n.warnings]
    if len(found) > most:
        found = [*found[:most], ("none", f"and {len(found) - most} more, see the fleet table")]
    return found


def problem_link(text: str, state: wire.FleetState) -> tuple[str, dict[str, str], str] | None:
    """(page, its parameters, label) of where a problem is looked into; None where nowhere is."""
    named = next((n.id for n in state.nodes if _names(text, n.id)), None)
    if named is not None:
        return "nodes", {"node": named}, f"Open {named}"
    for words, page, label in _PLACES:
        if any(word in text for word in words):
            return page, {}, label
    return None


_PLACES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("breaker", "panic"), "breaker", "Open Breaker"),
    (("event loop", "stored", "records", "database"), "storage", "Open Storage & health"),
    (("limit", "SLO", "TTFT", "TBT"), "slo", "Open SLO"),
    (("more, see the fleet", "node"), "nodes", "Open Nodes"),
)


def _names(text: str, node_id: str) -> bool:
    """Whether the text names the node as a word of its own."""
    return re.search(rf"(?<![\w.:-]){re.escape(node_id)}(?![\w-])", text) is not None


def _gravity(text: str) -> Level:
    grave = ("dead", "no node", "cannot be stored", "every node", "too few")
    return "bad" if any(word in text for word in grave) else "warn"


def _spoken(name: str) -> str:
    return name.replace("_", " ")


def _why(reason: str) -> str:
    return f" ({reason})" if reason else ""


# -- fleet table -------------------------------------------------------------------------------

STATE_SIGN: dict[str, str] = {
    "healthy": "✓ healthy",
    "suspect": "▲ suspect",
    "dead": "✕ dead",
    "unknown": "○ not seen yet",
}
TRUST_SIGN: dict[str, str] = {
    "exact": "✓ exact",
    "approximate": "○ approximate",
    "degraded": "▲ degraded",
    "off": "✕ off",
}


def node_state(n: wire.NodeView) -> str:
    """A node's state in one cell: health, and why it takes nothing although healthy."""
    if n.draining and n.health == "healthy":
        return "▲ draining"
    if n.breaker.state != "closed" and n.health == "healthy":
        return "▲ breaker " + n.breaker.state.replace("_", " ")
    return STATE_SIGN.get(n.health, n.health)


def fleet_order(nodes: Sequence[wire.NodeView]) -> list[wire.NodeView]:
    """Nodes that need a look first, then in order of registration."""
    return sorted(nodes, key=lambda n: (n.eligible, n.health == "healthy"))


def fleet_rows(nodes: Sequence[wire.NodeView]) -> list[dict[str, object]]:
    """Rows of the fleet table in their order."""
    return [_fleet_row(n) for n in fleet_order(nodes)]


def _fleet_row(n: wire.NodeView) -> dict[str, object]:
    return {
        "Node": n.id,
        "State": node_state(n),
        "Role": n.role.value,
        "Load": _cell(n.load.load),
        "KV use": _cell(n.load.kv_usage),
        "Queue s": n.load.queue_s,
        "Queued tokens": n.load.queued_tokens,
        "In flight": n.load.inflight,
        "Running": n.load.running,
        "Waiting": n.load.waiting,
        "TTFT p50 ms": None if n.ttft_p50_s is None else n.ttft_p50_s * 1e3,
        "TTFT p99 ms": None if n.ttft_p99_s is None else n.ttft_p99_s * 1e3,
        "Reuse": _cell(n.hit_reported),
        "Cached tokens": n.cached_tokens,
        "Cache signal": TRUST_SIGN.get(n.trust, n.trust),
        "Decisions": n.decisions,
        "Reading s": n.load.telemetry_age_s,
        "Notes": "; ".join(n.warnings),
    }


def series_rows(series: wire.Series) -> list[dict[str, object]]:
    """The table twin of the charts: one row a step, newest first."""
    return [
        {
            "Time": p.at,
            "Requests": p.requests,
            "Refused": p.rejected,
            "Failed": p.errors,
            "TTFT p50 ms": _ms(p.ttft_s, "p50"),
            "TTFT p99 ms": _ms(p.ttft_s, "p99"),
            "TBT p50 ms": _ms(p.tbt_s, "p50"),
            "TBT p99 ms": _ms(p.tbt_s, "p99"),
            "Reuse": _cell(p.hit_achieved),
            "Reachable": _cell(p.hit_reachable),
            "Reported": _cell(p.hit_reported),
            "In flight": p.inflight,
        }
        for p in reversed(series.points)
    ]


def _cell(value: float | None) -> float | None:
    """A share for a table cell: whole percents."""
    return None if value is None else round(value, 2)


def _ms(q: wire.Quantiles | None, name: str) -> float | None:
    return None if q is None else getattr(q, name) * 1e3


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _plural(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("" if n == 1 else "s")

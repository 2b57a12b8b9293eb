"""From a node's state to what its page shows. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from core import wire
from dashboard.overview.models import Tile, node_state
from dashboard.parts import format as fmt
from dashboard.parts.theme import Level

TRUST_WORDS = {
    "exact": "its events are complete; matches are believed as they are",
    "approximate": "it sends no events; what was sent to it stands for what it holds",
    "degraded": "its events have a gap, or its reports contradict them; matches are discounted",
    "off": "nothing is believed of its cache",
}
"""What each trust in a node's cache signal means."""
TRUST_LEVEL: dict[str, Level] = {
    "exact": "ok", "approximate": "none", "degraded": "warn", "off": "bad",
}  # fmt: skip


def find(nodes: Sequence[wire.NodeView], node_id: str) -> wire.NodeView | None:
    """The node of this id."""
    return next((n for n in nodes if n.id == node_id), None)


def chosen(nodes: Sequence[wire.NodeView], text: str, only: str) -> list[wire.NodeView]:
    """Nodes whose id, rack, model or role contains the text, and which the choice lets through."""
    wanted = text.strip().lower()
    return [n for n in nodes if (not wanted or wanted in _searched(n)) and _passes(n, only)]


ONLY = ("all", "not taking requests", "with a warning")


def _passes(n: wire.NodeView, only: str) -> bool:
    if only == ONLY[1]:
        return not n.eligible
    return bool(n.warnings) or not n.eligible if only == ONLY[2] else True


def _searched(n: wire.NodeView) -> str:
    place = (n.place.host, n.place.rack, n.place.zone)
    note = n.note.text if n.note else ""
    return " ".join((n.id, n.role.value, n.engine.value, *n.models, *place, note)).lower()


def node_tiles(n: wire.NodeView) -> list[Tile]:
    """Stat tiles of one node."""
    return [_state(n), _load(n), _queue(n), _latency(n), _cache(n), _trust(n)]


def _state(n: wire.NodeView) -> Tile:
    level: Level = "ok" if n.eligible else "bad" if n.health == "dead" else "warn"
    word = "takes requests" if n.eligible else "takes no new requests"
    sub = f"breaker {n.breaker.state.replace('_', ' ')}; {fmt.count(n.decisions)} decisions"
    about = "Health by probes and traffic, then drain and breaker. GET /nodes/{id} health."
    return Tile("State", node_state(n).split(" ", 1)[-1], level, word, sub, about)


def _load(n: wire.NodeView) -> Tile:
    level: Level = "bad" if n.load.load >= 0.9 else "warn" if n.load.load >= 0.7 else "ok"
    word = {"bad": "overloaded", "warn": "busy", "ok": "has room"}[level]
    if n.health == "dead":
        level, word = "none", "nothing runs there"
    sub = f"{n.load.inflight} in flight here; reports {_told(n.load.running)} running, "
    sub += f"{_told(n.load.waiting)} waiting; KV {fmt.share(n.load.kv_usage)}"
    about = "load(n): the largest of its KV, batch and queue shares."
    return Tile("Load", fmt.share(n.load.load), level, word, sub, about)


def _queue(n: wire.NodeView) -> Tile:
    level: Level = "warn" if n.load.queue_s > 1 else "ok"
    word = "a new prompt waits" if level == "warn" else "short"
    if n.health == "dead":
        level, word = "none", "takes no prompts"
    sub = f"{fmt.count(n.load.queued_tokens)} uncached prompt tokens ahead; weight {n.weight:g}"
    about = "Predicted wait until a new prompt could start."
    return Tile("Queue", fmt.seconds(n.load.queue_s), level, word, sub, about)


def _latency(n: wire.NodeView) -> Tile:
    about = "Time to first token of its requests, last five minutes."
    if n.ttft_p99_s is None:
        return Tile("TTFT p99", fmt.NONE, "none", "nothing finished", "last 5 min", about)
    sub = f"p50 {fmt.seconds(n.ttft_p50_s)}; last 5 min"
    return Tile("TTFT p99", fmt.seconds(n.ttft_p99_s), "ok", "observed", sub, about)


def _cache(n: wire.NodeView) -> Tile:
    about = "Cached share of prompt tokens as the engine reports it, last five minutes."
    held = f"{fmt.count(n.cached_tokens)} tokens held of {fmt.count(n.kv_capacity_tokens)}"
    if n.hit_reported is None:
        return Tile("Reuse", fmt.NONE, "none", "not reported", held, about)
    return Tile("Reuse", fmt.share(n.hit_reported), "ok", "reported", held, about)


def _trust(n: wire.NodeView) -> Tile:
    level = TRUST_LEVEL.get(n.trust, "none")
    reason = n.trust_reason.replace("_", " ")
    about = "How far the node's cache signal is believed, and why."
    word = reason or "as configured"
    return Tile("Cache signal", n.trust.value, level, word, TRUST_WORDS.get(n.trust, ""), about)


def _told(value: int | None) -> str:
    return fmt.NONE if value is None else str(value)


def drain_words(d: wire.DrainView) -> tuple[float, str]:
    """Progress 0..1 and the sentence beside it."""
    began = max(d.running_at_start, d.running, 1)
    share = 1.0 if d.done or d.state == "drained" else 1 - d.running / began
    who = f" by {d.actor}" if d.actor else ""
    why = f": {d.reason}" if d.reason else ""
    if d.state == "cordoned":
        return share, f"Cordoned{who}{why}. {_left(d.running)}; nobody waits for their end."
    if d.done or d.state == "drained":
        return 1.0, f"Drained{who}{why}. No request is left on it."
    return share, f"Draining{who}{why}. {_left(d.running)} of {began}."


def _left(count: int) -> str:
    return f"{count} request{'' if count == 1 else 's'} on it"


def facts(n: wire.NodeView) -> list[dict[str, object]]:
    """What was registered or discovered, as rows."""
    place = " / ".join(p for p in (n.place.zone, n.place.rack, n.place.host) if p)
    rows = {
        "Address": n.url,
        "Engine": f"{n.engine.value}, {n.role.value}",
        "Models": ", ".join(n.models) or fmt.NONE,
        "Adapters": ", ".join(n.adapters) or fmt.NONE,
        "Place": place or fmt.NONE,
        "Profile": f"{n.profile} x {n.speed:g}",
        "Block size": f"{n.block_size} tokens",
        "KV capacity": f"{n.kv_capacity_tokens:,} tokens",
        "Batch, queue": f"at most {n.batch_max}, {n.queue_max}",
        "Event stream": "yes" if n.events else "no",
        "KV transfer": n.kv_transfer or fmt.NONE,
        "KV dtype": n.kv_dtype,
        "Tenants": ", ".join(n.tenants) or "all",
        "Restarts seen": str(max(n.generation - 1, 0)),
    }
    return [{"Fact": name, "Value": value} for name, value in rows.items()]


STREAM_WORDS = {
    "messages": "Messages received",
    "applied": "Batches applied",
    "gaps": "Gaps in the numbering",
    "replays": "Replays asked for",
    "replayed": "Batches that a replay brought",
    "replay_failures": "Replays that failed",
    "audits": "Times it was asked whether anything was missed",
    "catch_ups": "Batches that an audit found missed",
    "duplicates": "Batches seen twice",
    "held_dropped": "Batches dropped while a replay ran",
    "malformed": "Messages that could not be read",
    "restarts": "Engine restarts seen in the numbering",
    "forgotten": "Times that all was forgotten",
    "links_lost": "Connections lost",
    "orphans_dropped": "Blocks without a parent, dropped",
    "unknown_removed": "Removals of blocks never seen",
    "blocks_refused": "Blocks beyond the node's bound",
    "ignored": "Events of other ranks or cache groups",
}
"""Counter of an event stream -> what it counts; in the order in which they are read."""


def signal_words(s: wire.SignalView) -> str:
    """The stream's state in one line."""
    if not s.endpoint:
        return "The node has no event stream."
    link = "connected" if s.connected else "not connected"
    age = s.last_message_age_s
    last = "no message yet" if age is None else f"last message {fmt.seconds(age)} ago"
    return f"{s.endpoint}: {link}, {s.state}, {last}" + (f"; {s.problem}" if s.problem else "")


def signal_rows(s: wire.SignalView) -> list[dict[str, object]]:
    """What the stream brought and lost since the node was registered."""
    held = {"Blocks known": s.blocks, "Blocks whose parent is missing": s.orphan_blocks}
    counted = {STREAM_WORDS.get(n, n.replace("_", " ")): s.counters[n] for n in _ordered(s)}
    rows = (held | counted | {"Batches waiting": s.backlog}) if s.endpoint else {}
    return [{"What": name, "Count": value} for name, value in rows.items()]


def _ordered(s: wire.SignalView) -> list[str]:
    known = [name for name in STREAM_WORDS if name in s.counters]
    return known + sorted(s.counters.keys() - STREAM_WORDS.keys())


SOURCE_WORDS = {
    "profile": "the profile's",
    "fitted": "fitted to its requests",
}
"""Where a cost model's coefficients come from."""
COSTS = {
    "Prefill": ("prefill", ("", " a token", " a token pair")),
    "Time between tokens": ("tbt", ("", " a request in the batch", " a KV token")),
}
"""Name of a cost model -> its field, and what each coefficient counts by."""


def cost_rows(c: wire.CostView) -> list[dict[str, object]]:
    """The two cost models of a node with their errors."""
    fits = {name: getattr(c, field) for name, (field, _) in COSTS.items()}
    return [
        {
            "Predicts": name,
            "Coefficients": SOURCE_WORDS.get(fit.source, fit.source),
            "Off by": _error(fit.error),
            "Profile off by": _error(fit.profile_error),
            "Requests": fit.observations,
        }
        for name, fit in fits.items()
    ]


def cost_formulas(c: wire.CostView) -> list[str]:
    """The two cost models in full, a line each."""
    return [
        f"{name}, seconds: {_formula(getattr(c, field).coefficients, units)}"
        for name, (field, units) in COSTS.items()
    ]


def _error(error: float | None) -> str:
    """Half of the predictions are nearer than this to what was observed."""
    return "not known yet" if error is None else fmt.share(error)


def _formula(coefficients: Sequence[float], units: Sequence[str]) -> str:
    terms = [f"{c:.3g}{u}" for c, u in zip(coefficients, units, strict=True) if c]
    return " + ".join(terms) or "0"


def hot_rows(found: wire.HotPrefixes) -> list[dict[str, object]]:
    """Hot prefixes with what their reuse saves."""
    return [
        {
            "Prefix": p.key,
            "Tokens": p.tokens,
            "Asked for /s": p.rate_per_s,
            "Hits": int(p.hits),
            "Tokens saved /s": p.rate_per_s * p.tokens if p.holders else 0.0,
            "Holders": len(p.holders),
            "On": fmt.listed(p.holders, 3),
        }
        for p in found.prefixes
    ]

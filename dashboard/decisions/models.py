"""From stored decisions to the Decisions page. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import tzinfo

from core import wire
from dashboard.overview.models import Tile
from dashboard.parts import format as fmt
from dashboard.parts.theme import Level

OUTCOMES: dict[str, str] = {
    "ok": "✓ ok",
    "client_abort": "○ client left",
    "engine_error": "✕ engine error",
    "refused": "▲ engine refused",
    "timeout": "✕ timed out",
    "lost": "✕ lost",
    "open": "… running",
    "rejected": "▲ rejected",
}
"""Outcome filter values and how they are shown."""
REASONS: dict[str, str] = {
    "unhealthy": "not healthy",
    "draining": "draining",
    "breaker_open": "its breaker is open",
    "role": "does not do this part of the work",
    "model": "does not serve the model",
    "adapter": "does not serve the adapter",
    "context_too_long": "the prompt is too long for it",
    "queue_full": "its queue is full",
    "batch_cap": "its batch is full",
    "no_kv_headroom": "too little KV cache is free",
    "tenant": "closed to this tenant",
    "hotspot": "kept free of hot prefixes",
    "tbt_slo": "its batch would miss the TBT limit",
    "no_kv_path": "the prompt's KV cannot get there",
    "already_tried": "already tried for this request",
    "cold_prefix_elsewhere": "another node is computing the same prefix",
}
"""Reasons for exclusion in words; others are shown as they come."""
_ADDS_UP = 0.02


def row_outcome(row: wire.DecisionRow) -> str:
    """Outcome filter value of a row."""
    if not row.routed:
        return "rejected"
    return "open" if row.outcome is None else row.outcome.kind.value


def table_rows(rows: Sequence[wire.DecisionRow]) -> list[dict[str, object]]:
    """Rows of the decisions table."""
    return [_table_row(row) for row in rows]


def _table_row(row: wire.DecisionRow) -> dict[str, object]:
    o = row.outcome
    return {
        "Time": row.at,
        "Outcome": _outcome_cell(row),
        "Limits": _limits_cell(row),
        "Prefill": row.prefill_node or fmt.NONE,
        "Decode": row.decode_node or fmt.NONE,
        "Prompt": row.prompt_tokens,
        "Match": _share(row.match_tokens, row.prompt_tokens),
        "Reachable": _share(row.reachable_tokens, row.prompt_tokens),
        "Reported": _share(None if o is None else o.cached_tokens, row.prompt_tokens),
        "TTFT predicted": row.predicted_ttft_s * 1e3 if row.routed else None,
        "TTFT observed": None if o is None or o.ttft_s is None else o.ttft_s * 1e3,
        "Tenant": row.tenant or fmt.NONE,
        "Model": row.model + (f" + {row.adapter}" if row.adapter else ""),
        "Policy": row.policy,
        "Rev.": row.revision,
        "Request": row.request_id,
        "Decision": row.id,
    }


def _outcome_cell(row: wire.DecisionRow) -> str:
    kind = row_outcome(row)
    shown = OUTCOMES.get(kind, kind)
    return f"{shown} {row.status} {row.code}".rstrip() if kind == "rejected" else shown


def _limits_cell(row: wire.DecisionRow) -> str:
    o = row.outcome
    if o is None or o.ttft_s is None:
        return fmt.NONE
    return f"✕ {o.slo_missed.upper()}" if o.slo_missed else "✓ met"


def _share(part: int | None, whole: int) -> float | None:
    return None if part is None or not whole else round(part / whole, 3)


# -- one decision ------------------------------------------------------------------------------


def summary_tiles(row: wire.DecisionRow) -> list[Tile]:
    """What happened, in four tiles: outcome, TTFT, TBT, cache match."""
    o = row.outcome
    first, between = (o.ttft_s, o.tbt_s) if o else (None, None)
    whys = (o.no_ttft, o.no_tbt) if o else ("", "")
    ttft = _time_tile("TTFT", row.predicted_ttft_s, first, row.ttft_slo_s, row.routed, whys[0])
    tbt = _time_tile("TBT", row.predicted_tbt_s, between, row.tbt_slo_s, row.routed, whys[1])
    return [_outcome_tile(row), ttft, tbt, _match_tile(row)]


def _outcome_tile(row: wire.DecisionRow) -> Tile:
    kind = row_outcome(row)
    sign, _, words = OUTCOMES.get(kind, kind).partition(" ")
    level: Level = {"✓": "ok", "▲": "warn", "✕": "bad"}.get(sign, "none")  # type: ignore[assignment]
    o = row.outcome
    if not row.routed:
        sub = row.message
    elif o is None:
        sub = "no outcome yet"
    else:
        tokens = "" if o.output_tokens is None else f"{fmt.count(o.output_tokens)} output tokens"
        sub = ", ".join(t for t in (tokens, f"in {fmt.seconds(o.e2e_s)}", o.error) if t)
    value = str(row.status) if not row.routed else words
    word = row.code or ("placed" if row.routed else "rejected")
    if row.retries:
        word += f", attempt {row.retries + 1}"
    return Tile("Outcome", value, level, word, sub, "How the request ended")


def _time_tile(
    name: str,
    predicted_s: float,
    observed_s: float | None,
    limit_s: float | None,
    routed: bool,
    unobserved: str,
) -> Tile:
    told = f"predicted {fmt.seconds(predicted_s) if routed or predicted_s else fmt.NONE}"
    sub = told if limit_s is None else f"{told}; limit {fmt.seconds(limit_s)}"
    about = "Observed, beside what was predicted when the decision was made, and the limit then."
    if observed_s is None:
        told = f"{unobserved}; {sub}" if unobserved else sub
        return Tile(name, fmt.NONE, "none", "not observed", told, about)
    missed = limit_s is not None and observed_s > limit_s
    level: Level = "bad" if missed else "ok"
    word = "limit missed" if missed else "within limit"
    if predicted_s > 0:
        word += f", {fmt.digits(observed_s / predicted_s)} times predicted"
    return Tile(name, fmt.seconds(observed_s), level, word, sub, about)


def _match_tile(row: wire.DecisionRow) -> Tile:
    about = "Prompt tokens the chosen node holds; the best anywhere; what the engine said."
    reported = row.outcome.cached_tokens if row.outcome else None
    sub = (
        f"reachable {fmt.count(row.reachable_tokens)}; engine reported "
        f"{fmt.count(reported)}; prompt {fmt.count(row.prompt_tokens)}"
    )
    if not row.routed:
        return Tile("Cached tokens", fmt.NONE, "none", "not placed", sub, about)
    short = row.reachable_tokens - row.match_tokens
    level: Level = "warn" if short > 0 else "ok"
    word = f"{fmt.count(short)} less than the best" if short > 0 else "the best match there was"
    if not row.reachable_tokens:
        level, word = "none", "nothing cached anywhere"
    return Tile("Cached tokens", fmt.count(row.match_tokens), level, word, sub, about)


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the time line of one request."""

    lane: str
    name: str
    start_s: float
    length_s: float


def waterfall(row: wire.DecisionRow) -> list[Segment]:
    """Predicted: queue, transfer, prefill. Observed: what the service measured of its own (the
    wait for a node with room, the decision), then to the first token, then the stream.

    The engine does not tell where its first token's time went, so that is one part.
    """
    found: list[Segment] = []
    at = 0.0
    for name, length in (
        ("queue", row.predicted_queue_s),
        ("transfer", row.predicted_transfer_s),
        ("prefill", row.predicted_prefill_s),
        ("to first token", _rest(row)),
    ):
        if length > 0:
            found.append(Segment("predicted", name, at, length))
            at += length
    return found + _observed(row)


def _observed(row: wire.DecisionRow) -> list[Segment]:
    ends, o, at = [], row.outcome, 0.0
    if row.waited_s:
        ends.append(("queue", row.waited_s))
    if row.decide_s:
        ends.append(("decide", (row.waited_s or 0.0) + row.decide_s))
    if o is not None and o.ttft_s is not None:
        ends += [("first token", o.ttft_s), ("stream", o.e2e_s or 0.0)]
    found: list[Segment] = []
    for name, end_s in ends:
        if end_s > at:
            found.append(Segment("observed", name, at, end_s - at))
            at = end_s
    return found


def _rest(row: wire.DecisionRow) -> float:
    """What the predicted TTFT holds beyond its named parts; rounding errors are nothing."""
    named = row.predicted_queue_s + row.predicted_transfer_s + row.predicted_prefill_s
    rest = row.predicted_ttft_s - named
    return rest if rest > 1e-3 * max(named, 1e-9) else 0.0


def adds_up(selection: wire.SelectionView) -> bool:
    """Whether the terms of each candidate add up to its total, so that a stack is honest."""
    return bool(selection.candidates) and all(
        abs(sum(c.terms.values()) - c.total) <= _ADDS_UP * max(abs(c.total), 1e-12)
        and min(c.terms.values(), default=0.0) >= 0
        for c in selection.candidates
    )


def weight_note(selection: wire.SelectionView) -> str:
    """What node weights did to the totals; empty where all are 1."""
    weights = {c.node: c.inputs.get("node_weight", 1.0) for c in selection.candidates}
    told = [f"{node} {fmt.figure(w)}" for node, w in weights.items() if w != 1.0]
    if not told:
        return ""
    how = "times" if selection.sense == "max" else "divided by"
    return f"Totals are what the terms give, {how} the node's weight: {fmt.listed(told)}."


def candidate_rows(selection: wire.SelectionView) -> list[dict[str, object]]:
    """All candidates with total, terms, inputs and why each lost."""
    terms = list(dict.fromkeys(name for c in selection.candidates for name in c.terms))
    inputs = list(dict.fromkeys(name for c in selection.candidates for name in c.inputs))
    return [
        {
            "Rank": c.rank,
            "Node": c.node,
            "Chosen": "✓ chosen" if c.chosen else "",
            "Total": _figure(c.total),
            **{f"term: {name}": _figure(c.terms.get(name)) for name in terms},
            "Why it lost": c.why_not,
            **{name: _figure(c.inputs.get(name)) for name in inputs},
        }
        for c in selection.candidates
    ]


def excluded_rows(selection: wire.SelectionView) -> list[dict[str, object]]:
    """Reasons, with the nodes each kept out."""
    return [
        {"Reason": REASONS.get(reason, reason.replace("_", " ")), "Nodes": ", ".join(nodes)}
        for reason, nodes in selection.excluded.items()
    ]


def selection_note(selection: wire.SelectionView) -> str:
    """How the selection works, in a line."""
    wins = "lowest" if selection.sense == "min" else "highest"
    size = selection.size or len(selection.candidates)
    tied = f"; {selection.tied} were tied, the seeded draw chose" if selection.tied > 1 else ""
    shown = "" if size <= len(selection.candidates) else f", {len(selection.candidates)} kept"
    return f"{size} candidates{shown}; the {wins} total wins{tied}"


def prediction_rows(row: wire.DecisionRow) -> list[dict[str, object]]:
    """Predicted against observed, with the limit."""
    o = row.outcome
    pairs = (
        ("Time to first token", row.predicted_ttft_s, o and o.ttft_s, row.ttft_slo_s),
        ("Time between tokens", row.predicted_tbt_s, o and o.tbt_s, row.tbt_slo_s),
    )
    return [
        {
            "What": name,
            "Predicted": fmt.seconds(predicted),
            "Observed": fmt.seconds(observed or None),
            "Observed / predicted": (
                fmt.digits(observed / predicted) if observed and predicted else fmt.NONE
            ),
            "Limit": fmt.seconds(limit),
        }
        for name, predicted, observed, limit in pairs
    ]


def unobserved(row: wire.DecisionRow) -> str:
    """Why the table of predictions lacks an observed time, as `conductor explain` says it."""
    o = row.outcome
    if o is None:
        return ""
    name = "time to first token" if o.no_ttft else "time between tokens"
    why = o.no_ttft or o.no_tbt
    return f"No observed {name}: {why}." if why else ""


def title(row: wire.DecisionRow, zone: tzinfo, zone_name: str) -> str:
    """Heading of one decision."""
    return f"{fmt.moment(row.at, zone)} {zone_name}, request {row.request_id}"


def facts(row: wire.DecisionRow) -> list[tuple[str, str]]:
    """What else is known, as label and value."""
    fetch = f"{fmt.count(row.fetch_tokens)} tokens from {row.fetch_from}" if row.fetch_from else ""
    pairs = [
        ("model", row.model + (f" + {row.adapter}" if row.adapter else "")),
        ("tenant", row.tenant),
        ("policy", f"{row.policy} · revision {row.revision}"),
        ("cache signal", row.signal),
        ("prefill", row.prefill_node),
        ("decode", row.decode_node),
        ("fetched", fetch),
        ("decision", row.id),
    ]
    return [(label, value) for label, value in pairs if value]


def _figure(value: float | None) -> float | None:
    """Four significant digits, as a number, so that the column still sorts."""
    return None if value is None else float(f"{value:.4g}")

"""Why a stored decision came out as it did: as values for the console, and as plain text.

Pure: reads one record and the registry of policies, needs no fleet and no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from core.audit_json import (
    Candidate,
    StoredCandidates,
    candidates_from_json,
    excluded_from_json,
)
from core.domain import OutcomeKind
from core.errors import NotFound
from core.policy import get_policy
from core.ports import DecisionRecord, OutcomeRecord, StoredDecision

DECODE_FORMULA = (
    "T_transfer + weight * T_tbt of the batch with this request in it; the lowest that keeps\n"
    "everyone's limit wins (S1 5)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One candidate, as it stood against the chosen one."""

    rank: int
    """1 is best. Past the 16 best only the chosen one is kept; its rank is then a lower bound."""
    node: str
    total: float
    chosen: bool
    behind: float
    """How much worse than the chosen total, in its unit; negative where it was better."""
    inputs: Mapping[str, float]
    terms: Mapping[str, float]
    why_not: str
    """Why it lost; empty for the chosen one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """Nodes that were no candidates for one reason; `more` counts those not named."""

    reason: str
    nodes: tuple[str, ...]
    more: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """One selection, prefill or decode: what competed, what could not."""

    sense: str
    """``min`` or ``max``: which total wins."""
    formula: str
    size: int
    """How many candidates there were; `candidates` may keep only the best."""
    tied: int
    candidates: tuple[Ranked, ...]
    excluded: tuple[Exclusion, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """One latency, in seconds: predicted, observed, and the limit; None where unknown."""

    predicted_s: float | None
    observed_s: float | None
    limit_s: float | None
    unobserved: str = ""
    """Why a request that has ended shows no observed time; empty where it shows one."""

    @property
    def missed(self) -> bool:
        """Whether the observed time broke the limit."""
        known = self.observed_s is not None and self.limit_s is not None
        return known and self.observed_s > self.limit_s  # type: ignore[operator]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A decision with everything that speaks for and against it."""

    decision: DecisionRecord
    outcome: OutcomeRecord | None
    verdict: str
    """One sentence: where it went or why it was refused."""
    prefill: Selection
    decode: Selection | None
    ttft: Latency
    tbt: Latency
    missed_match: str
    """Why less than the best match was taken; empty where it was taken."""


def explain(stored: StoredDecision) -> Explanation:
    """Explain one stored decision."""
    d, o = stored.decision, stored.outcome
    prefill = _selection(d.candidates, d.excluded, _formula(d.policy))
    decode = None
    if d.decode_candidates or d.decode_excluded:
        decode = _selection(d.decode_candidates, d.decode_excluded, DECODE_FORMULA)
    return Explanation(
        decision=d,
        outcome=o,
        verdict=_verdict(d),
        prefill=prefill,
        decode=decode,
        ttft=Latency(
            predicted_s=d.predicted_ttft_s,
            observed_s=o.ttft_s if o else None,
            limit_s=d.ttft_slo_s,
            unobserved=why_no_ttft(o) if o else "",
        ),
        tbt=Latency(
            predicted_s=d.predicted_tbt_s,
            observed_s=o.tbt_s if o else None,
            limit_s=d.tbt_slo_s,
            unobserved=why_no_tbt(o) if o else "",
        ),
        missed_match=_missed_match(d, prefill),
    )


_NO_TOKEN = {
    OutcomeKind.OK: "not streamed: the answer came whole, so no token was seen on its own",
    OutcomeKind.REFUSED: "the engine refused the request before a first token",
    OutcomeKind.CLIENT_ABORT: "the client left before a first token",
    OutcomeKind.LOST: "no end of the request was seen",
}
_FAILED = "it failed before a first token"
_NOT_TOLD = "whoever carried the request out did not report it"


def why_no_ttft(o: OutcomeRecord) -> str:
    """Why an outcome has no observed time to first token; empty where it has one."""
    if o.ttft_s is not None:
        return ""
    if o.kind == OutcomeKind.OK and o.e2e_s is None:  # the gateway always knows how long it took
        return _NOT_TOLD
    return _NO_TOKEN.get(OutcomeKind(o.kind), _FAILED)


def why_no_tbt(o: OutcomeRecord) -> str:
    """The same of the time between tokens."""
    if o.tbt_s is not None:
        return ""
    return why_no_ttft(o) or "no two tokens were seen one after the other"


def _verdict(d: DecisionRecord) -> str:
    if not d.placed:
        wait = f" Retry after {d.retry_after_s:.3g} s." if d.retry_after_s else ""
        return f"Refused with {d.status} {d.code}: {d.message}.{wait}"
    if d.decode_node == d.prefill_node:
        return f"Placed on {d.prefill_node}."
    return f"Placed on {d.prefill_node} for prefill and {d.decode_node} for decode."


def _formula(policy: str) -> str:
    try:
        return get_policy(policy).doc.strip()
    except NotFound:  # a record of a policy that is gone is still worth reading
        return ""


def _selection(candidates: str, excluded: str, formula: str) -> Selection:
    table = candidates_from_json(candidates)
    out = tuple(
        Exclusion(reason=reason, nodes=tuple(nodes), more=more)
        for reason, (nodes, more) in excluded_from_json(excluded).items()
    )
    if table is None:
        return Selection(sense="min", formula=formula, size=0, tied=0, candidates=(), excluded=out)
    return Selection(
        sense=table.sense,
        formula=formula,
        size=table.size,
        tied=table.tied,
        candidates=tuple(_ranked(table)),
        excluded=out,
    )


def _ranked(table: StoredCandidates) -> Iterator[Ranked]:
    sign = 1.0 if table.sense == "min" else -1.0
    chosen = next((row for row in table.rows if row.chosen), table.rows[0])
    for position, row in enumerate(table.rows):
        yield Ranked(
            rank=position + 1,
            node=row.node,
            total=row.total,
            chosen=row.chosen,
            behind=sign * (row.total - chosen.total),
            inputs=row.inputs,
            terms=row.terms,
            why_not="" if row is chosen else _why_not(row, chosen, table, position),
        )


def _why_not(row: Candidate, chosen: Candidate, table: StoredCandidates, position: int) -> str:
    if row.inputs.get("feasible", 1.0) == 0.0 != chosen.inputs.get("feasible", 1.0):
        tbt_ms = row.inputs.get("tbt_s", 0.0) * 1e3
        return f"its batch would break a limit: {tbt_ms:.3g} ms between tokens predicted"
    sign = 1.0 if table.sense == "min" else -1.0
    behind = sign * (row.total - chosen.total)
    mine, theirs = (c.inputs.get("node_weight", 1.0) for c in (row, chosen))
    if position < table.tied and abs(behind) <= 1e-5 * abs(chosen.total):
        return "equal total; the seeded draw took the other"
    if behind < 0:
        return f"better total ({_figure(row.total)} against {_figure(chosen.total)}), yet not taken"
    return f"{_figure(behind)} worse in total{_main_term(row, chosen, sign, behind)}" + (
        f"; node weights {_figure(mine)} against {_figure(theirs)}" if mine != theirs else ""
    )


def _main_term(row: Candidate, chosen: Candidate, sign: float, behind: float) -> str:
    """The term that speaks most against `row`: by its share where terms add up to the total,
    else by its relative difference, since then its direction is not known."""
    gaps = {
        name: sign * (value - chosen.terms.get(name, 0.0))
        for name, value in row.terms.items()
        if value != chosen.terms.get(name, 0.0)
    }
    if not gaps:
        return ""
    additive = abs(sum(gaps.values()) - behind) <= 0.02 * abs(behind)

    def weight(name: str) -> float:
        return gaps[name] if additive else _relative(row.terms[name], chosen.terms.get(name, 0.0))

    name = max(gaps, key=weight)
    mine, theirs = row.terms[name], chosen.terms.get(name, 0.0)
    return f", mostly {name}: {_figure(mine)} against {_figure(theirs)}"


def _relative(a: float, b: float) -> float:
    largest = max(abs(a), abs(b))
    return abs(a - b) / largest if largest else 0.0


def _missed_match(d: DecisionRecord, prefill: Selection) -> str:
    if not d.placed or d.match_tokens >= d.reachable_tokens:
        return ""
    best = max(prefill.candidates, key=_held, default=None)
    held = _held(best) if best else 0.0
    if best is None or best.chosen or held < d.reachable_tokens:
        return (
            f"The node that holds {d.reachable_tokens} tokens was no candidate, "
            "or is not among the best that were kept."
        )
    return f"{best.node} holds {held:.0f} tokens, but lost: {best.why_not}."


def _held(c: Ranked) -> float:
    """Matched tokens that a candidate held; policies also see those under way."""
    return c.inputs.get("match_tokens", 0.0) - c.inputs.get("coming_tokens", 0.0)


def explain_json(stored: StoredDecision) -> str:
    """The explanation of one stored decision as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(explain(stored))).decode()


def explain_text(stored: StoredDecision) -> str:
    """The explanation of one stored decision as plain text."""
    return explanation_text(explain(stored))


# -- text ------------------------------------------------------------------------------------


def explanation_text(e: Explanation) -> str:
    """The explanation as plain text, at most about 110 characters wide."""
    blocks = [
        _head_text(e),
        _match_text(e),
        _latency_text(e),
        _selection_text("Prefill", e.decision.policy, e.prefill),
    ]
    if e.decode is not None:
        blocks.append(_selection_text("Decode", "", e.decode))
    blocks.append(_outcome_text(e))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _head_text(e: Explanation) -> str:
    d = e.decision
    of = "".join(
        f", {label} {value}"
        for label, value in (("adapter", d.adapter), ("tenant", d.tenant), ("attempt", d.attempt))
        if value
    )
    lines = [
        f"Decision {d.id} at {d.at:%Y-%m-%d %H:%M:%S.%f} UTC",
        f"Request {d.request_id}: model {d.model}, {d.prompt_tokens} prompt tokens{of}",
        e.verdict,
        f"Policy {d.policy}, revision {d.revision}" + (f", signal {d.signal}" if d.signal else ""),
        *(f"Note: {note}" for note in d.notes.splitlines()),
    ]
    return "\n".join(lines)


def _match_text(e: Explanation) -> str:
    d, o = e.decision, e.outcome
    rows = [("chosen node holds", d.match_tokens if d.placed else None, "")]
    rows.append(("best match reachable", d.reachable_tokens, ""))
    if d.fetch_from:
        rows.append(("fetched", d.fetch_tokens, f" from {d.fetch_from}"))
    if o is not None:
        rows.append(("engine reported", o.cached_tokens, ""))
    lines = ["Cached prompt tokens"]
    for label, tokens, tail in rows:
        share = f" ({tokens / d.prompt_tokens:.1%})" if tokens and d.prompt_tokens else ""
        lines.append(f"  {label:<22}{'unknown' if tokens is None else tokens}{share}{tail}")
    if e.missed_match:
        lines.append(f"  {e.missed_match}")
    return "\n".join(lines)


def _latency_text(e: Explanation) -> str:
    d = e.decision
    lines = [f"{'Latency':<22}{'predicted':>12}{'observed':>12}{'limit':>12}"]
    for label, times in (("time to first token", e.ttft), ("time between tokens", e.tbt)):
        missed = "  missed" if times.missed else ""
        figures = (times.predicted_s, times.observed_s, times.limit_s)
        lines.append(f"  {label:<20}" + "".join(f"{_time(t):>12}" for t in figures) + missed)
    parts = (
        ("queue", d.predicted_queue_s),
        ("transfer", d.predicted_transfer_s),
        ("prefill", d.predicted_prefill_s),
    )
    if d.predicted_ttft_s is not None:
        text = ", ".join(f"{name} {_time(value)}" for name, value in parts)
        lines.insert(2, f"    of which {text}")
    reasons = dict.fromkeys(t.unobserved for t in (e.ttft, e.tbt) if t.unobserved)
    names = "time to first token" if e.ttft.unobserved else "time between tokens"
    lines += [f"  no observed {names}: {reason}" for reason in reasons]
    if d.decide_s is not None:
        waited = f", after {_time(d.waited_s)} in the queue" if d.waited_s else ""
        lines.append(f"  decided in {_time(d.decide_s)}{waited}")
    return "\n".join(lines)


def _selection_text(title: str, policy: str, s: Selection) -> str:
    wins = {"min": "lowest", "max": "highest"}[s.sense]
    name = f" by {policy}" if policy else ""
    count = "1 candidate" if s.size == 1 else f"{s.size} candidates"
    lines = [f"{title}{name}: {count}, the {wins} total wins"]
    if s.tied > 1:
        lines[0] += f"; {s.tied} tied, drawn by seed"
    lines += [f"  {line.strip()}" for line in s.formula.splitlines() if line.strip()]
    lines += _table_text(s)
    for c in s.candidates:
        if c.why_not:
            lines.append(f"  {c.node}: {c.why_not}")
    for x in s.excluded:
        more = f" and {x.more} more" if x.more else ""
        lines.append(f"  excluded, {x.reason}: {', '.join(x.nodes)}{more}")
    return "\n".join(lines)


def _table_text(s: Selection) -> list[str]:
    """Candidates as aligned columns: total, terms, then the inputs that repeat no other column."""
    if not s.candidates:
        return []
    terms = list(s.candidates[0].terms)
    columns = {tuple(c.terms[name] for c in s.candidates): "" for name in terms}
    for name in s.candidates[0].inputs:
        columns.setdefault(tuple(c.inputs[name] for c in s.candidates), name)
    inputs = [name for name in columns.values() if name]
    rows = [["", "node", "total", *terms, *inputs]]
    for c in s.candidates:
        figures = [*(c.terms[n] for n in terms), *(c.inputs[n] for n in inputs)]
        mark = "*" if c.chosen else str(c.rank)
        rows.append([mark, c.node, _figure(c.total), *(_figure(v) for v in figures)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _outcome_text(e: Explanation) -> str:
    o = e.outcome
    if o is None:
        return "No outcome yet." if e.decision.placed else ""
    text = f"Outcome: {o.kind}"
    if o.output_tokens is not None:
        text += f", {o.output_tokens} tokens"
    if o.e2e_s is not None:
        text += f" in {_time(o.e2e_s)}"
    if o.status is not None:
        text += f", status {o.status}"
    if o.failed_node:
        text += f", {o.failed_node} failed"
    return text + (f": {o.error}" if o.error else "") + "."


def _figure(value: float) -> str:
    """Whole numbers in full, others with 4 significant digits."""
    whole = abs(value) < 1e15 and value == int(value)
    return str(int(value)) if whole else f"{value:.4g}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.3g} ms" if abs(seconds) < 1 else f"{seconds:.3g} s"

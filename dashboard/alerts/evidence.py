"""What stands behind an alert's value, in words. Pure; facts as `core.gateway.monitoring` tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dashboard.breaker.models import evidence_words
from dashboard.parts import format as fmt

Facts = Mapping[str, object]
_ITSELF = ("alert", "severity", "summary", "value", "limit")
"""Facts that are told beside the evidence."""
_WITH = ("objective", "checked")
"""Facts that are told within another's sentence."""
WINDOWS: dict[str, tuple[str, str]] = {
    "slo_burn_fast": ("1 h", "5 min"),
    "slo_burn_slow": ("6 h", "30 min"),
    "slo_burn_long": ("3 d", "6 h"),
}
"""Burn rule -> its long and its short window."""


def alert_evidence(rule: str, facts: Facts) -> str:
    """The facts in a line; empty where the value says all."""
    rest = {k: v for k, v in facts.items() if k not in _ITSELF}
    said = []
    for names, words in _PHRASES:
        if all(name in rest for name in names):
            said.append(words(rule, rest))
            rest = {k: v for k, v in rest.items() if k not in (*names, *_WITH)}
    said.append(evidence_words(rest))
    return "; ".join(filter(None, said))


def _burn(rule: str, facts: Facts) -> str:
    long, short = WINDOWS.get(rule, ("the long window", "the short window"))
    objective = facts.get("objective")
    kept = f"; the objective is {_share(objective, 2)} within limits" if objective else ""
    return f"{_window(long, 'long', facts)}; {_window(short, 'short', facts)}{kept}"


def _window(span: str, name: str, facts: Facts) -> str:
    counts = facts[name]
    total, bad, errors = counts if isinstance(counts, list) and len(counts) == 3 else (0, 0, 0)
    return (
        f"in {span} {fmt.count(bad)} of {fmt.counted(total, 'request')} missed their limits, "
        f"{fmt.count(errors)} failed, burn rate {_number(facts[f'{name}_rate'])}"
    )


def _balance(_rule: str, facts: Facts) -> str:
    return f"the busiest of {_number(facts['nodes'])} prefill nodes is {facts['busiest']}"


def _signal(_rule: str, facts: Facts) -> str:
    others = int(_value(facts["nodes"])) - 1
    more = f", and of {fmt.counted(others, 'other node')}" if others > 0 else ""
    return f"longest that of {facts['node']}{more}"


def _dead(_rule: str, facts: Facts) -> str:
    dead = facts["dead"]
    return fmt.listed([str(d) for d in dead]) if isinstance(dead, list) else ""


def _groups(_rule: str, facts: Facts) -> str:
    groups = facts["groups"]
    names = [str(g)[:8] for g in groups] if isinstance(groups, list) else []
    return f"prefix groups that are not calm: {fmt.listed(names)}" if names else "all are calm now"


def _spread(_rule: str, facts: Facts) -> str:
    return f"most reuse on {facts['best']}, least on {facts['worst']}"


def _hit(_rule: str, facts: Facts) -> str:
    achieved, reachable = _share(facts["achieved"]), _share(facts["reachable"])
    return f"{achieved} of the prompt tokens reused where {reachable} could be"


def _decisions(_rule: str, facts: Facts) -> str:
    ttft = facts["ttft_p50_s"]
    median = "no answer was streamed" if ttft is None else f"median TTFT {_seconds(ttft)}"
    of = fmt.counted(int(_value(facts["decisions"])), "decision")
    return f"p99 of {of} in 5 min {_seconds(facts['decision_p99_s'])}, {median}"


def _audit(_rule: str, facts: Facts) -> str:
    checked = facts.get("checked")
    read = f" ({fmt.count(_value(checked))} were read)" if checked else ""
    return f"entry {facts['entry']}: {str(facts['what']).replace('_', ' ')}{read}"


def _spool(_rule: str, facts: Facts) -> str:
    return f"{fmt.count(_value(facts['rows']))} rows wait{_error(facts)}"


def _dropped(_rule: str, facts: Facts) -> str:
    return f"{fmt.count(_value(facts['total']))} given up since the start{_error(facts)}"


def _error(facts: Facts) -> str:
    return f"; the last error was: {facts['error']}" if facts["error"] else ""


_PHRASES: tuple[tuple[tuple[str, ...], Callable[[str, Facts], str]], ...] = (
    (("long", "short", "long_rate", "short_rate"), _burn),
    (("busiest", "nodes"), _balance),
    (("node", "nodes"), _signal),
    (("dead",), _dead),
    (("groups",), _groups),
    (("best", "worst"), _spread),
    (("achieved", "reachable"), _hit),
    (("decisions", "decision_p99_s", "ttft_p50_s"), _decisions),
    (("entry", "what"), _audit),
    (("rows", "error"), _spool),
    (("total", "error"), _dropped),
)
"""Facts that belong together -> their sentence."""


def _value(given: object) -> float:
    return float(given) if isinstance(given, (int, float)) else 0.0


def _seconds(given: object) -> str:
    return fmt.seconds(_value(given))


def _number(given: object) -> str:
    return fmt.digits(_value(given))


def _share(given: object, places: int = 0) -> str:
    return fmt.share(_value(given), places)

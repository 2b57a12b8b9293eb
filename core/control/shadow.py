"""A second revision scores live traffic and routes nothing: budget and comparison. Pure.

The budget is a share of the time that real decisions take. Each real decision earns its share;
a scoring is made only when what was earned covers what scorings cost lately, and pays what it
really cost. When the event loop runs late, nothing is scored: the shadow sheds first.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from core.domain import Decision, Rejection
from core.tunables import Shadow as Rules

_SMOOTH = 0.1
_SAVED_MAX = 4
"""Scorings' worth of budget that can be saved up: no burst after a pause."""
MOVES_MAX = 256


class Budget:
    """Decides which decisions are scored a second time."""

    def __init__(self) -> None:
        self.saved_s = 0.0
        self.cost_s: float | None = None
        self.decided_s = 0.0
        self.spent_s = 0.0
        self.shed = 0

    def allows(self, decided_s: float, rules: Rules, *, lag_s: float) -> bool:
        """Earn from a decision that took `decided_s`; whether its scoring is paid for."""
        cost = decided_s if self.cost_s is None else self.cost_s
        self.decided_s += decided_s
        self.saved_s = min(self.saved_s + rules.cost_share_max * decided_s, _SAVED_MAX * cost)
        late = lag_s > rules.lag_max_s
        within = self.spent_s + cost <= rules.cost_share_max * self.decided_s
        if late or self.saved_s < cost or not within:
            self.shed += 1
            return False
        return True

    def spent(self, seconds: float) -> None:
        """Pay for a scoring."""
        self.spent_s += seconds
        self.saved_s -= seconds
        old = self.cost_s
        self.cost_s = seconds if old is None else old + _SMOOTH * (seconds - old)

    @property
    def share(self) -> float:
        """What scoring has added to decision time so far."""
        return self.spent_s / self.decided_s if self.decided_s else 0.0


@dataclass(slots=True)
class Expected:
    """What one revision expects over the scored decisions it would place."""

    placed: int = 0
    refused: int = 0
    ttft_s: float = 0.0
    tbt_s: float = 0.0
    prompt_tokens: int = 0
    match_tokens: int = 0
    work_s: dict[str, float] = field(default_factory=dict)
    """Predicted prefill seconds by node."""

    def add(self, decided: Decision | Rejection) -> None:
        """Count one decision."""
        if isinstance(decided, Rejection):
            self.refused += 1
            return
        self.placed += 1
        self.ttft_s += decided.predicted.ttft_s
        self.tbt_s += decided.predicted.tbt_s
        self.prompt_tokens += decided.request.prompt_tokens
        self.match_tokens += decided.match_tokens
        done_s = self.work_s.get(decided.prefill, 0.0)
        self.work_s[decided.prefill] = done_s + decided.predicted.prefill_s

    @property
    def hit(self) -> float | None:
        """Matched over prompt tokens."""
        return self.match_tokens / self.prompt_tokens if self.prompt_tokens else None

    def imbalance(self, nodes: int) -> float | None:
        """`nodes` times the largest node's share of the predicted prefill time; 1 is even."""
        total = sum(self.work_s.values())
        return nodes * max(self.work_s.values()) / total if total else None


class Tally:
    """How the two revisions compare on the same requests in the same state of the fleet."""

    def __init__(self) -> None:
        self.scored = 0
        self.agreed = 0
        self.live, self.candidate = Expected(), Expected()
        self.moves: Counter[tuple[str, str]] = Counter()

    def add(self, live: Decision | Rejection, candidate: Decision | Rejection) -> None:
        """Count one request that both decided."""
        self.scored += 1
        self.live.add(live)
        self.candidate.add(candidate)
        pair = _place(live), _place(candidate)
        if pair[0] == pair[1]:
            self.agreed += 1
        elif pair in self.moves or len(self.moves) < MOVES_MAX:
            self.moves[pair] += 1


def _place(decided: Decision | Rejection) -> str:
    return "refused" if isinstance(decided, Rejection) else decided.prefill

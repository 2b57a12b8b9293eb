"""Where cache hits fall: tokens by node and by prefix group over the last minute. Pure."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from core.domain import NodeId

STEP_S = 5.0
STEPS = 12
GROUPS_MAX = 512
"""Prefix groups counted in one step; further ones go together."""
OTHERS = 0


@dataclass(slots=True)
class Hits:
    """Tokens of the requests counted."""

    requests: int = 0
    prompt_tokens: int = 0
    match_tokens: int = 0

    @property
    def share(self) -> float:
        """Matched over prompt tokens; 0 without any."""
        return self.match_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def add(self, other: Hits) -> None:
        """Count another's too."""
        self.requests += other.requests
        self.prompt_tokens += other.prompt_tokens
        self.match_tokens += other.match_tokens


@dataclass(slots=True)
class _Step:
    start_s: float
    nodes: dict[NodeId, Hits] = field(default_factory=dict)
    groups: dict[int, Hits] = field(default_factory=dict)


class HitTally:
    """A ring of steps of five seconds."""

    def __init__(self) -> None:
        self._steps: deque[_Step] = deque(maxlen=STEPS)

    def placed(self, node: NodeId, group: int | None, prompt: int, match: int, now: float) -> None:
        """Count a decision."""
        step = self._step(now)
        _count(step.nodes.setdefault(node, Hits()), prompt, match)
        if group is not None:
            known = group in step.groups or len(step.groups) < GROUPS_MAX
            _count(step.groups.setdefault(group if known else OTHERS, Hits()), prompt, match)

    def nodes(self, now: float) -> dict[NodeId, Hits]:
        """By node, the last minute."""
        found: dict[NodeId, Hits] = {}
        for step in self._recent(now):
            for node, hits in step.nodes.items():
                found.setdefault(node, Hits()).add(hits)
        return found

    def groups(self, now: float) -> dict[int, Hits]:
        """By prefix group, the last minute; most matched tokens first."""
        found: dict[int, Hits] = {}
        for step in self._recent(now):
            for group, hits in step.groups.items():
                found.setdefault(group, Hits()).add(hits)
        return dict(sorted(found.items(), key=lambda kv: (-kv[1].match_tokens, kv[0])))

    def _recent(self, now: float) -> list[_Step]:
        return [s for s in self._steps if s.start_s > now - STEP_S * STEPS]

    def _step(self, now: float) -> _Step:
        start = math.floor(now / STEP_S) * STEP_S
        if not self._steps or self._steps[-1].start_s < start:
            self._steps.append(_Step(start))
        return self._steps[-1]


def _count(hits: Hits, prompt: int, match: int) -> None:
    hits.requests += 1
    hits.prompt_tokens += prompt
    hits.match_tokens += match

"""The weighted sum of cache and idleness."""

from __future__ import annotations

from core.policy.arithmetic import match_share
from core.policy.base import Candidates, Scores, policy
from core.tunables import Tunables


@policy("linear", sense="max", source="S1 3.1")
def linear(c: Candidates, t: Tunables) -> Scores:
    """alpha * M/L + beta * (1 - load); the highest wins. An empty prompt has M/L = 0."""
    cache = t.linear.alpha * match_share(c)
    idle = t.linear.beta * (1.0 - c.load)
    return Scores(cache + idle, {"cache": cache, "idle": idle})

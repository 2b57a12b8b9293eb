"""llm-d's two default scheduling profiles."""

from __future__ import annotations

import numpy as np

from core.policy.arithmetic import match_share
from core.policy.base import Candidates, Floats, Scores, policy
from core.tunables import Tunables


@policy(
    "llmd_weighted",
    sense="max",
    source="llm-d/llm-d-router, classic profile: queue 2, kv 2, prefix 3",
    leaves_out="predicted latency, LoRA affinity, flow control; ties are drawn, not rotated",
)
def llmd_weighted(c: Candidates, t: Tunables) -> Scores:
    """2 * queue + 2 * kv + 3 * prefix; the highest wins.

    queue = (max - waiting) / (max - min) over the candidates, 1 when all are equal; kv = 1 -
    share of KV in use; prefix = M/L.
    """
    w = t.llmd_weighted
    queue = w.queue * _spread(c.waiting)
    kv = w.kv * (np.ones(c.size) if c.kv_usage is None else 1.0 - c.kv_usage)
    prefix = w.prefix * match_share(c)
    return Scores(queue + kv + prefix, {"queue": queue, "kv": kv, "prefix": prefix})


@policy(
    "llmd_default_2026",
    sense="max",
    source="llm-d/llm-d-router, 2026 default: prefix affinity filter, then token load",
    leaves_out="the 1 % of requests that ignore the filter; the latency predictor",
)
def llmd_default_2026(c: Candidates, t: Tunables) -> Scores:
    """[sticky] + 1 - min(1, in-flight tokens / 4,194,304); the highest wins.

    Nodes with M/L >= 0.8 are sticky: they outrank all others, unless the best of them would
    answer more than 18 s later than the best of the others, TTFT being taken as in-flight
    tokens / 15,928 per second. Then nobody is sticky.
    """
    g = t.llmd_default_2026
    active = c.queued_tokens if c.inflight_tokens is None else c.inflight_tokens
    sticky = _sticky(match_share(c) >= g.prefix_share_min, active / g.tokens_per_s, g.penalty_s)
    room = 1.0 - np.minimum(active / g.token_load_max, 1.0)
    return Scores(sticky + room, {"sticky": sticky, "room": room})


def _spread(x: Floats) -> Floats:
    """(max - x) / (max - min) in 0..1; 1 where all are equal."""
    high, low = float(x.max()), float(x.min())
    return (high - x) / (high - low) if high > low else np.ones(len(x))


def _sticky(holds: np.ndarray, ttft_s: Floats, penalty_s: float) -> Floats:
    if not holds.any() or holds.all():
        return np.zeros(len(holds))
    best, other = float(ttft_s[holds].min()), float(ttft_s[~holds].min())
    return np.zeros(len(holds)) if best > other + penalty_s else holds.astype(np.float64)

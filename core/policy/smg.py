"""The SGLang model gateway's cache-aware routing."""

from __future__ import annotations

import numpy as np

from core.policy.arithmetic import match_share, new_tokens
from core.policy.base import Candidates, Floats, Scores, policy
from core.tunables import Tunables


@policy(
    "smg_cache_aware",
    sense="min",
    source="lightseekorg/smg, cache_aware",
    leaves_out="its own approximate tree (our index stands in for it); triggers on KV spread",
)
def smg_cache_aware(c: Candidates, t: Tunables) -> Scores:
    """One of three rules for the whole request; the lowest wins.

    Requests in flight spread by more than 32 and max > 1.1 * min: fewest in flight. Else the
    best M/L above 0.5: fewest uncached tokens. Else: fewest in flight.
    """
    if _unbalanced(c.batch, t) or _best_share(c) <= t.smg_cache_aware.match_share_min:
        return Scores(c.batch, {"batch": c.batch})
    tokens = new_tokens(c).astype(np.float64)
    return Scores(tokens, {"new": tokens})


def _unbalanced(batch: Floats, t: Tunables) -> bool:
    high, low = float(batch.max()), float(batch.min())
    g = t.smg_cache_aware
    return high - low > g.spread_max and high > g.ratio_max * low


def _best_share(c: Candidates) -> float:
    return float(match_share(c).max())

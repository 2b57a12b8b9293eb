"""Fewest tokens left to compute."""

from __future__ import annotations

import numpy as np

from core.policy.arithmetic import new_tokens
from core.policy.base import Candidates, Scores, policy
from core.tunables import Tunables


@policy("least_prefill_work", sense="min", source="public practice")
def least_prefill_work(c: Candidates, t: Tunables) -> Scores:  # noqa: ARG001
    """Q + max(L - M, 0); the lowest wins."""
    tokens = new_tokens(c).astype(np.float64)
    return Scores(c.queued_tokens + tokens, {"queued": c.queued_tokens, "new": tokens})

"""Small sums that several policies share."""

from __future__ import annotations

import numpy as np

from core.policy.base import Candidates, Floats, Ints
from core.tunables import Tunables


def new_tokens(c: Candidates) -> Ints:
    """max(L - M(n), 0): prompt tokens that n would have to compute, shape (k,)."""
    return np.maximum(c.prompt_tokens - c.match_tokens, 0)


def match_share(c: Candidates) -> Floats:
    """M(n) / L in 0..1, shape (k,); 0 for an empty prompt."""
    return c.match_tokens / max(c.prompt_tokens, 1)


def open_load(c: Candidates, t: Tunables) -> Floats:
    """load(n) whose queue part goes on above 1, shape (k,).

    load(n) ends at 1, so under overload it calls every node equal; the queue still tells them
    apart.
    """
    return np.maximum(c.load, c.queue_s / t.load.horizon_s)

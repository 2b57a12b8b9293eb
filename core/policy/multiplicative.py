"""New tokens times batch size."""

from __future__ import annotations

import numpy as np

from core.policy.arithmetic import new_tokens
from core.policy.base import Candidates, Scores, policy
from core.tunables import Tunables

_BATCH_DECIDES = 1e-6
"""Share of B added to the product: below any difference of products of whole tokens."""


@policy("multiplicative", sense="min", source="S3 2, 5.2; L", needs=("network",))
def multiplicative(c: Candidates, t: Tunables) -> Scores:
    """P * max(B, 1), P = Q + max(L - M, 0); the lowest wins.

    Equal products, such as P = 0 on several nodes, go to the smaller B. Options: Q may be left
    out of P, log(1 + P) tames very long prompts, the priority weight of the tenant or class
    multiplies P, and so does 1 + w * (1 - closeness) for the network. The share of experts
    (S3 5.2) is left out, since no engine reports it.
    """
    m = t.multiplicative
    tokens = new_tokens(c)
    work = c.queued_tokens + tokens if m.count_queued else tokens.astype(np.float64)
    if m.log_tokens:
        work = np.log1p(work)
    if c.priority_weight != 1.0:
        work = work * c.priority_weight
    if m.network_weight:
        work = work * (1.0 + m.network_weight * (1.0 - c.network))
    total = work * np.maximum(c.batch, 1.0) + _BATCH_DECIDES * c.batch
    return Scores(total, {"tokens": work, "batch": c.batch})

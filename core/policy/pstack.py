"""production-stack's load-aware routing."""

from __future__ import annotations

import numpy as np

from core.policy.arithmetic import match_share
from core.policy.base import Candidates, Scores, policy
from core.tunables import Tunables


@policy(
    "pstack_loadaware",
    sense="max",
    source="vllm-project/production-stack, loadaware",
    leaves_out="the look-up in LMCache's controller: our index stands in for it",
)
def pstack_loadaware(c: Candidates, t: Tunables) -> Scores:
    """M/L - beta * (load - mean) / max(1, mean) over requests in flight; the highest wins."""
    cache = match_share(c)
    mean = float(np.add.reduce(c.batch)) / c.size
    excess = (t.pstack_loadaware.beta / max(1.0, mean)) * (mean - c.batch)
    return Scores(cache + excess, {"cache": cache, "load": excess})

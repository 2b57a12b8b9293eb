"""Five scorers of the node, weighted."""

from __future__ import annotations

import numpy as np

from core.policy.base import Candidates, Floats, Scores, policy
from core.tunables import Tunables


@policy("weighted", sense="max", source="S2 4.4.3", needs=("network",))
def weighted(c: Candidates, t: Tunables) -> Scores:
    """0.3 (1-load) + 0.2 (1-queue/max_queue) + 0.2 compute + 0.15 network + 0.15 [model cached].

    The highest wins. The weights are live and sum to 1. queue is the requests waiting on n;
    network is the closeness to the best holder, the formula's only view of the cache.
    """
    w = t.weighted
    terms: dict[str, Floats] = {
        "load": w.load * (1.0 - c.load),
        "queue": w.queue * (1.0 - c.waiting / np.maximum(c.queue_max, 1.0)),
        "compute": w.compute * c.compute,
        "network": w.network * c.network,
        "model": np.where(c.resident, w.model, 0.0),
    }
    total = terms["load"] + terms["queue"] + terms["compute"] + terms["network"] + terms["model"]
    return Scores(total, terms)

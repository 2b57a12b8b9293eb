"""One session, one node."""

from __future__ import annotations

import numpy as np

from core.policy.arithmetic import open_load
from core.policy.base import Candidates, Scores, policy
from core.tunables import Tunables


@policy("session_affinity", sense="max", source="S1 1.2", needs=("session",))
def session_affinity(c: Candidates, t: Tunables) -> Scores:
    """Rendezvous rank of n for the session; the highest wins.

    A session moves only when its node is no candidate, and then the others' sessions stay. A
    request without a session goes to the least loaded node: 1 / (1 + max(load, T_queue/horizon)).
    """
    if c.session_hash is not None:
        rank = c.session_hash.astype(np.float64)
        return Scores(rank, {"rank": rank})
    return Scores(1.0 / (1.0 + open_load(c, t)), {"load": c.load, "queue": c.queue_s})

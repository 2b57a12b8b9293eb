"""Nodes in turn."""

from __future__ import annotations

import numpy as np

from core.policy.base import Candidates, Scores, policy
from core.tunables import Tunables


@policy("round_robin", sense="min", source="S1 1.2")
def round_robin(c: Candidates, t: Tunables) -> Scores:  # noqa: ARG001
    """Sequence number of the last decision for n; the least recently picked wins.

    Nodes never picked share -1 and come first, in drawn order. A node that is no candidate for
    a while is simply next when it returns.
    """
    turn = c.last_picked.astype(np.float64)
    return Scores(turn, {"last_picked": turn})

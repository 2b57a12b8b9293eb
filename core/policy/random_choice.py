"""Any node."""

from __future__ import annotations

import numpy as np

from core.policy.base import Candidates, Scores, policy
from core.tunables import Tunables


@policy("random", sense="min", source="S1 1.2")
def random_choice(c: Candidates, t: Tunables) -> Scores:  # noqa: ARG001
    """Equal totals: the seeded draw among ties chooses."""
    return Scores(np.zeros(c.size))

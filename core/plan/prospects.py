"""What a request that waits looks at: who could serve it, and whether one of them has room."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from core.fleet import load as loads
from core.fleet.state import FleetState
from core.plan.case import Case
from core.tunables import Tunables


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospects:
    """Of one request at one moment. Seconds are inf where nobody could serve it."""

    nodes: int
    """That could serve it, load aside (and, of a cold prefix, that compute it)."""
    roomy: int
    """Of those, with a short prefill queue and a place in their batch."""
    prefill_s: float
    """Least time to compute its prompt, without any queue."""
    queue_s: float
    """Least prefill queue among them."""


NOBODY = Prospects(nodes=0, roomy=0, prefill_s=math.inf, queue_s=math.inf)


def prospects(fleet: FleetState, case: Case, t: Tunables) -> Prospects:
    """The prospects of an opened case."""
    left, length = case.left, case.request.prompt_tokens
    if not left.count:
        return NOBODY
    rows = left.rows
    wait_s = loads.queue_s(fleet, case.now)[rows]
    cached = case.credit[rows]
    batch = (fleet.prefilling + fleet.decoding)[rows]
    cost_s = fleet.c0[rows] + (length - cached) * (
        fleet.c1[rows] + fleet.c2[rows] * (length + cached)
    )
    room = (wait_s < t.admission.room_s) & (batch < fleet.batch_max[rows])
    return Prospects(
        nodes=left.count,
        roomy=int(np.count_nonzero(room)),
        prefill_s=float(cost_s.min()),
        queue_s=float(wait_s.min()),
    )


def room_anywhere(fleet: FleetState, t: Tunables, now: float) -> bool:
    """Whether any node at work has room for anybody; True where no node is at work at all, since
    nobody should wait for that."""
    working = fleet.prefills & fleet.healthy & ~fleet.draining
    if not working.any():
        return True
    batch = fleet.prefilling + fleet.decoding
    room = (loads.queue_s(fleet, now) < t.admission.room_s) & (batch < fleet.batch_max)
    return bool((working & room).any())

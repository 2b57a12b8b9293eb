"""Counting prefixes under way for a decision, and gathering who shares a cold one (spec 10).

Credit: a node that computes a prefix is scored as if it held it, since the request would wait
for that computation in the node's queue anyway. Where nodes can fetch prefixes from each other
nothing is credited: what is not there yet cannot be fetched. Nor is a further copy of what some
node holds already, while another node is idle: to compute it there delays nobody and makes one
more holder, where waiting for the copy would keep a hot prefix on few nodes. (A simulated hot
prompt at 50 to 90 % load: mean TTFT 8 to 17 % below that without credit, p99 5 to 47 %; with such
copies credited the p99 fell as far, but the mean rose by up to 79 %.)

Gathering: while a prefix that nobody holds is being computed, requests that share at least
`shared_tokens_min` tokens of it go to the nodes at work on it. Left to the policy each of them
would find an idle node that computes the prefix just as soon, until every node had done so. Only
while fewer than `copies_max` nodes are at work may a request begin another copy, and only where
that brings its first token sooner.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from core.domain import Reason
from core.fleet import load as loads
from core.fleet.state import FleetState
from core.plan.case import Case
from core.policy.constraints import narrowed
from core.tunables import Tunables

Ints = npt.NDArray[np.int64]
GATHERED = "follows a prefix that was computed there for all who share it"
"""Note of such a decision: it was gathered on purpose, and is no sign of a hotspot."""


def credited(
    fleet: FleetState, case: Case, coming: Mapping[int, int], copies: Collection[int]
) -> Ints:
    """The match row with what is coming; the case's own row where that adds nothing.

    copies: those of the slots that compute what some node held already when they began.
    """
    mask, row = case.standing.mask, case.match
    more = {slot: tokens for slot, tokens in coming.items() if tokens > row[slot] and mask[slot]}
    if copies and more and _idle_elsewhere(fleet, case, coming):
        more = {slot: tokens for slot, tokens in more.items() if slot not in copies}
    if not more:
        return row
    row = row.copy()
    for slot, tokens in more.items():
        row[slot] = tokens
    return row


def gather(fleet: FleetState, case: Case, coming: Mapping[int, int], t: Tunables) -> None:
    """Leave the nodes that compute the prompt's cold prefix, where it should follow there."""
    rules, left = t.batching, case.left
    cold_from = int(case.match.max(initial=0)) + rules.shared_tokens_min
    there = [slot for slot, tokens in coming.items() if tokens >= cold_from]
    able = [slot for slot in there if left.mask[slot]]
    if not able or len(able) == left.count:
        return
    if len(there) < rules.copies_max and _sooner_elsewhere(fleet, case, coming, able):
        return
    good = np.zeros(fleet.capacity, np.bool_)
    good[able] = True
    case.left, case.wider = narrowed(fleet, left, [(Reason.COLD_PREFIX, good)]), left


def _idle_elsewhere(fleet: FleetState, case: Case, coming: Mapping[int, int]) -> bool:
    """Whether some node that computes nothing of the prompt could begin at once."""
    idle = case.left.mask & (loads.queue_s(fleet, case.now) <= 0.0)
    idle[list(coming)] = False
    return bool(idle.any())


def _sooner_elsewhere(
    fleet: FleetState, case: Case, coming: Mapping[int, int], able: list[int]
) -> bool:
    """Whether some other node would be done first although it computes everything."""
    waits, length = loads.queue_s(fleet, case.now), case.request.prompt_tokens
    cached = case.match.copy()
    for slot in able:
        cached[slot] = max(int(cached[slot]), coming[slot])
    done_s = waits + (length - cached) * (fleet.c1 + fleet.c2 * (length + cached))
    others = case.left.mask.copy()
    others[able] = False
    return bool(done_s[others].min() < done_s[able].min())

"""The routing history of a node without events: which blocks its cache probably holds.

Least recently used first. A route touches its blocks from the last to the first, so a prefix is
always more recent than what continues it, and evicting the oldest evicts tails first: what is
left stays closed under prefixes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


def note_route(
    recent: OrderedDict[int, None], keys: Sequence[int], capacity: int
) -> tuple[Sequence[int], list[int]]:
    """Touch the blocks of a route; (blocks now held, blocks evicted), disjoint.

    A route longer than the capacity is held only up to it.
    """
    held = keys[:capacity] if len(keys) > capacity else keys
    move = recent.move_to_end
    for key in reversed(held):
        if key in recent:
            move(key)
        else:
            recent[key] = None
    evicted = [recent.popitem(last=False)[0] for _ in range(len(recent) - capacity)]
    return held, evicted

"""One prefix, looked up by the key of its last block: who holds it, and how it is used."""

from __future__ import annotations

from itertools import islice

from core.domain import BlockKey, Slot
from core.index.heat import Heat
from core.index.table import BlockTable
from core.index.types import PrefixFacts

CHILDREN_COUNTED = 10_000
AHEAD_MAX = 8_192


def describe(table: BlockTable, heat: Heat, key: int, now: float) -> PrefixFacts:
    """The facts about a key, listed or not."""
    mask = table.held.get(key, 0) & table.lanes.live
    slots = sorted(table.lanes.slots(mask).tolist())
    lanes = [table.lanes.by_slot[slot] for slot in slots]
    point = heat.get(key)
    return PrefixFacts(
        key=BlockKey(key),
        listed=bool(mask),
        holders=tuple(
            (Slot(slot), table.tiers.fastest(key, lane.bit))
            for slot, lane in zip(slots, lanes, strict=True)
        ),
        block_size=lanes[0].block_size if lanes else 0,
        children=sum(1 for _ in islice(table.forest.listed_children(key), CHILDREN_COUNTED)),
        ahead_blocks=_ahead(table, key),
        depth_blocks=point.depth_blocks if point else None,
        hits=point.hits if point else 0,
        rate_per_s=heat.rate(point, now) if point else 0.0,
        age_s=max(now - point.last_s, 0.0) if point else None,
    )


def _ahead(table: BlockTable, key: int) -> int:
    at = key
    for blocks in range(AHEAD_MAX):
        following = table.forest.only_child(at)
        if following is None:
            return blocks
        at = following
    return AHEAD_MAX

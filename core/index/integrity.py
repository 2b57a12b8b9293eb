"""The invariants of the index, checked from first principles: for tests and the doctor.

Costs a full pass over the table; never called on the way of a decision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from core.errors import IntegrityError
from core.index.forest import BRANCHING, Forest
from core.index.lanes import Lane, Lanes
from core.index.table import BlockTable


def check(table: BlockTable) -> None:
    """Raise IntegrityError naming the first invariant that does not hold."""
    held, lanes, forest = table.held, table.lanes, table.forest
    known = lanes.live | lanes.retired
    for key, mask in held.items():
        _demand(mask != 0 and not mask & ~known, f"block {key:#x} has holders that do not exist")
    parents = _parents(held, forest)
    _check_lanes(held, parents, lanes, forest.roots)
    branching = {key for key, child in forest.children.items() if child == BRANCHING}
    _demand(branching == forest.branches.keys(), "a branching block without branches")
    links = sum(map(len, forest.branches.values()))
    _demand(links == forest.branch_links, f"{forest.branch_links} links counted, {links} there")
    _demand(not lanes.live & lanes.retired, "a lane is live and retired at once")
    for parent in forest.children:
        listed = parent in held
        loose = parent in forest.loose
        _demand(listed != loose, f"block {parent:#x} has children but is neither listed nor loose")
    _demand(forest.loose <= forest.children.keys() | held.keys(), "a loose key has no children")
    _demand(forest.roots <= forest.loose, "a root is not loose")
    for lower in (table.tiers.below, *table.tiers.tables.values()):
        for key, mask in lower.items():
            extra = mask & lanes.live & ~held.get(key, 0)
            _demand(not extra, f"block {key:#x} is in a lower medium of nobody who holds it")


def _parents(held: dict[int, int], forest: Forest) -> dict[int, int]:
    """Parent of each listed key; every one must be linked, from one parent, without a cycle."""
    parents: dict[int, int] = {}
    for parent in forest.children:
        for child in forest.listed_children(parent):
            _demand(child not in parents, f"block {child:#x} has two parents")
            parents[child] = parent
    for key in held:
        _demand(key in parents, f"block {key:#x} is not linked from a parent")
    reached = sum(1 for start in forest.loose for _ in _below(start, forest))
    _demand(reached == len(held), "not every block can be reached from a root or a loose key")
    return parents


def _below(start: int, forest: Forest) -> Iterator[int]:
    stack = list(forest.listed_children(start))
    while stack:
        key = stack.pop()
        yield key
        stack.extend(forest.listed_children(key))


def _check_lanes(
    held: dict[int, int], parents: dict[int, int], lanes: Lanes, roots: set[int]
) -> None:
    """What each lane says of itself against what the table says."""
    by_mask = Counter(held.values())
    gaps: dict[int, dict[int, int]] = {lane.bit: {} for lane in lanes.by_slot.values()}
    for key, mask in held.items():
        parent = parents[key]
        alone = mask & lanes.live & ~held.get(parent, 0) if parent not in roots else 0
        while alone:
            low = alone & -alone
            gaps[low][key] = parent
            alone ^= low
    for lane in lanes.by_slot.values():
        blocks = sum(count for mask, count in by_mask.items() if mask & lane.bit)
        _demand(blocks == lane.blocks, f"slot {lane.slot} counts {lane.blocks}, holds {blocks}")
        _demand(gaps[lane.bit] == lane.gaps, f"slot {lane.slot}: gaps are not what is missing")
        masks = lanes.sizes[lane.block_size]
        place, other = (masks.open, masks.closed) if lane.gaps else (masks.closed, masks.open)
        right = place & lane.bit and not other & lane.bit
        _demand(bool(right), f"slot {lane.slot}: neither open nor closed, or both")
        if lane.approximate_blocks:
            _check_history(lane, held)


def _check_history(lane: Lane, held: dict[int, int]) -> None:
    fits = len(lane.recent) <= lane.approximate_blocks
    _demand(fits, f"slot {lane.slot} remembers more than its capacity")
    listed = sum(1 for key in lane.recent if held.get(key, 0) & lane.bit)
    _demand(listed == lane.blocks, f"slot {lane.slot} holds what its history forgot")


def _demand(holds: bool, message: str) -> None:
    if not holds:
        raise IntegrityError(message)

"""The invariants of the index, checked from first principles: for tests and the doctor.

Costs a full pass over the table; never called on the way of a decision.
"""

from __future__ import annotations

from collections.abc import Iterator

from core.errors import IntegrityError
from core.index.forest import Forest
from core.index.lanes import Lane, Lanes
from core.index.table import BlockTable


def check(table: BlockTable) -> None:
    """Raise IntegrityError naming the first invariant that does not hold."""
    held, lanes, forest = table.held, table.lanes, table.forest
    known = lanes.live | lanes.retired
    for key, mask in held.items():
        _demand(mask != 0 and not mask & ~known, f"block {key:#x} has holders that do not exist")
    parents = _parents(held, forest)
    for lane in lanes.by_slot.values():
        _check_lane(lane, held, parents, lanes, forest.roots)
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


def _check_lane(
    lane: Lane, held: dict[int, int], parents: dict[int, int], lanes: Lanes, roots: set[int]
) -> None:
    mine = {key for key, mask in held.items() if mask & lane.bit}
    _demand(len(mine) == lane.blocks, f"slot {lane.slot} counts {lane.blocks}, holds {len(mine)}")
    gaps = {key: parents[key] for key in mine if parents[key] not in mine | roots}
    _demand(gaps == lane.gaps, f"slot {lane.slot}: gaps are not what is missing")
    masks = lanes.sizes[lane.block_size]
    place = masks.open if lane.gaps else masks.closed
    other = masks.closed if lane.gaps else masks.open
    _demand(bool(place & lane.bit and not other & lane.bit), f"slot {lane.slot}: wrong lane set")
    if lane.approximate_blocks:
        _demand(mine <= lane.recent.keys(), f"slot {lane.slot} holds what its history forgot")
        fits = len(lane.recent) <= lane.approximate_blocks
        _demand(fits, f"slot {lane.slot} remembers more than its capacity")


def _demand(holds: bool, message: str) -> None:
    if not holds:
        raise IntegrityError(message)

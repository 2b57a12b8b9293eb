"""The index as a tree for people: runs without a branch are one cell, the least asked for go.

Cells are taken from the top, the most asked for first, until the budget is used up. The walk
pauses often, so a caller can let other work run between two slices; the table may change in
between, and then the tree shows each part as it was when it was visited.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from itertools import count, islice

from core.domain import BlockKey
from core.index.heat import Heat
from core.index.table import BlockTable
from core.index.types import TreeCell

Slices = Generator[None, None, list[TreeCell]]
STEPS_A_SLICE = 2_000
STEPS_MAX = 60_000
"""Blocks visited in all, some tens of milliseconds; what is not reached counts as others."""
RUN_BLOCKS_MIN = 256
"""A run may always be this long; longer ones are cut, and go on as their own child, where the
steps that are left would not do for the cells that are left."""
EXAMINED_MAX = 2_048
"""Children looked at, besides those asked for lately, where there are very many."""


@dataclass(slots=True)
class _Run:
    """Blocks from a head down to a branch, a leaf, or a change of holders."""

    last: int
    blocks: int
    mask: int
    hits: int
    last_s: float | None


def tree_slices(
    table: BlockTable, heat: Heat, now: float, root: int | None, budget: int, children_max: int
) -> Slices:
    """Yields between slices of work and returns the cells, parents before children."""
    return (yield from _Walk(table, heat, now, budget, children_max).run(root))


class _Walk:
    def __init__(
        self, table: BlockTable, heat: Heat, now: float, budget: int, children_max: int
    ) -> None:
        self._table = table
        self._heat = heat
        self._now = now
        self._budget = budget
        self._children_max = children_max
        self._cells: list[TreeCell] = []
        self._others: Counter[int] = Counter()
        self._queue: list[tuple[int, int, int, int, int]] = []
        """(-hits, order, head, parent, tokens of the parent's prefix), most asked for first."""
        self._order = count()
        self._steps = 0
        self._paused_at = 0

    def run(self, root: int | None) -> Slices:
        roots = self._table.forest.roots if root is None else {root}
        for key in sorted(roots)[: self._budget]:
            self._cells.append(_cell(key, None))
            self._push_children(key, 0)
        while self._queue and len(self._cells) < self._budget and self._steps < STEPS_MAX:
            _, _, head, parent, above_tokens = heapq.heappop(self._queue)
            run = yield from self._run_from(head)
            if run is not None:
                self._emit(run, parent, above_tokens)
        for _, _, _, parent, _ in self._queue:
            self._others[parent] += 1
        return self._cells + [_cell(0, p, others=n) for p, n in sorted(self._others.items())]

    def _emit(self, run: _Run, parent: int, above_tokens: int) -> None:
        tokens = run.blocks * self._block_size(run.mask)
        cell = TreeCell(
            key=BlockKey(run.last),
            parent=BlockKey(parent),
            depth_tokens=above_tokens + tokens,
            blocks=run.blocks,
            tokens=tokens,
            holders=run.mask.bit_count(),
            hits=run.hits,
            age_s=None if run.last_s is None else max(self._now - run.last_s, 0.0),
        )
        self._cells.append(cell)
        self._push_children(run.last, cell.depth_tokens)

    def _push_children(self, parent: int, tokens: int) -> None:
        forest = self._table.forest
        children = list(islice(forest.listed_children(parent), EXAMINED_MAX))
        links = forest.branches.get(parent)
        if links is not None and len(links) > EXAMINED_MAX:
            asked_for = self._heat.among(links).difference(children)
            children.extend(child for child in asked_for if child in self._table.held)
            unseen = len(links) - len(children)
        else:
            unseen = 0
        self._steps += len(children)
        ranked = [(-self._hits(child), next(self._order), child) for child in children]
        for hits, order, child in heapq.nsmallest(self._children_max, ranked):
            heapq.heappush(self._queue, (hits, order, child, parent, tokens))
        others = max(len(children) - self._children_max, 0) + unseen
        if others:
            self._others[parent] += others

    def _run_from(self, head: int) -> Generator[None, None, _Run | None]:
        mask = self._table.held.get(head, 0) & self._table.lanes.live
        if not mask:
            return None
        keys = [head]
        following: int | None = head
        fair = 4 * (STEPS_MAX - self._steps) // max(self._budget - len(self._cells), 1)
        longest = max(RUN_BLOCKS_MIN, fair)
        while following is not None and len(keys) < longest and self._steps < STEPS_MAX:
            before = len(keys)
            following = self._follow(keys, mask, min(longest - before, STEPS_A_SLICE))
            self._steps += len(keys) - before + 1
            if self._steps - self._paused_at >= STEPS_A_SLICE:
                self._paused_at = self._steps
                yield
        points = [point for key in self._heat.among(keys) if (point := self._heat.get(key))]
        return _Run(
            last=keys[-1],
            blocks=len(keys),
            mask=mask,
            hits=max((point.hits for point in points), default=0),
            last_s=max((point.last_s for point in points), default=None),
        )

    def _follow(self, keys: list[int], mask: int, most: int) -> int | None:
        """Append the blocks that go on from the last of `keys`, `most` of them.

        Returns the last of them, or None where the run ends. This loop is what a view costs, so
        it reads the links themselves.
        """
        held, live = self._table.held, self._table.lanes.live
        forest = self._table.forest
        children, key = forest.children, keys[-1]
        for _ in range(most):
            child = children.get(key)
            if child is None:
                return None
            found = held.get(child)
            if found is None:  # a branch, or a stale link
                child = forest.only_child(key)
                if child is None:
                    return None
                found = held[child]
            if found != mask and found & live != mask:
                return None
            keys.append(child)
            key = child
        return key

    def _hits(self, key: int) -> int:
        point = self._heat.get(key)
        return point.hits if point is not None else 0

    def _block_size(self, mask: int) -> int:
        slot = int(self._table.lanes.slots(mask & -mask)[0])
        return self._table.lanes.by_slot[slot].block_size


def _cell(key: int, parent: int | None, *, others: int = 0) -> TreeCell:
    return TreeCell(
        key=BlockKey(key),
        parent=None if parent is None else BlockKey(parent),
        depth_tokens=0,
        blocks=0,
        tokens=0,
        holders=0,
        hits=0,
        age_s=None,
        others=others,
    )

"""The prefix index: which node holds which blocks, and how much of a prompt each has.

One table maps each listed block to the mask of its holders (`lanes`), in any medium (`tiers`).
Beside it run the links from parent to child block (`forest`), so that a node whose blocks are
not closed under prefixes is noticed the moment it happens: such a node is walked, all others
are galloped over (`matching`). What was cleared stops counting at once and is swept later.

Nothing here blocks for long: every call costs at most its own keys, and `sweep` works in slices.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from core.domain import BlockKey, Medium, Slot
from core.index.approximate import note_route
from core.index.heat import Heat, Point
from core.index.integrity import check
from core.index.lanes import Lane, Row
from core.index.matching import WALK_MAX, gallop, walk
from core.index.prefix_facts import describe
from core.index.sweep import Sweeper
from core.index.table import BlockTable, runs
from core.index.tree import Slices, tree_slices
from core.index.types import HotPrefix, IndexStats, PrefixFacts, TreeCell

_INT64 = np.dtype(np.int64)
"""Quicker to make rows of than the type it stands for."""
_RETIRED_MAX = 256
_POINT_BYTES = 250
_SAME_RATE = 0.9
"""Share of a prefix's rate that makes a longer prefix stand for it."""
_EXTEND_MAX = 8_192
_EXTEND_ALL_MAX = 12_288
"""Blocks followed for one list of hot prefixes; the coldest stay as short as they were counted."""


class TokenListener(Protocol):
    """Hears which tokens (uint32) stand behind stored keys."""

    def __call__(
        self,
        tokens: np.ndarray,
        keys: Sequence[int],
        block_size: int,
        *,
        parent: int | None,
        root: int,
    ) -> None:
        """`keys` start at `root`, or continue the block `parent`."""
        ...


class PrefixIndex:
    """Blocks held by nodes, exactly (`store`, `remove`) or by routing history (`record_route`).

    entries_max: bound on distinct blocks listed; near it the oldest unused tails are dropped,
    and what cannot be listed is refused: the index then knows a subset, never too much.
    """

    def __init__(self, entries_max: int = 4_194_304) -> None:
        self._heat = Heat()
        self._table = BlockTable(entries_max, self._heat.is_recent)
        self._held = self._table.held
        self._lanes = self._table.lanes
        self._sweeper = Sweeper(self._table)
        self._histories: list[OrderedDict[int, None]] = []
        """Routing histories of nodes that are gone, emptied in slices."""
        self._capacity = 0
        self.on_tokens: TokenListener | None = None
        """Told of stored blocks with their tokens, where something else names blocks by them."""

    # -- nodes ---------------------------------------------------------------------------------

    def grow(self, slots: int) -> None:
        """Make match rows at least `slots` long."""
        self._capacity = max(self._capacity, slots)

    def add_node(self, slot: Slot, *, block_size: int, approximate_blocks: int = 0) -> None:
        """Start listing a node; approximate_blocks > 0 makes it follow the routing history."""
        if block_size < 1:
            raise ValueError(f"block_size must be >= 1, not {block_size}")
        if slot in self._lanes.by_slot:
            raise ValueError(f"slot {slot} already has a node")
        self.grow(slot + 1)
        self._lanes.add(slot, block_size, approximate_blocks)

    def remove_node(self, slot: Slot) -> None:
        """Stop listing a node; its slot may be given to another at once."""
        self._lane(slot)
        self._retire(slot)

    def forget(self, slot: Slot) -> None:
        """All blocks of the node vanish at once (restart, lost stream, cleared cache)."""
        lane = self._lane(slot)
        if lane.blocks:
            self._retire(slot)
            self._lanes.add(slot, lane.block_size, lane.approximate_blocks)

    def clear(self, slot: Slot) -> None:
        """The node reports its cache empty, in all media."""
        self.forget(slot)

    # -- blocks --------------------------------------------------------------------------------

    def store(
        self,
        slot: Slot,
        keys: Sequence[int],
        *,
        medium: Medium = Medium.GPU,
        parent: int | None = None,
        root: int = 0,
    ) -> None:
        """The node now holds `keys`, a run of chained blocks, in `medium`.

        parent: key of the block before the run; None where the run starts its chain, whose
        root_key is then `root` (it only names the tree the run belongs to).
        """
        if keys:
            self._table.store(self._exact(slot), keys, medium, parent, root)

    def remove(self, slot: Slot, keys: Sequence[int], *, medium: Medium = Medium.GPU) -> None:
        """The node no longer holds `keys` in `medium`; unknown keys are ignored."""
        self._table.remove(self._exact(slot), keys, medium=medium)

    def record_route(self, slot: Slot, keys: Sequence[int], now: float, *, root: int = 0) -> None:
        """A prompt was sent to an approximate node, which will hold it; exact nodes ignore it.

        keys: the prompt's blocks from the root. The order of calls is the order of use; `now`
        (seconds) is there for histories that age, which this one does not.
        """
        del now
        lane = self._lane(slot)
        if not lane.approximate_blocks or not keys:
            return
        held, evicted = note_route(lane.recent, keys, lane.approximate_blocks)
        self._table.remove(lane, evicted)
        self._table.store(lane, held, Medium.GPU, None, root)

    # -- questions -----------------------------------------------------------------------------

    def match(self, keys: Mapping[int, Sequence[int]]) -> np.ndarray:
        """Tokens of the longest run of leading blocks each node holds, int64[slots].

        keys: block size -> chained keys of the prompt; a node counts for its own block size.
        """
        row = np.zeros(self._capacity, _INT64)
        self._match_into(row, keys)
        return row

    def match_few(self, keys: Mapping[int, Sequence[int]]) -> list[int]:
        """`match` as a list, which is quicker where there are few slots."""
        row = [0] * self._capacity
        self._match_into(row, keys)
        return row

    def _match_into(self, row: Row, keys: Mapping[int, Sequence[int]]) -> None:
        lookup = self._held.get
        sizes, scatter = self._lanes.sizes, self._lanes.scatter
        for size, chain in keys.items():
            lanes = sizes.get(size)
            first = lookup(chain[0]) if lanes is not None and chain else None
            if lanes is None or first is None:
                continue
            galloped, walked = first & lanes.closed, first & lanes.open
            if len(chain) <= WALK_MAX:
                galloped, walked = 0, galloped | walked
            if galloped:
                scatter(row, gallop(lookup, chain, first, galloped), size)
            if walked:
                scatter(row, walk(lookup, chain, walked), size)

    def match_media(self, keys: Mapping[int, Sequence[int]]) -> dict[Medium, np.ndarray]:
        """The match of each node by the fastest medium that holds each block, int64[slots].

        The rows sum to `match`. For explanations: walks every matched block where engines offload.
        """
        rows = {medium: np.zeros(self._capacity, dtype=np.int64) for medium in Medium}
        rows[Medium.GPU] += self.match(keys)
        tiers = self._table.tiers
        if not tiers.used:
            return rows
        for slot, lane in self._lanes.by_slot.items():
            matched = int(rows[Medium.GPU][slot]) // lane.block_size
            for key in keys.get(lane.block_size, ())[:matched]:
                medium = tiers.fastest(key, lane.bit)
                if medium is not Medium.GPU:
                    rows[Medium.GPU][slot] -= lane.block_size
                    rows[medium][slot] += lane.block_size
        return rows

    def holders(self, key: int) -> list[Slot]:
        """Nodes that hold the block, in any medium."""
        mask = self._held.get(key, 0) & self._lanes.live
        return [Slot(slot) for slot in sorted(self._lanes.slots(mask).tolist())]

    def holds(self, slot: Slot, key: int) -> bool:
        """Whether the node holds the block, in any medium."""
        return bool(self._held.get(key, 0) & self._lane(slot).bit)

    def runs(self, slot: Slot) -> Iterator[tuple[int, bool, list[int]]]:
        """Blocks of one node as runs without a branch, parents first: (start, from_root, keys).

        `start` is the key before the run, or the root of its chain where from_root.
        """
        return runs(self._table, self._lane(slot))

    # -- upkeep --------------------------------------------------------------------------------

    def sweep(self, budget: int) -> int:
        """Clean up to `budget` entries of nodes that are gone; returns how many were visited."""
        visited = self._sweeper.sweep(budget)
        while self._histories and visited < budget:
            for _ in range(min(budget - visited, len(self._histories[-1]))):
                self._histories[-1].popitem()
                visited += 1
            if not self._histories[-1]:
                self._histories.pop()
        return visited

    def stats(self) -> IndexStats:
        """Sizes and counters; costs one step a node."""
        lanes = self._lanes.by_slot
        table = self._table
        return IndexStats(
            entries=len(self._held),
            entries_max=table.entries_max,
            blocks={Slot(slot): lane.blocks for slot, lane in sorted(lanes.items())},
            open_nodes=sum(1 for lane in lanes.values() if lane.gaps),
            unswept_lanes=self._lanes.retired.bit_count(),
            evicted=table.evicted,
            refused=table.refused,
            orphans=sum(len(lane.gaps) for lane in lanes.values()),
            lower_tier=sum(map(len, table.tiers.tables.values())),
            touched=len(self._heat),
            memory_bytes=table.memory_bytes() + len(self._heat) * _POINT_BYTES,
        )

    def check_integrity(self) -> None:
        """Raise IntegrityError where an invariant does not hold; a full pass over the table."""
        check(self._table)

    # -- accesses and views --------------------------------------------------------------------

    def touch(self, keys: Sequence[int], block_size: int, now: float) -> None:
        """Count an access of the prompt with these block keys at `now` seconds."""
        self._heat.touch(keys, block_size, now)

    def hot(self, now: float, limit: int) -> list[HotPrefix]:
        """The `limit` prefixes with the highest access rates, hottest first.

        Of nested prefixes with about the same rate the longest stands for all, carried on to
        where the listed blocks branch.
        """
        found: dict[int, HotPrefix] = {}
        left = _EXTEND_ALL_MAX
        for key, point in self._heat.hottest(limit, same_share=_SAME_RATE):
            hot = self._hot_prefix(key, point, now, min(left, _EXTEND_MAX))
            left -= hot.depth_blocks - point.depth_blocks
            # Points of one chain may be carried on to the same end; the hottest stands for them.
            found.setdefault(hot.key, hot)
        return list(found.values())

    def tree(
        self, now: float, root: int | None = None, *, budget: int = 400, children_max: int = 12
    ) -> list[TreeCell]:
        """Cells of the tree, parents before children; all roots, or the one with this root key.

        Each root is a cell without blocks. Costs some tens of milliseconds: where that is too
        long in one go, drain `tree_slices`.
        """
        slices = self.tree_slices(now, root, budget=budget, children_max=children_max)
        while True:
            try:
                next(slices)
            except StopIteration as end:
                cells: list[TreeCell] = end.value
                return cells

    def tree_slices(
        self, now: float, root: int | None = None, *, budget: int = 400, children_max: int = 12
    ) -> Slices:
        """As `tree`, yielding about every millisecond; the cells are the generator's value."""
        return tree_slices(self._table, self._heat, now, root, budget, children_max)

    def prefix(self, key: int, now: float) -> PrefixFacts:
        """What is known of the prefix that ends with this block; see PrefixFacts."""
        return describe(self._table, self._heat, key, now)

    # -- inside --------------------------------------------------------------------------------

    def _lane(self, slot: Slot) -> Lane:
        lane = self._lanes.by_slot.get(slot)
        if lane is None:
            raise ValueError(f"slot {slot} has no node")
        return lane

    def _exact(self, slot: Slot) -> Lane:
        lane = self._lane(slot)
        if lane.approximate_blocks:
            raise ValueError(f"slot {slot} follows the routing history and takes no events")
        return lane

    def _retire(self, slot: Slot) -> None:
        lane = self._lanes.retire(slot)
        self._table.thinned &= ~lane.bit
        if lane.recent:
            self._histories.append(lane.recent)
        if self._lanes.retired.bit_count() > _RETIRED_MAX:
            while self._sweeper.pending:
                self._sweeper.sweep(1 << 20)

    def _hot_prefix(self, key: int, point: Point, now: float, extend_max: int) -> HotPrefix:
        depth = point.depth_blocks
        for _ in range(extend_max):
            child = self._table.forest.only_child(key)
            if child is None:
                break
            key, depth = child, depth + 1
        return HotPrefix(
            key=BlockKey(key),
            depth_blocks=depth,
            tokens=depth * point.block_size,
            rate_per_s=self._heat.rate(point, now),
            hits=point.hits,
            holders=tuple(self.holders(key)),
        )

"""The prefix index: which node holds which blocks, and how much of a prompt each has.

One table maps each listed block to the mask of its holders (`lanes`), in any medium (`tiers`).
Beside it run the links from parent to child block (`forest`), so that a node whose blocks are
not closed under prefixes is noticed the moment it happens: such a node is walked, all others
are galloped over (`matching`). What was cleared stops counting at once and is swept later.

Nothing here blocks for long: every call costs at most its own keys, and `sweep` works in slices.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np

from core.domain import Medium, Slot
from core.index.approximate import note_route
from core.index.forest import Forest
from core.index.integrity import check
from core.index.lanes import Lane, Lanes
from core.index.matching import WALK_MAX, gallop, walk
from core.index.sweep import Sweeper
from core.index.tiers import Tiers
from core.index.types import IndexStats

_KEY_BYTES = 48
"""What a 64-bit integer takes on the heap."""
_INTERNED_MAX = 1 << 16
_RETIRED_MAX = 256
_PRUNE_FROM = 0.95
_PRUNE_TO = 0.80


class PrefixIndex:
    """Blocks held by nodes, exactly (`store`, `remove`) or by routing history (`record_route`).

    entries_max: bound on distinct blocks listed; near it the oldest unused tails are dropped,
    and what cannot be listed is refused: the index then knows a subset, never too much.
    """

    def __init__(self, entries_max: int = 4_194_304) -> None:
        if entries_max < 1:
            raise ValueError(f"entries_max must be >= 1, not {entries_max}")
        self.entries_max = entries_max
        self._held: dict[int, int] = {}
        self._interned: dict[int, int] = {}
        self._lanes = Lanes()
        self._forest = Forest(self._held)
        self._tiers = Tiers(self._held)
        self._sweeper = Sweeper(self._held, self._interned, self._forest, self._tiers, self._lanes)
        self._capacity = 0
        self._thinned = 0
        """Lanes that lost entries to the bound: continuations of those are refused, not gaps."""
        self._pruning = False
        self._evicted = 0
        self._refused = 0

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
            self._store(self._exact(slot), keys, medium, parent, root)

    def remove(self, slot: Slot, keys: Sequence[int], *, medium: Medium = Medium.GPU) -> None:
        """The node no longer holds `keys` in `medium`; unknown keys are ignored."""
        lane = self._exact(slot)
        if self._tiers.used or medium is not Medium.GPU:
            keys = self._tiers.removed(medium, keys, lane.bit)
        self._remove(lane, keys)

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
        self._remove(lane, evicted)
        self._store(lane, held, Medium.GPU, None, root)

    # -- questions -----------------------------------------------------------------------------

    def match(self, keys: Mapping[int, Sequence[int]]) -> np.ndarray:
        """Tokens of the longest run of leading blocks each node holds, int64[slots].

        keys: block size -> chained keys of the prompt; a node counts for its own block size.
        """
        row = np.zeros(self._capacity, dtype=np.int64)
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
        return row

    def holders(self, key: int) -> list[Slot]:
        """Nodes that hold the block, in any medium."""
        mask = self._held.get(key, 0) & self._lanes.live
        return [Slot(slot) for slot in sorted(self._lanes.slots(mask).tolist())]

    def holds(self, slot: Slot, key: int) -> bool:
        """Whether the node holds the block, in any medium."""
        return bool(self._held.get(key, 0) & self._lane(slot).bit)

    # -- upkeep --------------------------------------------------------------------------------

    def sweep(self, budget: int) -> int:
        """Clean up to `budget` entries of retired nodes; returns how many were visited."""
        return self._sweeper.sweep(budget)

    def stats(self) -> IndexStats:
        """Sizes and counters; costs one step a node."""
        lanes = self._lanes.by_slot
        tables = (self._held, self._forest.children, self._interned, self._tiers.below)
        masks = len(self._interned) * (28 + self._lanes.live.bit_length() // 7)
        keys = (len(self._held) + len(self._forest.loose)) * _KEY_BYTES
        return IndexStats(
            entries=len(self._held),
            entries_max=self.entries_max,
            blocks={Slot(slot): lane.blocks for slot, lane in sorted(lanes.items())},
            open_nodes=sum(1 for lane in lanes.values() if lane.gaps),
            unswept_lanes=self._lanes.retired.bit_count(),
            evicted=self._evicted,
            refused=self._refused,
            orphans=sum(len(lane.gaps) for lane in lanes.values()),
            lower_tier=sum(len(table) for table in self._tiers.tables.values()),
            touched=0,
            memory_bytes=sum(map(sys.getsizeof, tables)) + masks + keys,
        )

    def check_integrity(self) -> None:
        """Raise IntegrityError where an invariant does not hold; a full pass over the table."""
        check(self._held, self._lanes, self._forest, self._tiers)

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
        self._thinned &= ~lane.bit
        if self._lanes.retired.bit_count() > _RETIRED_MAX:
            while self._sweeper.pending:
                self._sweeper.sweep(1 << 20)

    def _store(
        self, lane: Lane, keys: Sequence[int], medium: Medium, parent: int | None, root: int
    ) -> None:
        held, bit = self._held, lane.bit
        if not self._thinned & bit or parent is None or held.get(parent, 0) & bit:
            self._make_room(len(keys))
        gap = parent is not None and not held.get(parent, 0) & bit
        if gap and self._thinned & bit:
            self._refused += len(keys)
            return
        lower = medium is not Medium.GPU
        nowhere = {key for key in keys if not held.get(key, 0) & bit} if lower else set()
        gap = gap and not held.get(keys[0], 0) & bit
        self._list(lane, keys, root if parent is None else parent)
        if parent is None and root in self._forest.loose:
            self._forest.roots.add(root)
        if gap or lane.gaps:
            self._fill_gaps(lane, keys, gap)
        if lower:
            self._tiers.stored_lower(medium, keys, nowhere, bit)
        elif self._tiers.used:
            self._tiers.stored_gpu(keys, bit)

    def _fill_gaps(self, lane: Lane, keys: Sequence[int], gap: bool) -> None:
        """The lane now holds `keys`: their children are no gaps, the first may have become one."""
        for key in keys:
            lane.gaps.difference_update(self._forest.listed_children(key))
        if gap and keys[0] in self._held:
            lane.gaps.add(keys[0])
        self._lanes.note_gaps(lane)

    def _list(self, lane: Lane, keys: Sequence[int], before: int) -> None:
        """Enter `keys` for the lane; blocks new to the index go in with bulk updates."""
        held, forest = self._held, self._forest
        known = self._known(keys)
        if known < len(keys):
            fresh = self._fitting(lane, keys[known:] if known else keys)
            if not (held.keys().isdisjoint(fresh) and forest.children.keys().isdisjoint(fresh)):
                self._list_each(lane, keys, before)
                return
            entries = dict.fromkeys(fresh, lane.bit)
            if len(entries) != len(fresh):
                raise ValueError("keys of one run must differ")
            if fresh:
                held.update(entries)
                forest.link(keys[known - 1] if known else before, fresh[0])
                forest.link_chain(fresh)
                lane.blocks += len(fresh)
        if not self._mark(lane, keys[:known] if known < len(keys) else keys):
            self._list_each(lane, keys[:known], before)

    def _known(self, keys: Sequence[int]) -> int:
        """How many leading keys are listed, if the listed ones lead (checked by the caller)."""
        held, end = self._held, len(keys)
        if keys[0] not in held:
            return 0
        low, step, high = 0, 1, 1
        while high < end and keys[high] in held:
            low = high
            step += step
            high += step
        high = min(high, end)
        while high - low > 1:
            middle = (low + high) >> 1
            if keys[middle] in held:
                low = middle
            else:
                high = middle
        return high

    def _mark(self, lane: Lane, keys: Sequence[int]) -> bool:
        """Add the lane's bit to the masks of `keys`, up to the first that is not listed.

        True when all were listed. Equal masks stay one object.
        """
        held, bit, live, interned = self._held, lane.bit, self._lanes.live, self._interned
        seen: int | None = None
        marked: int | None = None
        added = 0
        for key in keys:
            mask = held.get(key)
            if mask is None:
                break
            if mask is not seen:
                seen = mask
                marked = None if mask & bit else (mask | bit) & live
                marked = interned.setdefault(marked, marked) if marked is not None else None
            if marked is not None:
                held[key] = marked
                added += 1
        else:
            mask = 0
        lane.blocks += added
        if len(interned) > _INTERNED_MAX:
            interned.clear()
        return mask is not None

    def _list_each(self, lane: Lane, keys: Sequence[int], before: int) -> None:
        """As `_list`, one key at a time, for runs whose listed keys are scattered."""
        held, forest = self._held, self._forest
        for key in keys:
            if key in held:
                self._mark(lane, (key,))
            elif self._fitting(lane, (key,)):
                held[key] = lane.bit
                lane.blocks += 1
                forest.link(before, key)
                forest.listed_again(key)
            else:
                return
            before = key

    def _make_room(self, count: int) -> None:
        """Prune a slice when the table is nearly full, and on until it is well below."""
        if self._pruning or len(self._held) + count > _PRUNE_FROM * self.entries_max:
            self._pruning = self._prune(2 * count + 64)

    def _fitting(self, lane: Lane, fresh: Sequence[int]) -> Sequence[int]:
        """The leading part of `fresh` that the bound has room for."""
        room = self.entries_max - len(self._held)
        if len(fresh) <= room:
            return fresh
        self._refused += len(fresh) - room
        self._thinned |= lane.bit
        return fresh[:room]

    def _prune(self, count: int) -> bool:
        """Look at the `count` oldest entries: drop unused tails, give the rest another round.

        True while the table is still above where pruning stops.
        """
        held, kept = self._held, []
        for key in reversed(list(islice(held, count))):
            if self._forest.has_listed_child(key):
                kept.append(key)
            else:
                self._evict(key)
        for key in reversed(kept):
            held[key] = held.pop(key)
        return len(held) > _PRUNE_TO * self.entries_max

    def _evict(self, key: int) -> None:
        mask = self._held.pop(key)
        self._tiers.drop(key)
        self._forest.delisted(key)
        self._evicted += 1
        mask &= self._lanes.live
        self._thinned |= mask
        for slot in self._lanes.slots(mask).tolist():
            lane = self._lanes.by_slot[slot]
            lane.blocks -= 1
            lane.recent.pop(key, None)
            if lane.gaps:
                lane.gaps.discard(key)
                self._lanes.note_gaps(lane)

    def _remove(self, lane: Lane, keys: Sequence[int]) -> None:
        held, bit, interned = self._held, lane.bit, self._interned
        children = self._forest.children
        keep = self._lanes.live & ~bit
        was_open = bool(lane.gaps)
        seen: int | None = None
        rest: int | None = None
        removed = 0
        for key in self._tails_first(keys):
            mask = held.get(key)
            if mask is None:
                continue
            if mask is not seen:
                seen = mask
                rest = interned.setdefault(mask & keep, mask & keep) if mask & bit else None
            if rest is None:
                continue
            removed += 1
            if rest:
                held[key] = rest
            else:
                del held[key]
            child = children.get(key)
            if child is not None:
                if type(child) is int and child not in held:
                    del children[key]
                else:
                    self._bereave(lane, key)
            if not rest and self._tiers.used:
                self._tiers.drop(key)
            if lane.gaps:
                lane.gaps.discard(key)
        lane.blocks -= removed
        if was_open or lane.gaps:
            self._lanes.note_gaps(lane)

    def _tails_first(self, keys: Sequence[int]) -> Sequence[int]:
        """`keys` turned round where they run from head to tail."""
        if len(keys) > 1:
            children = self._forest.children.get(keys[0])
            if children == keys[1] or (isinstance(children, set) and keys[1] in children):
                return keys[::-1]
        return keys

    def _bereave(self, lane: Lane, key: int) -> None:
        """The lane lost `key`: children it still holds are gaps now."""
        for child in self._forest.listed_children(key):
            if self._held[child] & lane.bit:
                lane.gaps.add(child)
        if key not in self._held:
            self._forest.delisted(key)

"""The table of blocks: key -> mask of holders, kept consistent with links, tiers and bounds.

New runs go in with bulk updates, since most of what an engine stores is new to everybody; what
the fleet knows already is marked block by block. A holder that ends up with a block but not its
parent gets a gap, which is how the index knows whom it may gallop over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, repeat

from core.domain import Medium
from core.index.forest import BRANCHING, Forest
from core.index.lanes import Lane, Lanes
from core.index.tiers import Tiers

_GPU = Medium.GPU
_KEY_BYTES = 48
"""What a 64-bit integer takes on the heap."""
_INTERNED_MAX = 1 << 16
_PRUNE_FROM = 0.95
_PRUNE_TO = 0.80
_NO_KEYS: Sequence[int] = ()
_NOTHING: repeat[int | None] = repeat(None)


class BlockTable:
    """Blocks and their holders, bounded to `entries_max` entries.

    Near the bound the oldest unused tails are dropped, and what does not fit is refused: the
    table then lists a subset of what is held.
    """

    def __init__(self, entries_max: int, in_use: Callable[[int], bool]) -> None:
        if entries_max < 1:
            raise ValueError(f"entries_max must be >= 1, not {entries_max}")
        self.entries_max = entries_max
        self.held: dict[int, int] = {}
        self.interned: dict[int, int] = {}
        """Masks by value, so that equal masks are one object; may be emptied at any time."""
        self.lanes = Lanes()
        self.forest = Forest(self.held)
        self.tiers = Tiers(self.held)
        self.thinned = 0
        """Lanes that lost entries to the bound: continuations of those are refused, not gaps."""
        self.evicted = 0
        self.refused = 0
        self._pruning = False
        """A slice is pruned at every store from when the table is nearly full until it is not."""
        self._prune_from = _PRUNE_FROM * entries_max
        self._in_use = in_use

    def memory_bytes(self) -> int:
        """Estimate of what the table, its links and its keys take."""
        tables = (self.held, self.forest.children, self.interned, self.tiers.below)
        masks = len(self.interned) * (28 + self.lanes.live.bit_length() // 7)
        keys = (len(self.held) + len(self.forest.loose)) * _KEY_BYTES
        branches = len(self.forest.branches) * 300 + self.forest.branch_links * 32
        return sum(map(sys.getsizeof, tables)) + masks + keys + branches

    def store(
        self, lane: Lane, keys: Sequence[int], medium: Medium, parent: int | None, root: int
    ) -> None:
        """Enter a run for the lane; see PrefixIndex.store."""
        held, bit = self.held, lane.bit
        gap = parent is not None and not held.get(parent, 0) & bit
        full = self._pruning or len(held) + len(keys) > self._prune_from
        if full and not (gap and self.thinned & bit):
            self._pruning = self._prune(2 * len(keys) + 64)
            gap = parent is not None and not held.get(parent, 0) & bit
        if gap and self.thinned & bit:
            self.refused += len(keys)
            return
        lower = medium is not _GPU
        nowhere = {key for key in keys if not held.get(key, 0) & bit} if lower else set()
        if gap and held.get(keys[0], 0) & bit:
            gap = False
        self._list(lane, keys, root if parent is None else parent)
        if parent is None and root in self.forest.loose:
            self.forest.roots.add(root)
        if gap or lane.gaps:
            self._fill_gaps(lane, keys, parent if gap else None)
        if lower:
            self.tiers.stored_lower(medium, keys, nowhere, bit)
        elif self.tiers.used:
            self.tiers.stored_gpu(keys, bit)

    def _fill_gaps(self, lane: Lane, keys: Sequence[int], missing: int | None) -> None:
        """The lane now holds `keys`, but not `missing`, the parent of the first."""
        for key in keys:
            for child in self.forest.listed_children(key):
                lane.gaps.pop(child, None)
        if missing is not None and keys[0] in self.held:
            lane.gaps[keys[0]] = missing
        self.lanes.note_gaps(lane)

    def _list(self, lane: Lane, keys: Sequence[int], before: int) -> None:
        """Enter `keys` for the lane; blocks new to the index go in with bulk updates."""
        held, forest = self.held, self.forest
        known = self._known(keys) if keys[0] in held else 0
        if known < len(keys):
            fresh = keys[known:] if known else keys
            if len(held) + len(fresh) > self.entries_max:
                fresh = self._fitting(lane, fresh)
            if not self._enter(fresh, lane.bit):
                _demand_different(fresh)
                self._list_each(lane, keys, before)
                return
            if fresh:
                forest.link(keys[known - 1] if known else before, fresh[0])
                forest.link_chain(fresh)
                lane.blocks += len(fresh)
        if known and not self._mark(lane, keys[:known] if known < len(keys) else keys):
            self._list_each(lane, keys[:known], before)

    def _enter(self, fresh: Sequence[int], bit: int) -> bool:
        """List keys that are all new and without children; False (and no change) if any is not.

        A block that is not listed has children only if it is loose, and few are.
        """
        held, loose = self.held, self.forest.loose
        if len(loose) > len(fresh) and not loose.isdisjoint(fresh):
            return False
        before, put = len(held), held.setdefault
        for key in fresh:
            put(key, bit)
        if len(held) - before == len(fresh) and held.keys().isdisjoint(loose):
            return True
        while len(held) > before:  # the new ones are the latest
            held.popitem()
        return False

    def _known(self, keys: Sequence[int]) -> int:
        """How many leading keys are listed: the first one is, and the listed ones lead (which
        the caller checks)."""
        held, end = self.held, len(keys)
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
        held, bit, live, interned = self.held, lane.bit, self.lanes.live, self.interned
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
        held, forest = self.held, self.forest
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

    def _fitting(self, lane: Lane, fresh: Sequence[int]) -> Sequence[int]:
        """The leading part of `fresh` that the bound has room for."""
        room = self.entries_max - len(self.held)
        if len(fresh) <= room:
            return fresh
        self.refused += len(fresh) - room
        self.thinned |= lane.bit
        return fresh[:room]

    def _prune(self, count: int) -> bool:
        """Look at the `count` oldest entries: drop unused tails, give the rest another round.

        True while the table is still above where pruning stops.
        """
        held, kept = self.held, []
        for key in reversed(list(islice(held, count))):
            if self.forest.has_listed_child(key) or self._in_use(key):
                kept.append(key)
            else:
                self._evict(key)
        for key in reversed(kept):
            held[key] = held.pop(key)
        return len(held) > _PRUNE_TO * self.entries_max

    def _evict(self, key: int) -> None:
        mask = self.held.pop(key)
        self.tiers.drop(key)
        self.forest.delisted(key)
        self.evicted += 1
        mask &= self.lanes.live
        self.thinned |= mask
        for slot in self.lanes.slots(mask).tolist():
            lane = self.lanes.by_slot[slot]
            lane.blocks -= 1
            lane.recent.pop(key, None)
            if lane.gaps:
                lane.gaps.pop(key, None)
                self.lanes.note_gaps(lane)

    def remove(self, lane: Lane, keys: Sequence[int], *, medium: Medium = Medium.GPU) -> None:
        """Take the lane out of the masks of `keys`, unless it holds them in another medium."""
        if self.tiers.used or medium is not _GPU:
            keys = self.tiers.removed(medium, keys, lane.bit)
        elif not lane.gaps:
            self._remove_whole(lane, keys)
            return
        if keys:
            self._remove_each(lane, keys)

    def _remove_whole(self, lane: Lane, keys: Sequence[int]) -> None:
        """Remove in bulk, where the lane has no gaps and nothing is held below the GPU.

        Most of what an engine evicts is held by it alone.
        """
        held, bit = self.held, lane.bit
        children, branches = self.forest.children, self.forest.branches
        masks = list(map(held.pop, keys, _NOTHING))
        gone, doubtful = keys, _NO_KEYS
        if masks.count(bit) < len(keys):
            gone, doubtful = self._put_back(lane, keys, masks)
        lane.blocks -= len(gone)
        links = list(map(children.pop, gone, _NOTHING))
        if not held.keys().isdisjoint(links) or not branches.keys().isdisjoint(gone):
            self._bereave_gone(lane, gone, links)
        for key in doubtful:
            self._bereave(lane, key)
        if doubtful:
            self.lanes.note_gaps(lane)

    def _put_back(
        self, lane: Lane, keys: Sequence[int], masks: Sequence[int | None]
    ) -> tuple[Sequence[int], Sequence[int]]:
        """List those that others hold again, without the lane.

        Returns the keys that nobody holds now, and those of the others that may have a child
        which the lane holds on.
        """
        held, bit, children = self.held, lane.bit, self.forest.children
        keep, interned = self.lanes.live & ~bit, self.interned
        gone: list[int] = []
        doubtful: list[int] = []
        seen: int | None = None
        rest = last = 0
        for key, mask in zip(keys, masks, strict=True):
            if mask is None:  # not listed, or named twice
                continue
            if mask is not seen:
                seen, rest = mask, interned.setdefault(mask & keep, mask & keep)
            if not mask & bit:
                held[key] = mask
            elif rest:
                held[key] = rest
                lane.blocks -= 1
                # The usual child is the one that was taken away just before.
                child = children.get(key)
                if child is not None and child != last:
                    doubtful.append(key)
            else:
                gone.append(key)
            last = key
        return gone, doubtful

    def _bereave_gone(self, lane: Lane, gone: Sequence[int], links: Sequence[int | None]) -> None:
        """Put back the links of removed blocks that may still have children, and see to those."""
        for key, child in zip(gone, links, strict=True):
            if child is not None and (child == BRANCHING or child in self.held):
                self.forest.children[key] = child
                self._bereave(lane, key)
        self.lanes.note_gaps(lane)

    def _remove_each(self, lane: Lane, keys: Sequence[int]) -> None:
        """As `remove`, block by block, tails first."""
        held, bit, interned = self.held, lane.bit, self.interned
        children, gaps = self.forest.children, lane.gaps
        keep = self.lanes.live & ~bit
        tiered, was_open = self.tiers.used, bool(gaps)
        seen: int | None = None
        rest: int | None = None
        removed = last = 0
        gone = False
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
                if tiered:
                    self.tiers.drop(key)
            # The usual case is cheap: no child, or the one that was taken away just before.
            child = children.get(key)
            if child is not None:
                bare = child == last and (gone or rest)
                if not bare and (child == BRANCHING or child in held):
                    self._bereave(lane, key)
                elif not rest:
                    del children[key]
            last, gone = key, not rest
            if gaps:
                gaps.pop(key, None)
        lane.blocks -= removed
        if was_open or gaps:
            self.lanes.note_gaps(lane)

    def _tails_first(self, keys: Sequence[int]) -> Sequence[int]:
        """`keys` turned round where they run from head to tail."""
        if len(keys) > 1 and keys[1] in self.forest.linked(keys[0]):
            return keys[::-1]
        return keys

    def _bereave(self, lane: Lane, key: int) -> None:
        """The lane lost `key`: children it still holds are gaps now."""
        for child in self.forest.listed_children(key):
            if self.held[child] & lane.bit:
                lane.gaps[child] = key
        if key not in self.held:
            self.forest.delisted(key)


def _demand_different(keys: Sequence[int]) -> None:
    if len(set(keys)) < len(keys):
        raise ValueError("keys of one run must differ")


def runs(table: BlockTable, lane: Lane) -> Iterator[tuple[int, bool, list[int]]]:
    """Blocks of a lane as runs without a branch, parents first; see PrefixIndex.runs."""
    held, bit, forest = table.held, lane.bit, table.forest
    starts = [(parent, False, key) for key, parent in lane.gaps.items()]
    for root in list(forest.roots):
        starts.extend((root, True, key) for key in forest.listed_children(root))
    while starts:
        start, from_root, key = starts.pop()
        if not held.get(key, 0) & bit:
            continue
        keys = [key]
        children = [key for key in forest.listed_children(key) if held[key] & bit]
        while len(children) == 1:
            keys.append(children[0])
            children = [key for key in forest.listed_children(keys[-1]) if held[key] & bit]
        starts.extend((keys[-1], False, child) for child in children)
        yield start, from_root, keys

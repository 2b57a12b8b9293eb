"""Lanes: which bit of a holder mask stands for which node.

A node keeps its slot, but its bit changes whenever its blocks vanish at once: the old bit is
retired, stops counting immediately, is swept out of the masks later and only then given again.
So forgetting a node costs O(1) and a slot can be reused at once without inheriting anything.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np

from core.domain import Slot
from core.index.matching import Runs

Row = np.ndarray | list[int]
"""Tokens by slot."""
_SCATTER_BITS = 12
"""Up to this many holders a run is written bit by bit; above, through numpy."""
_CACHED_SLOTS_MAX = 1 << 20


@dataclass(slots=True)
class Lane:
    """State of one node in the index."""

    slot: Slot
    number: int
    bit: int
    block_size: int
    approximate_blocks: int
    """0 for exact nodes, else how many blocks the routing history keeps."""
    blocks: int = 0
    gaps: dict[int, int] = field(default_factory=dict)
    """Held keys whose parent the node does not hold, with it; empty means prefix-closed."""
    recent: OrderedDict[int, None] = field(default_factory=OrderedDict)
    """Routing history, least recently used first; approximate nodes only."""


@dataclass(slots=True)
class SizeMasks:
    """Live lanes of one block size, by whether their blocks are closed under prefixes."""

    closed: int = 0
    open: int = 0


class Lanes:
    """Gives bits to nodes, retires them, and turns masks back into slots."""

    def __init__(self) -> None:
        self.by_slot: dict[int, Lane] = {}
        self.live = 0
        self.retired = 0
        self.sizes: dict[int, SizeMasks] = {}
        self._free: list[int] = []
        self._slots: list[int] = []
        self._slot_of_bit: dict[int, int] = {}
        self._slot_array = np.empty(0, dtype=np.int64)
        self._cache: dict[int, np.ndarray] = {}
        self._few: dict[int, tuple[int, ...]] = {}
        """Slots of masks of few holders, which are written one by one."""
        self._cached_slots = 0

    def add(self, slot: Slot, block_size: int, approximate_blocks: int) -> Lane:
        """A fresh lane for `slot`, with no blocks."""
        number = heapq.heappop(self._free) if self._free else len(self._slots)
        if number == len(self._slots):
            self._slots.append(0)
        self._slots[number] = slot
        self._forget_cache()
        lane = Lane(slot, number, 1 << number, block_size, approximate_blocks)
        self._slot_of_bit[lane.bit] = slot
        self.by_slot[slot] = lane
        self.live |= lane.bit
        self.sizes.setdefault(block_size, SizeMasks()).closed |= lane.bit
        return lane

    def retire(self, slot: Slot) -> Lane:
        """Take the slot's lane out of service; its bit may still stand in masks."""
        lane = self.by_slot.pop(slot)
        self.live &= ~lane.bit
        masks = self.sizes[lane.block_size]
        masks.closed &= ~lane.bit
        masks.open &= ~lane.bit
        if not masks.closed and not masks.open:
            del self.sizes[lane.block_size]
        if lane.blocks:
            self.retired |= lane.bit
        else:
            heapq.heappush(self._free, lane.number)
        return lane

    def release(self, mask: int) -> None:
        """Make retired bits, now in no entry any more, available again."""
        self.retired &= ~mask
        while mask:
            low = mask & -mask
            heapq.heappush(self._free, low.bit_length() - 1)
            mask ^= low

    def note_gaps(self, lane: Lane) -> None:
        """Bring the lane's place among closed and open lanes in line with its gaps."""
        masks = self.sizes[lane.block_size]
        if lane.gaps:
            masks.open |= lane.bit
            masks.closed &= ~lane.bit
        else:
            masks.closed |= lane.bit
            masks.open &= ~lane.bit

    def slots(self, mask: int) -> np.ndarray:
        """Slots of the lanes in `mask`, int64, in order of lane."""
        found = self._cache.get(mask)
        if found is None:
            width = len(self._slots)
            bits = np.frombuffer(mask.to_bytes((width + 7) // 8, "little"), np.uint8)
            lanes = np.unpackbits(bits, count=width, bitorder="little").nonzero()[0]
            found = self._slot_array[lanes]
            if self._cached_slots + found.size > _CACHED_SLOTS_MAX:
                self._forget_cache()
            self._cache[mask] = found
            self._cached_slots += found.size
        return found

    def scatter(self, row: Row, runs: Runs, block_size: int) -> None:
        """Write each run's depth in tokens into the cells of its holders."""
        single = self._slot_of_bit
        for mask, depth in runs:
            tokens = depth * block_size
            if mask in single:
                row[single[mask]] = tokens
            elif mask.bit_count() > _SCATTER_BITS and isinstance(row, np.ndarray):
                row[self.slots(mask)] = tokens
            else:
                for slot in self._few.get(mask) or self._listed(mask):
                    row[slot] = tokens

    def _listed(self, mask: int) -> tuple[int, ...]:
        slots = self.slots(mask)
        found = self._few[mask] = tuple(slots.tolist())
        return found

    def _forget_cache(self) -> None:
        self._cache.clear()
        self._few.clear()
        self._cached_slots = 0
        self._slot_array = np.array(self._slots, dtype=np.int64)

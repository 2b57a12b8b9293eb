"""The index as plainly as it can be said, for tests and benchmarks to compare with.

A dictionary of sets and a walk. Slow and obvious; same answers as the PrefixIndex.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from core.domain import Medium, Slot


class NaiveIndex:
    """Same public methods for nodes, blocks and match as PrefixIndex, without its bound."""

    def __init__(self) -> None:
        self._blocks: dict[int, dict[Medium, set[int]]] = {}
        self._sizes: dict[int, int] = {}
        self._history: dict[int, int] = {}
        self._recent: dict[int, list[int]] = {}
        self._capacity = 0

    def grow(self, slots: int) -> None:
        """Make match rows at least `slots` long."""
        self._capacity = max(self._capacity, slots)

    def add_node(self, slot: Slot, *, block_size: int, approximate_blocks: int = 0) -> None:
        """Start listing a node."""
        self.grow(slot + 1)
        self._sizes[slot] = block_size
        self._history[slot] = approximate_blocks
        self.forget(slot)

    def remove_node(self, slot: Slot) -> None:
        """Stop listing a node."""
        for table in (self._blocks, self._sizes, self._history, self._recent):
            del table[slot]  # type: ignore[attr-defined]

    def forget(self, slot: Slot) -> None:
        """All blocks of the node vanish."""
        self._blocks[slot] = {medium: set() for medium in Medium}
        self._recent[slot] = []

    def clear(self, slot: Slot) -> None:
        """The node reports its cache empty."""
        self.forget(slot)

    def store(
        self,
        slot: Slot,
        keys: Sequence[int],
        *,
        medium: Medium = Medium.GPU,
        parent: int | None = None,
        root: int = 0,
    ) -> None:
        """The node holds `keys` in `medium`; parent and root do not matter here."""
        del parent, root
        self._blocks[slot][medium].update(keys)

    def remove(self, slot: Slot, keys: Sequence[int], *, medium: Medium = Medium.GPU) -> None:
        """The node no longer holds `keys` in `medium`."""
        self._blocks[slot][medium].difference_update(keys)

    def record_route(self, slot: Slot, keys: Sequence[int], now: float, *, root: int = 0) -> None:
        """Remember the route's blocks, most recently used first, up to the node's capacity."""
        del now, root
        capacity = self._history[slot]
        used = list(keys[:capacity])
        older = [key for key in self._recent[slot] if key not in set(used)]
        self._recent[slot] = (used + older)[:capacity]
        if capacity:
            self._blocks[slot][Medium.GPU] = set(self._recent[slot])

    def match(self, keys: Mapping[int, Sequence[int]]) -> np.ndarray:
        """Tokens of the longest run of leading blocks each node holds, int64[slots]."""
        row = np.zeros(self._capacity, dtype=np.int64)
        for slot, media in self._blocks.items():
            held = set().union(*media.values())
            for key in keys.get(self._sizes[slot], ()):
                if key not in held:
                    break
                row[slot] += self._sizes[slot]
        return row

    def holders(self, key: int) -> list[Slot]:
        """Nodes that hold the block, in any medium."""
        held = [
            slot for slot, media in self._blocks.items() if any(key in s for s in media.values())
        ]
        return [Slot(slot) for slot in sorted(held)]

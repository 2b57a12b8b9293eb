"""Media below the GPU: which holders have a block there, and only there.

The index's own table says who holds a block in any medium. Beside it stand one table for each
lower medium and `below`, the holders that have the block but not on the GPU. While no engine
offloads, all of them are empty and cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.domain import Medium

LOWER = (Medium.CPU, Medium.DISK)


class Tiers:
    """Holder masks of the lower media; bits here are always set in the index's table too."""

    def __init__(self, held: dict[int, int]) -> None:
        self._held = held
        self.tables: dict[Medium, dict[int, int]] = {medium: {} for medium in LOWER}
        self.below: dict[int, int] = {}
        self.used = False
        """Whether any block may be held in a lower medium."""

    def stored_lower(self, medium: Medium, keys: Sequence[int], fresh: set[int], bit: int) -> None:
        """`keys` were stored in `medium`; `fresh` are those the holder had nowhere before."""
        self.used = True
        table = self.tables[medium]
        for key in keys:
            if self._held.get(key, 0) & bit:
                table[key] = table.get(key, 0) | bit
                if key in fresh:
                    self.below[key] = self.below.get(key, 0) | bit

    def stored_gpu(self, keys: Sequence[int], bit: int) -> None:
        """`keys` are now on the holder's GPU."""
        for key in keys:
            _clear(self.below, key, bit)

    def removed(self, medium: Medium, keys: Sequence[int], bit: int) -> list[int]:
        """Those of `keys` that the holder, having lost them in `medium`, holds nowhere."""
        return [key for key in keys if self._gone(medium, key, bit)]

    def drop(self, key: int) -> None:
        """Nobody holds `key` any more."""
        for table in (self.below, *self.tables.values()):
            table.pop(key, None)

    def keep(self, key: int, live: int) -> None:
        """Drop the bits of retired holders of `key`."""
        for table in (self.below, *self.tables.values()):
            _clear(table, key, ~live)

    def fastest(self, key: int, bit: int) -> Medium:
        """The fastest medium in which a holder of `key` has it."""
        if not self.below.get(key, 0) & bit:
            return Medium.GPU
        return Medium.CPU if self.tables[Medium.CPU].get(key, 0) & bit else Medium.DISK

    def settle(self) -> None:
        """Notice that nothing is held below the GPU any more."""
        self.used = any(self.tables.values())

    def _gone(self, medium: Medium, key: int, bit: int) -> bool:
        if not self._held.get(key, 0) & bit:
            return False
        if medium is not Medium.GPU:
            if not _clear(self.tables[medium], key, bit) or not self.below.get(key, 0) & bit:
                return False
        elif self.below.get(key, 0) & bit:
            return False
        if any(table.get(key, 0) & bit for table in self.tables.values()):
            self.below[key] = self.below.get(key, 0) | bit
            return False
        _clear(self.below, key, bit)
        return True


def _clear(table: dict[int, int], key: int, bits: int) -> bool:
    """Take `bits` out of the entry; True when any of them was set."""
    mask = table.get(key, 0)
    if not mask & bits:
        return False
    rest = mask & ~bits
    if rest:
        table[key] = rest
    else:
        del table[key]
    return True

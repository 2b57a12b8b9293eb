"""Sweeping retired bits out of the table, a slice at a time.

A pass walks the forest from its roots and loose keys, children before parents, and takes the
bits of holders retired before the pass began out of every mask; entries that nobody holds any
more go. Between slices the table may change freely: a key listed before the pass keeps its
place in the forest or becomes loose, and keys that become loose are added to the walk.
"""

from __future__ import annotations

from core.index.table import BlockTable


class Sweeper:
    """One pass at a time over the index's table; `done` bits are released at its end."""

    def __init__(self, table: BlockTable) -> None:
        self._table = table
        self._held = table.held
        self._forest = table.forest
        self._lanes = table.lanes
        self._dirty = 0
        self._stack: list[int] = []
        self._path: set[int] = set()

    @property
    def pending(self) -> bool:
        """Whether retired bits are left to sweep."""
        return bool(self._lanes.retired)

    def sweep(self, budget: int) -> int:
        """Visit up to `budget` entries (finishing a pass starts no other); returns how many."""
        visited = 0
        while visited < budget and self.pending:
            if not self._stack:
                self._begin()
            while self._stack and visited < budget:
                visited += self._visit(self._stack.pop())
                if not self._stack:
                    self._stack.extend(self._late())
            if not self._stack:
                self._finish()
                break
        return visited

    def _begin(self) -> None:
        self._dirty = self._lanes.retired
        self._forest.newly_loose = []
        self._stack.extend(self._forest.loose)

    def _late(self) -> list[int]:
        late = self._forest.newly_loose or []
        self._forest.newly_loose = []
        return late

    def _visit(self, item: int) -> int:
        # A key is first pushed as itself, then as its complement below its children.
        if item < 0:
            key = ~item
            self._path.discard(key)
            self._clean(key)
            return 1
        if item not in self._path:
            self._path.add(item)
            self._stack.append(~item)
            self._stack.extend(self._forest.listed_children(item))
        return 0

    def _clean(self, key: int) -> None:
        mask = self._held.get(key)
        if mask is None:
            self._forest.tidy((key,))
            return
        if self._table.tiers.used:
            self._table.tiers.keep(key, self._lanes.live)
        if mask & self._dirty:
            rest = mask & self._lanes.live
            if rest:
                self._held[key] = self._table.interned.setdefault(rest, rest)
            else:
                del self._held[key]
                self._table.tiers.drop(key)
                self._forest.delisted(key)

    def _finish(self) -> None:
        self._forest.newly_loose = None
        self._path.clear()
        self._table.tiers.settle()
        self._lanes.release(self._dirty)
        self._dirty = 0

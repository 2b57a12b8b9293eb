"""Child links between listed blocks: what makes the table of keys a forest.

A key names its whole prefix, so it has one parent; the links run from parent to children because
that is what removals, sweeps and the tree view ask for. Most blocks have one child, kept as a
bare key; only branching points have a set, in a table of their own. (The large table then holds
nothing but integers, and the garbage collector passes it by.) Links to children that are listed
no more go stale and are dropped when met, or when a set has doubled since it was last cleaned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

BRANCHING = -1
"""In place of an only child: the children are in `branches`."""
_LOOSE_SLACK = 1024


class Branches(set[int]):
    """Children of a branching block; `limit` is the size at which stale ones are cleaned out."""

    __slots__ = ("limit",)

    limit: int


class Forest:
    """Links over the keys of `listed`, which belongs to the table and is only read here.

    `loose` are linked keys that are not listed themselves: roots of chains, and parents that
    are missing. `roots` are those of them that were given as roots.
    """

    def __init__(self, listed: dict[int, int]) -> None:
        self._listed = listed
        self.children: dict[int, int] = {}
        self.branches: dict[int, Branches] = {}
        self.branch_links = 0
        """Links in all branches together."""
        self.loose: set[int] = set()
        self.roots: set[int] = set()
        self.newly_loose: list[int] | None = None
        """While a list, keys that become loose are noted in it, for whoever walks in slices."""
        self._loose_max = _LOOSE_SLACK

    def link(self, parent: int, child: int) -> None:
        """Make `child`, just listed, a child of `parent`."""
        known = self.children.get(parent)
        if known is None:
            self.children[parent] = child
            if parent not in self._listed:
                self.loosen(parent)
        elif known == BRANCHING:
            branches = self.branches[parent]
            before = len(branches)
            branches.add(child)
            if len(branches) > branches.limit:
                branches.intersection_update(self._listed.keys() & branches)
                branches.limit = 2 * len(branches) + 16
            self.branch_links += len(branches) - before
        elif known != child:
            self._branch(parent, known, child)

    def link_chain(self, keys: Sequence[int]) -> None:
        """Link each of `keys`, none of which has children yet, to the one after it."""
        children = self.children
        ahead = iter(keys)
        parent = next(ahead)
        for child in ahead:  # quicker than an update with pairs
            children[parent] = child
            parent = child

    def linked(self, key: int) -> Iterable[int]:
        """The linked children of `key`, listed or not."""
        known = self.children.get(key)
        if known is None:
            return ()
        return self.branches[key] if known == BRANCHING else (known,)

    def listed_children(self, key: int) -> Iterator[int]:
        """Children of `key` that are listed."""
        listed = self._listed
        return (child for child in self.linked(key) if child in listed)

    def only_child(self, key: int) -> int | None:
        """The listed child of `key` if there is exactly one."""
        known = self.children.get(key)
        if known is None or known in self._listed:
            return known
        children = list(islice(self.listed_children(key), 2))
        return children[0] if len(children) == 1 else None

    def has_listed_child(self, key: int) -> bool:
        """Whether any child of `key` is listed; drops the links when none is."""
        for _ in self.listed_children(key):
            return True
        if self.children.pop(key, None) == BRANCHING:
            self.branch_links -= len(self.branches.pop(key))
        return False

    def listed_again(self, key: int) -> None:
        """`key` has just been listed, possibly after its children."""
        self.loose.discard(key)

    def delisted(self, key: int) -> None:
        """`key` has just left the listing; its links stay while children remain."""
        if self.has_listed_child(key):
            self.loosen(key)

    def tidy(self, keys: Collection[int]) -> None:
        """Let go of those of `keys` that are loose and without listed children."""
        for key in keys:
            if key in self.loose and not self.has_listed_child(key):
                self.loose.discard(key)
                self.roots.discard(key)

    def loosen(self, key: int) -> None:
        """`key` has children but is not listed itself."""
        self.loose.add(key)
        if self.newly_loose is not None:
            self.newly_loose.append(key)
        if len(self.loose) > self._loose_max:
            self.tidy(list(self.loose))
            self._loose_max = 2 * len(self.loose) + _LOOSE_SLACK

    def _branch(self, parent: int, first: int, second: int) -> None:
        if first not in self._listed:
            self.children[parent] = second
            return
        branches = Branches((first, second))
        branches.limit = 16
        self.children[parent] = BRANCHING
        self.branches[parent] = branches
        self.branch_links += 2

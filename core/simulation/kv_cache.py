"""A node's KV cache: least recently used blocks leave first, tails before heads, tier by tier.

An access refreshes all blocks of a prompt at once; among blocks of one access the deepest is the
oldest. So a block is never younger than those before it in its chain: eviction takes tails first
and the tiers together stay closed under prefixes, as in the engines. With a host tier, blocks
that leave the GPU move there.

Blocks are kept by runs: stretches of one chain that were always used together, a run being split
where a prompt parts from it. An access moves the runs on its way to the young end, the deepest
first, so the oldest run always ends in a leaf, and all costs are by runs and slices, not blocks.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from itertools import islice, repeat
from typing import Protocol

from core.domain import Medium

_GPU = Medium.GPU
_drain = deque[object](maxlen=0).extend
"""Runs an iterator to its end at C speed."""


class CacheListener(Protocol):
    """Who hears of stored and removed blocks: the prefix index, at once or after a delay."""

    def stored(self, keys: Sequence[int], medium: Medium, parent: int | None) -> None:
        """A run of blocks that came in, in chain order, after `parent` (None: from the root)."""
        ...

    def removed(self, keys: Sequence[int], medium: Medium) -> None:
        """Blocks that went, deepest first."""
        ...


class _Run(list[int]):
    """Blocks of one chain in a row, all of the same age; a run is equal to itself alone."""

    __slots__ = ()
    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__


class KvCache:
    """Blocks by key, oldest first. Capacities in blocks; a host capacity of 0 means no tier."""

    __slots__ = (
        "blocks", "capacity", "evicted", "host", "host_capacity", "listener", "order", "reserved",
        "runs",
    )  # fmt: skip

    def __init__(self, capacity: int, listener: CacheListener, *, host_capacity: int = 0) -> None:
        self.capacity = capacity
        self.host_capacity = host_capacity
        self.listener = listener
        self.blocks = 0
        """Held on the GPU."""
        self.runs: dict[int, _Run] = {}
        """The runs on the GPU by their first block."""
        self.order: OrderedDict[_Run, None] = OrderedDict()
        """The same, least recently used first."""
        self.host: OrderedDict[int, None] = OrderedDict()
        self.reserved = 0
        """Blocks taken by running decodes, out of reach for the cache."""
        self.evicted = 0

    def match(self, keys: Sequence[int]) -> int:
        """Leading blocks of `keys` held in any tier."""
        depth, end = self._on_gpu(keys), len(keys)
        if self.host:
            while depth < end and keys[depth] in self.host:
                depth += 1
        return depth

    def host_blocks(self, keys: Sequence[int]) -> int:
        """How many of `keys` would have to be loaded from the host tier."""
        if not self.host:
            return 0
        return sum(1 for key in keys[self._on_gpu(keys) :] if key in self.host)

    def insert(self, keys: Sequence[int]) -> None:
        """Hold all of `keys` (a chain from its start), now the latest used, evicting the oldest."""
        room = self.capacity - self.reserved
        if len(keys) > room:
            keys = keys[: max(room, 0)]
        way, held = self._way(keys)
        new = keys[held:]
        if new:
            run = self.runs[new[0]] = _Run(new)
            self.order[run] = None
            self.blocks += len(new)
        young = self.order.move_to_end
        for run in reversed(way):
            young(run)
        if new:
            self.listener.stored(new, _GPU, keys[held - 1] if held else None)
            if self.host:
                self._take_from_host(new)
            if self.blocks > room:
                self._shrink()

    def _on_gpu(self, keys: Sequence[int]) -> int:
        """Leading blocks of `keys` held on the GPU. A key names the whole prefix before it, so
        chains agree up to a block where they agree on it."""
        runs, depth, end = self.runs, 0, len(keys)
        while depth < end:
            run = runs.get(keys[depth])
            if run is None:
                break
            ahead = depth + len(run)
            if ahead > end or keys[ahead - 1] != run[-1]:
                return depth + _shared(run, keys, depth)
            depth = ahead
        return depth

    def _way(self, keys: Sequence[int]) -> tuple[list[_Run], int]:
        """The runs that lead along `keys`, the last split where they part, and their length."""
        runs, depth, end = self.runs, 0, len(keys)
        way: list[_Run] = []
        while depth < end:
            run = runs.get(keys[depth])
            if run is None:
                break
            ahead = depth + len(run)
            if ahead > end or keys[ahead - 1] != run[-1]:
                shared = _shared(run, keys, depth)
                way.append(self._split(run, shared))
                return way, depth + shared
            way.append(run)
            depth = ahead
        return way, depth

    def _split(self, run: _Run, at: int) -> _Run:
        """Part a run after its first `at` blocks; returns those. The rest keeps its age."""
        head = _Run(run[:at])
        del run[:at]
        self.runs[head[0]] = head
        self.runs[run[0]] = run
        self.order[head] = None
        return head

    def reserve(self, blocks: int) -> None:
        """Take `blocks` (negative: give back) for a running decode."""
        self.reserved += blocks
        self._shrink()

    def clear(self) -> None:
        """The node restarted; nobody is told, as nobody is there to tell."""
        self.runs.clear()
        self.order.clear()
        self.blocks = 0
        self.host.clear()
        self.reserved = 0

    def _shrink(self) -> None:
        room = self.capacity - self.reserved
        over = self.blocks - (room if room > 0 else 0)
        if over <= 0:
            return
        gone = self._oldest(over)
        self.blocks -= len(gone)
        self.evicted += len(gone)
        if self.host_capacity:
            self._demote(gone)
        self.listener.removed(gone, _GPU)

    def _oldest(self, count: int) -> list[int]:
        """Take out the `count` blocks to evict next, or all there are."""
        runs, order = self.runs, self.order
        found: list[int] = []
        while order and (over := count - len(found)) > 0:
            run = next(iter(order))
            if len(run) <= over:
                del order[run], runs[run[0]]
                found += run[::-1]
            else:
                found += run[: -over - 1 : -1]
                del run[-over:]
        return found

    def _demote(self, gone: list[int]) -> None:
        host = self.host
        _drain(map(host.pop, gone, repeat(None)))
        for key in gone:
            host[key] = None
        # Demoted blocks are listed already, with their parents.
        for key in gone:
            self.listener.stored((key,), Medium.CPU, None)
        over = len(host) - self.host_capacity
        if over > 0:
            lost = list(islice(host, over))
            _drain(map(host.pop, lost))
            self.listener.removed(lost, Medium.CPU)

    def _take_from_host(self, keys: Sequence[int]) -> None:
        back = [key for key in keys if key in self.host]
        for key in back:
            del self.host[key]
        if back:
            self.listener.removed(back[::-1], Medium.CPU)


def _shared(run: Sequence[int], keys: Sequence[int], depth: int) -> int:
    """Leading blocks of `run` that `keys` has from `depth` on: the first at least, not all.

    Chains agree up to a block where they agree on it: bisect.
    """
    low, high = 1, min(len(run), len(keys) - depth)
    while low < high:
        middle = (low + high + 1) >> 1
        if run[middle - 1] == keys[depth + middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low

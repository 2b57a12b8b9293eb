"""A node's KV cache: least recently used blocks leave first, tails before heads, tier by tier.

An access refreshes all blocks of a prompt at once; among blocks of one access the deepest is the
oldest. So a block is never younger than those before it in its chain: eviction takes tails first
and the tiers together stay closed under prefixes, as in the engines. With a host tier, blocks
that leave the GPU move there.

The order is kept by accesses, not by blocks: each access has a number, a block carries the number
of its latest one, and eviction goes through the accesses from the oldest on, taking the blocks
that still carry its number. That makes an access a bulk operation of the dictionary.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from itertools import islice, repeat
from typing import Protocol

from core.domain import Medium

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


class KvCache:
    """Blocks by key, oldest first. Capacities in blocks; a host capacity of 0 means no tier."""

    __slots__ = (
        "accesses", "capacity", "evicted", "gpu", "host", "host_capacity", "latest", "listener",
        "reserved",
    )  # fmt: skip

    def __init__(self, capacity: int, listener: CacheListener, *, host_capacity: int = 0) -> None:
        self.capacity = capacity
        self.host_capacity = host_capacity
        self.listener = listener
        self.gpu: dict[int, int] = {}
        """Block -> number of its latest access."""
        self.accesses: deque[tuple[int, Sequence[int]]] = deque()
        """(number, blocks in chain order), oldest first."""
        self.latest = 0
        self.host: OrderedDict[int, None] = OrderedDict()
        self.reserved = 0
        """Blocks taken by running decodes, out of reach for the cache."""
        self.evicted = 0

    def match(self, keys: Sequence[int]) -> int:
        """Leading blocks of `keys` held in any tier."""
        if self.host:
            gpu, host = self.gpu, self.host
            return next(
                (i for i, k in enumerate(keys) if k not in gpu and k not in host), len(keys)
            )
        # On the GPU alone a block is held only after those before it: bisect.
        gpu, low, high = self.gpu, 0, len(keys)
        if high and keys[-1] in gpu:
            return high
        while low < high:
            middle = (low + high) >> 1
            if keys[middle] in gpu:
                low = middle + 1
            else:
                high = middle
        return low

    def host_blocks(self, keys: Sequence[int]) -> int:
        """How many of `keys` would have to be loaded from the host tier."""
        if not self.host:
            return 0
        return sum(1 for key in keys if key not in self.gpu and key in self.host)

    def insert(self, keys: Sequence[int]) -> None:
        """Hold all of `keys` (a chain from its start), now the latest used, evicting the oldest."""
        room = self.capacity - self.reserved
        if len(keys) > room:
            keys = keys[: max(room, 0)]
        gpu = self.gpu
        before = len(gpu)
        latest = self.latest = self.latest + 1
        for key in keys:
            gpu[key] = latest
        self.accesses.append((latest, keys))
        # What was held is a leading part, so the number of new blocks tells which they are.
        held = len(keys) - (len(gpu) - before)
        new = keys[held:]
        if new:
            self.listener.stored(new, Medium.GPU, keys[held - 1] if held else None)
            if self.host:
                self._take_from_host(new)
            if len(gpu) > room:
                self._shrink()

    def reserve(self, blocks: int) -> None:
        """Take `blocks` (negative: give back) for a running decode."""
        self.reserved += blocks
        self._shrink()

    def clear(self) -> None:
        """The node restarted; nobody is told, as nobody is there to tell."""
        self.gpu.clear()
        self.accesses.clear()
        self.host.clear()
        self.reserved = 0

    def _shrink(self) -> None:
        gpu = self.gpu
        over = len(gpu) - max(self.capacity - self.reserved, 0)
        if over <= 0:
            return
        gone = self._oldest(over)
        _drain(map(gpu.pop, gone))
        self.evicted += len(gone)
        if self.host_capacity:
            self._demote(gone)
        self.listener.removed(gone, Medium.GPU)

    def _oldest(self, count: int) -> list[int]:
        """The `count` blocks to evict next, or all there are."""
        number_of, accesses = self.gpu.get, self.accesses
        found: list[int] = []
        while accesses and len(found) < count:
            number, keys = accesses.popleft()
            # A later access to a block is one to all before it, so what is left is a tail.
            if not keys or number_of(keys[-1]) != number:
                continue
            low, high = 0, len(keys) - 1
            while low < high:
                middle = (low + high) >> 1
                if number_of(keys[middle]) == number:
                    high = middle
                else:
                    low = middle + 1
            over = len(found) + len(keys) - low - count
            if over > 0:
                accesses.appendleft((number, keys[low : low + over]))
                low += over
            tail = keys[low:]
            found += tail[::-1]
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

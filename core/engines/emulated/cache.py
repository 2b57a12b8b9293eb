"""Paged KV cache with prefix reuse: a pool of numbered blocks, as vLLM's block pool does it.

Theory of operation. A block is fresh (never used), in use (reference count above 0), or free.
Free blocks keep their content and stay reusable until the pool hands them out again, oldest
first. A finished sequence gives its blocks back tail first, so tails are reused before heads and
what remains is a valid prefix. Two sequences that compute the same block at the same time each
own a physical copy: every copy is announced when stored and when reused. Block 0 is reserved.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from core.engines.emulated.events import AllBlocksCleared, BlockRemoved, Event

MEDIUM = "GPU"


class OutOfBlocks(Exception):
    """Fewer free blocks than asked for; nothing was taken."""


class BlockPool:
    """Blocks by number: who uses them, what they hold, which are free."""

    def __init__(self, blocks: int, *, block_size: int) -> None:
        if blocks < 2:
            raise ValueError(f"blocks must be at least 2 (one is reserved), not {blocks}")
        self.blocks = blocks
        self.block_size = block_size
        self.pending: list[Event] = []
        """Events since the last `take_events`, in the order they happened."""
        self._references = [0] * blocks
        self._hash_of: list[int | None] = [None] * blocks
        self._content = [0] * blocks
        self._holder: dict[int, int] = {}
        self._copies: dict[int, list[int]] = {}
        self._free: OrderedDict[int, None] = OrderedDict()
        self._fresh = 1

    @property
    def free_blocks(self) -> int:
        """Blocks that can be handed out now, reusable content or not."""
        return self.blocks - self._fresh + len(self._free)

    @property
    def used_blocks(self) -> int:
        """Blocks that live sequences or unfetched transfers hold."""
        return self.blocks - 1 - self.free_blocks

    @property
    def cached_blocks(self) -> int:
        """Distinct blocks that a prompt could reuse."""
        return len(self._holder)

    @property
    def usage(self) -> float:
        """Share of blocks in use, 0..1; reusable but unreferenced blocks do not count."""
        return self.used_blocks / (self.blocks - 1)

    def match(self, hashes: Sequence[int], limit: int) -> list[int]:
        """Blocks of the longest run of leading `hashes`, at most `limit`; takes nothing."""
        found = []
        holder = self._holder
        for key in hashes[:limit]:
            block = holder.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def unreferenced(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` are free: touching them takes that many from `free_blocks`."""
        references = self._references
        return sum(1 for block in blocks if not references[block])

    def touch(self, blocks: Iterable[int]) -> None:
        """Take one more reference on each of `blocks`."""
        references, free = self._references, self._free
        for block in blocks:
            if not references[block]:
                del free[block]
            references[block] += 1

    def allocate(self, count: int) -> list[int]:
        """`count` blocks with one reference each; announces content that is lost by it.

        Raises OutOfBlocks.
        """
        if count > self.free_blocks:
            raise OutOfBlocks(f"{count} blocks asked for, {self.free_blocks} free")
        taken = []
        for _ in range(count):
            block = self._next_free()
            self._references[block] = 1
            taken.append(block)
        return taken

    def _next_free(self) -> int:
        if self._fresh < self.blocks:
            self._fresh += 1
            return self._fresh - 1
        block, _ = self._free.popitem(last=False)
        if self._hash_of[block] is not None:
            self._forget(block)
        return block

    def _forget(self, block: int) -> None:
        key = self._hash_of[block]
        assert key is not None
        self._hash_of[block] = None
        copies = self._copies.get(key)
        if self._holder[key] != block:
            assert copies is not None
            copies.remove(block)
        elif copies:
            self._holder[key] = copies.pop(0)
        else:
            del self._holder[key]
        if copies is not None and not copies:
            del self._copies[key]
        self.pending.append(BlockRemoved([key], MEDIUM, 0))

    def register(self, blocks: Sequence[int], hashes: Sequence[int]) -> None:
        """Make full blocks findable by their chained hashes; the caller announces them."""
        holder, hash_of, content = self._holder, self._hash_of, self._content
        for block, key in zip(blocks, hashes, strict=True):
            hash_of[block] = key
            content[block] = key
            if key in holder:
                self._copies.setdefault(key, []).append(block)
            else:
                holder[key] = block

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference on each, last block first, so that tails are reused first."""
        references, free = self._references, self._free
        for block in reversed(blocks):
            references[block] -= 1
            if not references[block]:
                free[block] = None

    def write(self, block: int, fingerprint: int) -> None:
        """Note what a block that is not full holds (for transfers)."""
        self._content[block] = fingerprint

    def read(self, blocks: Iterable[int]) -> list[int]:
        """Fingerprint of what is in each block number now, whoever owns it; 0 out of range."""
        content = self._content
        return [content[block] if 0 < block < self.blocks else 0 for block in blocks]

    def reset(self) -> bool:
        """Forget all content, announced with the next batch; False while blocks are in use."""
        if self.used_blocks:
            return False
        self.clear_silently()
        self.pending.append(AllBlocksCleared())
        return True

    def clear_silently(self) -> None:
        """Forget all content and tell nobody (a fault); live sequences keep their blocks."""
        self._holder.clear()
        self._copies.clear()
        self._hash_of = [None] * self.blocks

    def take_events(self) -> list[Event]:
        """Events since the last call."""
        events, self.pending = self.pending, []
        return events

    def check_integrity(self) -> None:
        """Raise AssertionError where the pool's tables disagree."""
        free = set(self._free)
        for block in range(1, self._fresh):
            assert (self._references[block] == 0) == (block in free), block
        listed = {(key, block) for key, block in self._holder.items()}
        listed |= {(key, block) for key, copies in self._copies.items() for block in copies}
        real = {(key, block) for block, key in enumerate(self._hash_of) if key is not None}
        assert listed == real

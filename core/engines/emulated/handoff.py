"""Blocks kept for another engine: pinned when a prefill ends, freed when fetched or expired."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

from core.engines.emulated.cache import BlockPool
from core.engines.emulated.sequence import Sequence, partial_fingerprint


@dataclass(frozen=True, slots=True)
class Hold:
    """Blocks of a finished prefill, pinned until fetched or `expires_s`."""

    blocks: list[int]
    expires_s: float


class Holds:
    """Pinned blocks by request name. A name is good for one fetch; nobody is told of misuse.

    Fetching under a used, expired or unknown name reads whatever those block numbers hold by
    then, as with real memory; only `late` counts it.
    """

    def __init__(self, pool: BlockPool, *, lease_s: float) -> None:
        self._pool = pool
        self._lease_s = lease_s
        self._holds: dict[str, Hold] = {}
        self.expired = 0
        self.late = 0

    def __contains__(self, name: str | None) -> bool:
        return name in self._holds

    def names(self) -> list[str]:
        """Names held now, sorted."""
        return sorted(self._holds)

    def pin(self, name: str, sequence: Sequence, *, now: float) -> None:
        """Keep a finished sequence's blocks."""
        size = self._pool.block_size
        rest = partial_fingerprint(sequence, size)
        if rest:
            self._pool.write(sequence.blocks[sequence.prompt_tokens // size], rest)
        self._holds[name] = Hold(sequence.blocks, now + self._lease_s)

    def fetch(self, name: str, blocks: Items[int]) -> list[int]:
        """Contents of block numbers, as they are now; ends the hold if there is one."""
        contents = self._pool.read(blocks)
        hold = self._holds.pop(name, None)
        if hold is None:
            self.late += 1
        else:
            self._pool.release(hold.blocks)
        return contents

    def expire(self, now: float) -> int:
        """End holds whose lease is over; how many."""
        due = [name for name, hold in self._holds.items() if hold.expires_s <= now]
        for name in due:
            self._pool.release(self._holds.pop(name).blocks)
        self.expired += len(due)
        return len(due)

    @property
    def next_expiry_s(self) -> float | None:
        """When the next lease ends."""
        return min((hold.expires_s for hold in self._holds.values()), default=None)

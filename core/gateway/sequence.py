"""Rolling sequence hashes of the indexer API, and what they mean in our index. Pure.

RFC 1403 lets routers send hashes instead of tokens: with XXH3-64 and one seed S,

    local[i] = XXH3(tokens of block i as little-endian uint32, S)
    seq[0] = local[0];  seq[i] = XXH3(seq[i-1] || local[i], S)   (both as 8 bytes LE)

They name a prefix without model, adapter or salt, which our keys fold in; so the book keeps, by
root key, which of our keys a sequence hash stands for. It learns from tokens that come by.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt
import xxhash

ENTRIES_MAX = 1_000_000


def sequence_hashes(
    tokens: npt.NDArray[np.uint32], block_size: int, *, before: int | None = None, seed: int = 0
) -> list[int]:
    """Rolling hashes of the whole blocks, continuing after the block hashed `before`."""
    whole = len(tokens) // block_size
    data = np.ascontiguousarray(tokens[: whole * block_size], dtype="<u4")
    digest = xxhash.xxh3_64_intdigest
    out: list[int] = []
    last = before
    blocks: list[bytes] = data.view(f"V{4 * block_size}").tolist() if whole else []
    for block in blocks:
        local = digest(block, seed)
        if last is not None:
            pair = last.to_bytes(8, "little") + local.to_bytes(8, "little")
            local = digest(pair, seed)
        out.append(local)
        last = local
    return out


class SequenceBook:
    """Sequence hash -> our key, by root; bounded, oldest entries first out."""

    def __init__(self, *, seed: int = 0, entries_max: int = ENTRIES_MAX) -> None:
        self.seed = seed
        self._entries_max = entries_max
        self._places: dict[int, tuple[int, int]] = {}
        """Our key -> (root, sequence hash)."""
        self._keys: dict[int, dict[int, int]] = {}
        """Root -> sequence hash -> our key."""

    def __len__(self) -> int:
        return len(self._places)

    def learn(
        self,
        tokens: npt.NDArray[np.uint32],
        keys: Sequence[int],
        block_size: int,
        *,
        parent: int | None,
        root: int,
    ) -> None:
        """Blocks of `tokens` have `keys`; they start at `root` or continue the block `parent`.

        A continuation of a block that is not known here teaches nothing.
        """
        before: int | None = None
        if parent is not None:
            place = self._places.get(parent)
            if place is None:
                return
            root, before = place
        hashes = sequence_hashes(tokens, block_size, before=before, seed=self.seed)
        self._keys.setdefault(root, {}).update(zip(hashes, keys, strict=False))
        for key, found in zip(keys, hashes, strict=False):
            self._places[key] = (root, found)
        if len(self._places) > self._entries_max:
            self._shrink()

    def keys_of(self, root: int, hashes: Sequence[int]) -> list[int]:
        """Our keys for the leading hashes that are known under `root`."""
        known = self._keys.get(root, {})
        out: list[int] = []
        for found in hashes:
            key = known.get(found)
            if key is None:
                break
            out.append(key)
        return out

    def _shrink(self) -> None:
        for key in list(islice(self._places, self._entries_max // 4)):
            root, found = self._places.pop(key)
            table = self._keys[root]
            table.pop(found, None)
            if not table:
                del self._keys[root]

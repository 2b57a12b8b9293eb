"""Recent prompts by their token ids: where the tokens of a hot prefix are found again.

The index knows prefixes by keys, which cannot be turned back into tokens. A prefix that is hot is
asked for again and again, so some prompt of the last seconds begins with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.uint32]
_KEY_BYTES = 40
"""A key in a list: a 64-bit integer object and the reference to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPrompt:
    """What it takes to ask an engine for a prompt, or the beginning of one, again."""

    served: str
    """Model name as engines know it: a base model's or an adapter's."""
    base: str
    adapter: str
    salt: str
    tokens: Tokens
    keys: Mapping[int, Sequence[int]]

    @property
    def nbytes(self) -> int:
        """Estimate of the memory it keeps alive."""
        keys = sum(len(chain) for chain in self.keys.values())
        return int(self.tokens.nbytes) + _KEY_BYTES * keys


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPrefix:
    """The beginning of a known prompt, up to a block's end."""

    prompt: KnownPrompt
    block_size: int
    depth_blocks: int

    @property
    def tokens(self) -> Tokens:
        """Its token ids."""
        return self.prompt.tokens[: self.depth_blocks * self.block_size]

    @property
    def keys(self) -> Sequence[int]:
        """Keys of its blocks."""
        return self.prompt.keys[self.block_size][: self.depth_blocks]


class RecentPrompts:
    """The newest prompts that fit into `bytes_max`."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.nbytes = 0
        self.dropped = 0
        """Prompts that gave their place to newer ones, or were too large for any."""
        self._prompts: deque[tuple[int, KnownPrompt]] = deque()

    def __len__(self) -> int:
        return len(self._prompts)

    def add(self, prompt: KnownPrompt) -> None:
        """Keep a prompt; the oldest make room for it."""
        size = prompt.nbytes
        if size > self.bytes_max:
            self.dropped += 1
            return
        self._prompts.append((size, prompt))
        self.nbytes += size
        while self.nbytes > self.bytes_max:
            old, _ = self._prompts.popleft()
            self.nbytes -= old
            self.dropped += 1

    def find(self, key: int, depth_blocks: int) -> KnownPrefix | None:
        """The prefix whose block number `depth_blocks` has this key; None where none is known."""
        for _, prompt in reversed(self._prompts):
            for size, keys in prompt.keys.items():
                if len(keys) >= depth_blocks and keys[depth_blocks - 1] == key:
                    return KnownPrefix(prompt=prompt, block_size=size, depth_blocks=depth_blocks)
        return None

    def search(self, key: int) -> KnownPrefix | None:
        """The same for a key of unknown depth; slower."""
        for _, prompt in reversed(self._prompts):
            for size, keys in prompt.keys.items():
                if key in keys:
                    depth = keys.index(key) + 1
                    return KnownPrefix(prompt=prompt, block_size=size, depth_blocks=depth)
        return None

    def clear(self) -> None:
        """Forget everything."""
        self._prompts.clear()
        self.nbytes = 0

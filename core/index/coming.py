"""Blocks that are not cached yet but soon will be: what placed prompts are computing, and where.

A request that shares a prefix with one whose prefill is under way finds nothing in the index,
though the node at work will hold the prefix by the time the request gets its turn there. This
board knows the prompts under way. It is beside the index, not in it: what is coming is never
reported as cached, and never held against a node whose cache turns out to lack it.

A prompt is entered under its keys at a few depths (those of `core.index.heat`) beyond what its
node held already. A look-up walks the depths of the asking prompt from its end, and where it
meets a prompt under way finds the exact end of what they share by bisection: a key stands for the
whole prefix up to it, so two prompts agree on a block exactly where they agree on all before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.index.heat import depths_of

PROMPTS_MAX = 8192
"""Prompts under way that are known at once; about 8 KB each."""
LINGER_S = 1.0
"""A prefill that is done stays this long: the events that list its blocks are on their way."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """A prompt under way on a node."""

    slot: int
    generation: int
    """Of the node, so that a restart voids it."""
    keys: Sequence[int]
    block_size: int
    points: tuple[int, ...]
    """Keys it is entered under."""
    known_blocks: int
    """Of its first blocks, how many some node held when it was placed."""


class Coming:
    """Prompts under way by reservation, at most `prompts_max`; further ones earn no credit."""

    def __init__(self, prompts_max: int = PROMPTS_MAX) -> None:
        self.prompts_max = prompts_max
        self.left_out = 0
        """Prompts that found no place."""
        self._open: dict[int, Prefill] = {}
        self._at: dict[int, dict[int, dict[int, Prefill]]] = {}
        """Key -> slot -> reservation -> prompt, the longest at work first."""
        self._done: deque[tuple[float, int]] = deque()

    def __len__(self) -> int:
        return len(self._open)

    def begin(
        self,
        name: int,
        *,
        slot: int,
        generation: int,
        keys: Sequence[int],
        block_size: int,
        held_blocks: int,
        known_blocks: int = 0,
    ) -> None:
        """A prompt was placed on a node that holds its first `held_blocks` blocks, while the best
        holder had `known_blocks`."""
        points = tuple(keys[d - 1] for d in depths_of(len(keys)) if d > held_blocks)
        if not points:
            return
        if len(self._open) >= self.prompts_max:
            self.left_out += 1
            return
        made = self._open[name] = Prefill(slot, generation, keys, block_size, points, known_blocks)
        for key in points:
            self._at.setdefault(key, {}).setdefault(slot, {})[name] = made

    def done(self, name: int, now: float) -> None:
        """Its prefill is over: the index will tell from `LINGER_S` on."""
        if name in self._open:
            self._done.append((now + LINGER_S, name))

    def end(self, name: int) -> None:
        """It failed, or was given up: nothing is coming. Repeated calls do nothing."""
        gone = self._open.pop(name, None)
        if gone is None:
            return
        for key in gone.points:
            slots = self._at[key]
            there = slots[gone.slot]
            del there[name]
            if not there:
                del slots[gone.slot]
                if not slots:
                    del self._at[key]

    def sweep(self, now: float) -> None:
        """Let go of prefills that were done long enough ago."""
        done = self._done
        while done and done[0][0] <= now:
            self.end(done.popleft()[1])

    def find(
        self,
        keys: Mapping[int, Sequence[int]],
        generation: Sequence[int],
        *,
        copies: set[int] | None = None,
    ) -> dict[int, int]:
        """Slot -> leading tokens of these keys that are being computed there.

        generation: of every slot now; prompts of a node's past life do not count. copies: gets the
        slots that compute what some node held already when they began.
        """
        found: dict[int, int] = {}
        for size, chain in keys.items():
            for depth in reversed(depths_of(len(chain)) if chain else ()):
                slots = self._at.get(chain[depth - 1])
                if slots is None:
                    continue
                for slot, there in slots.items():
                    if slot in found:
                        continue
                    prompt = _first(there, generation[slot])
                    if prompt is not None and prompt.block_size == size:
                        blocks = _shared(chain, prompt.keys, depth)
                        found[slot] = blocks * size
                        if copies is not None and prompt.known_blocks >= blocks:
                            copies.add(slot)
        return found

    def check_integrity(self) -> None:
        """AssertionError where the tables disagree."""
        listed = {
            (key, slot, name)
            for key, slots in self._at.items()
            for slot, there in slots.items()
            for name in there
        }
        meant = {(k, p.slot, name) for name, p in self._open.items() for k in p.points}
        assert listed == meant, listed ^ meant
        assert all(there for slots in self._at.values() for there in slots.values())


def _first(there: Mapping[int, Prefill], generation: int) -> Prefill | None:
    """The prompt longest at work in a node's present life."""
    for prompt in there.values():
        if prompt.generation == generation:
            return prompt
    return None


def _shared(a: Sequence[int], b: Sequence[int], at_least: int) -> int:
    """Leading blocks that two chains share, known to be `at_least`."""
    low, high = at_least, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[middle - 1] == b[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low

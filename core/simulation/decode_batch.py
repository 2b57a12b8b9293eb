"""Continuous batching of decodes on one node, solved between changes instead of step by step.

A step of a batch of b requests with k KV tokens takes TBT(b, k) = d0 + d1 b + d2 k and adds one
token to each, so k grows by b a step and n steps take

    n (d0 + d1 b + d2 k) + d2 b n (n - 1) / 2.

Members join and leave only at step boundaries. State stands at one boundary, which lies in the
future right after a join: the step under way ends first.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from operator import sub
from typing import Generic, TypeVar

Member = TypeVar("Member")

LONGEST_SHARE = 0.1
"""TBT is the mean of this share of a request's token gaps, the longest ones (F)."""
_ROUNDING_S = 1e-9
_ROUNDING_STEPS = 1e-6


class DecodeBatch(Generic[Member]):
    """The running batch. Times in seconds, `step` counts steps since the start."""

    __slots__ = (
        "_ends", "_means", "at_s", "d0", "d1", "d2", "kv_tokens", "leaves", "size", "step",
        "step_count", "version",
    )  # fmt: skip

    def __init__(self, tbt: tuple[float, float, float]) -> None:
        self.d0, self.d1, self.d2 = tbt
        self.size = 0
        self.kv_tokens = 0
        self.step = 0
        self.at_s = 0.0
        """Time of the boundary `step`."""
        self.step_count = 0
        self.leaves: list[tuple[int, int, Member]] = []
        self.version = 0
        self._ends: list[int] = []
        self._means: list[float] = []

    @property
    def step_s(self) -> float:
        """Length of the next step."""
        return self.d0 + self.d1 * self.size + self.d2 * self.kv_tokens

    def boundary(self, now: float) -> float:
        """The first boundary at or after `now`; state moves there."""
        self._advance(now)
        if self.size and self.at_s < now:
            self._run(1)
        if self.at_s < now:
            self.at_s = now
        return self.at_s

    def join(self, member: Member, now: float, *, kv_tokens: int, steps: int) -> int:
        """Add a member for `steps` steps from the next boundary on; returns its first step."""
        self.boundary(now)
        self.size += 1
        self.kv_tokens += kv_tokens
        self.step_count += 1
        heapq.heappush(self.leaves, (self.step + steps, self.step_count, member))
        self.version += 1
        return self.step

    def next_leave_s(self) -> float:
        """When the next member leaves if nothing changes; infinite when empty."""
        if not self.leaves:
            return math.inf
        return self.at_s + self._length(max(self.leaves[0][0] - self.step, 0))

    def settle(self, now: float) -> list[Member]:
        """Move to `now` and take out the members that are done by then."""
        self._advance(now)
        done = []
        while self.leaves and self.leaves[0][0] <= self.step and self.at_s <= now + _ROUNDING_S:
            done.append(heapq.heappop(self.leaves)[2])
        return done

    def left(self, kv_tokens: int) -> None:
        """A member with that much KV (prompt and output) is gone."""
        self.size -= 1
        self.kv_tokens -= kv_tokens
        self.version += 1

    def coupled_step(self, start_s: float, length_s: float) -> None:
        """One step of set length (a prefill chunk ran in it) from the boundary at `start_s`."""
        self.at_s = start_s + length_s
        if self.size:
            self._note(1, length_s)
            self.kv_tokens += self.size
        self.version += 1

    def clear(self) -> list[Member]:
        """Drop everybody: the node died."""
        gone = [member for _, _, member in sorted(self.leaves, key=lambda leave: leave[:2])]
        self.leaves.clear()
        self.size = self.kv_tokens = 0
        self.version += 1
        return gone

    def tbt_s(self, first: int, last: int, wait_s: float) -> tuple[float, float]:
        """(mean of the longest 10 % of gaps, mean gap) of a member of steps first..last.

        wait_s: time between the first token, made by the prefill, and the member's first step;
        it counts in the first gap.
        """
        gaps = last - first
        pieces = self._pieces(first + 1, last)
        pieces.append((wait_s + self._pieces(first, first + 1)[0][0], 1))
        pieces.sort(reverse=True)
        want = left = max(math.ceil(gaps * LONGEST_SHARE), 1)
        longest = total = 0.0
        for mean, count in pieces:
            total += mean * count
            if left:
                taken = count if count < left else left
                longest += mean * taken
                left -= taken
        return longest / want, total / gaps

    def _pieces(self, first: int, last: int) -> list[tuple[float, int]]:
        """(mean gap, steps) of the stretches between two steps."""
        if first >= last:
            return []
        ends, means = self._ends, self._means
        i, j = bisect_right(ends, first), bisect_left(ends, last)
        inner = ends[i:j]
        starts, stops = [first, *inner], [*inner, last]
        return list(zip(means[i : j + 1], map(sub, stops, starts), strict=True))

    def _length(self, steps: int) -> float:
        return steps * self.step_s + self.d2 * self.size * steps * (steps - 1) / 2

    def _advance(self, now: float) -> None:
        """Run the whole steps that end by `now`, not past the next leave."""
        if not self.size or now <= self.at_s:
            return
        most = max(self.leaves[0][0] - self.step, 0)
        steps = min(self._steps_within(now - self.at_s), most)
        if steps > 0:
            self._run(steps)

    def _steps_within(self, seconds: float) -> int:
        """Largest n with _length(n) <= seconds (with room for rounding)."""
        a = self.d2 * self.size / 2
        b = self.step_s - a
        return int(2 * seconds / (b + math.sqrt(b * b + 4 * a * seconds)) + _ROUNDING_STEPS)

    def _run(self, steps: int) -> None:
        length = self._length(steps)
        self._note(steps, length / steps)
        self.at_s += length
        self.kv_tokens += self.size * steps

    def _note(self, steps: int, mean_s: float) -> None:
        self.step += steps
        self._ends.append(self.step)
        self._means.append(mean_s)

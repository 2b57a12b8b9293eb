"""Which prefixes are asked for, and how often: rates that fade over a minute.

An access is counted at a few depths of the prompt only: where the depth, in blocks, is a power
of two or half-way between two (1, 2, 3, 4, 6, 8, 12, ...), and at the prompt's end. Prompts that
share a prefix share those points, so a common prefix shows up at the deepest point inside it.

A counter is not decayed step by step: accesses weigh exp(now / tau) instead, so an old count
shrinks relative to new ones and a rate is one division. Counters live in two generations; when
the younger is full, the older is dropped, so what was not asked for since two fillings is gone.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

WINDOW_S = 60.0
POINTS_MAX = 32_768
_RESCALE_AFTER = 400.0
"""Windows after which weights are brought down again, well before exp() overflows."""


@dataclass(slots=True)
class Point:
    """Accesses of one prefix. `weight` is relative to the heat's origin in time."""

    above: int
    """Key of the next shallower point of the same chain, 0 at the first."""
    depth_blocks: int
    block_size: int
    weight: float = 0.0
    hits: int = 0
    last_s: float = 0.0


class Heat:
    """Decayed access rates of at most `points_max` prefixes, the recently used ones."""

    def __init__(self, points_max: int = POINTS_MAX) -> None:
        self._half = max(points_max // 2, 1)
        self._young: dict[int, Point] = {}
        self._old: dict[int, Point] = {}
        self._origin_s = 0.0

    def touch(self, keys: Sequence[int], block_size: int, now: float) -> None:
        """Count one access of the prompt whose block keys these are, at `now` seconds."""
        if not keys:
            return
        if now - self._origin_s > _RESCALE_AFTER * WINDOW_S:
            self._rescale(now)
        weight = math.exp((now - self._origin_s) / WINDOW_S)
        above = 0
        for depth in depths_of(len(keys)):
            key = keys[depth - 1]
            point = self._young.get(key) or self._promote(key, above, depth, block_size)
            point.weight += weight
            point.hits += 1
            point.last_s = now
            above = key

    def is_recent(self, key: int) -> bool:
        """Whether accesses of exactly this prefix are being counted."""
        return key in self._young or key in self._old

    def among(self, keys: Iterable[int]) -> set[int]:
        """Those of `keys` whose accesses are being counted."""
        return {key for key in keys if key in self._young or key in self._old}

    def get(self, key: int) -> Point | None:
        """The counter of this prefix, if there is one."""
        return self._young.get(key) or self._old.get(key)

    def rate(self, point: Point, now: float) -> float:
        """Accesses per second, averaged over about the last minute."""
        return point.weight * math.exp((self._origin_s - now) / WINDOW_S) / WINDOW_S

    def hottest(self, limit: int, *, same_share: float) -> list[tuple[int, Point]]:
        """The `limit` hottest prefixes, hottest first.

        A prefix that owes at least `same_share` of its rate to one longer prefix is left out in
        favour of that one.
        """
        # The weight orders like the rate, without an exponential each. More than `limit` are
        # taken, since those that stand for others are told apart only afterwards.
        points = chain(self._old.items(), self._young.items())
        weights = ((point.weight, key) for key, point in points)
        ranked = heapq.nlargest(16 * limit + 64, weights)
        found = {key: self._young.get(key) or self._old[key] for _, key in ranked}
        covered = set()
        for point in found.values():
            above = found.get(point.above)
            if above is not None and point.weight >= same_share * above.weight:
                covered.add(point.above)
        return [(key, found[key]) for _, key in ranked if key not in covered][:limit]

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def _promote(self, key: int, above: int, depth: int, block_size: int) -> Point:
        point = self._old.pop(key, None) or Point(above, depth, block_size)
        if len(self._young) >= self._half:
            self._old = self._young
            self._young = {}
        self._young[key] = point
        return point

    def _rescale(self, now: float) -> None:
        factor = math.exp((self._origin_s - now) / WINDOW_S)
        for point in (*self._young.values(), *self._old.values()):
            point.weight *= factor
        self._origin_s = now


@lru_cache(maxsize=4096)
def depths_of(blocks: int) -> tuple[int, ...]:
    """Where a prompt is counted: 1, 2, 3, 4, 6, 8, 12, 16, ... below `blocks`, and `blocks`."""
    depths = []
    power = 1
    while power < blocks:
        depths.append(power)
        if power > 1 and power + power // 2 < blocks:
            depths.append(power + power // 2)
        power *= 2
    return (*depths, blocks)

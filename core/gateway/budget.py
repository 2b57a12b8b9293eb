"""How many retries the gateway may make. Pure, with `now`.

Retries answer a node's failure by more load on the others; the budget keeps that to a share of
the recent requests. A node that is gone (refused, reset, declared dead) does no work, so moving
its requests adds no load and needs no budget; attempts stay bounded by `Limits.retries_max`.
"""

from __future__ import annotations

WINDOW_S = 10


class RetryBudget:
    """Retries of the last ten seconds against requests of the same time."""

    __slots__ = ("_minimum", "_requests", "_retries", "_share", "_tick", "granted", "refused")

    def __init__(self, *, share: float, minimum: int) -> None:
        self._share = share
        self._minimum = minimum
        self._requests = [0] * WINDOW_S
        self._retries = [0] * WINDOW_S
        self._tick = 0
        self.granted = 0
        self.refused = 0

    def request(self, now: float) -> None:
        """Count a request's first attempt."""
        self._advance(now)
        self._requests[self._tick % WINDOW_S] += 1

    def allow(self, now: float) -> bool:
        """Take one retry out of the budget, if there is one."""
        self._advance(now)
        limit = max(self._minimum, self._share * sum(self._requests))
        if sum(self._retries) + 1 > limit:
            self.refused += 1
            return False
        self._retries[self._tick % WINDOW_S] += 1
        self.granted += 1
        return True

    def _advance(self, now: float) -> None:
        tick = int(now)
        for passed in range(max(self._tick + 1, tick - WINDOW_S + 1), tick + 1):
            self._requests[passed % WINDOW_S] = self._retries[passed % WINDOW_S] = 0
        self._tick = max(self._tick, tick)

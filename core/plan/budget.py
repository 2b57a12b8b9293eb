"""A token bucket: how much may be spent now, refilled at a rate, with a bounded store."""

from __future__ import annotations


class Bucket:
    """Refills at `rate_per_s` up to `burst`; one dear item may overdraw a full bucket.

    An item larger than the burst could otherwise never be paid; the debt then delays the next.
    """

    __slots__ = ("_at_s", "_held", "burst", "rate_per_s")

    def __init__(self, *, rate_per_s: float, burst: float, now: float) -> None:
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._held = burst
        self._at_s = now

    def available(self, now: float) -> float:
        """What is held at `now`; negative while a debt is being paid off."""
        self._held = min(self._held + max(now - self._at_s, 0.0) * self.rate_per_s, self.burst)
        self._at_s = max(self._at_s, now)
        return self._held

    def affords(self, amount: float, now: float) -> bool:
        """Whether `amount` may be spent now."""
        held = self.available(now)
        return held >= min(amount, self.burst) and held > 0.0

    def spend(self, amount: float, now: float) -> bool:
        """Spend it and say True, or leave it and say False."""
        if not self.affords(amount, now):
            return False
        self._held -= amount
        return True

"""Slows guessing down: so many failures in a while, then nothing for a while. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque

from core.errors import Overloaded

KEYS_MAX = 10_000


class Throttle:
    """Counts failures by key over a sliding window, for the newest keys."""

    def __init__(self, *, failures_max: int, window_s: float) -> None:
        self._max, self._window_s = failures_max, window_s
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, key: str, now: float) -> None:
        """Overloaded (429), saying when to come back, after too many failures."""
        times = self._recent(key, now)
        if times is not None and len(times) >= self._max:
            text = "too many failed attempts; try again later"
            raise Overloaded(text, retry_after_s=max(times[0] + self._window_s - now, 1.0))

    def failed(self, key: str, now: float) -> None:
        """Count one failure."""
        times = self._failed.setdefault(key, deque(maxlen=self._max))
        times.append(now)
        self._failed.move_to_end(key)
        while len(self._failed) > KEYS_MAX:
            self._failed.popitem(last=False)

    def forgive(self, key: str) -> None:
        """Forget the failures of a key."""
        self._failed.pop(key, None)

    def _recent(self, key: str, now: float) -> deque[float] | None:
        times = self._failed.get(key)
        while times and times[0] <= now - self._window_s:
            times.popleft()
        return times

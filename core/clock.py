"""Time and randomness as objects: nothing that decides reads a clock or a global generator."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds for durations, aware UTC for stamps."""

    def now(self) -> float:
        """Monotonic seconds."""
        ...

    def wall(self) -> datetime:
        """Aware UTC time."""
        ...


class SystemClock:
    """The process's real clocks."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def wall(self) -> datetime:
        """Aware UTC time."""
        return datetime.now(UTC)


class ManualClock:
    """A clock that moves when told: tests and the simulator."""

    def __init__(self, start_s: float = 0.0, wall_s: float = 1_700_000_000.0) -> None:
        self._now = start_s
        self._wall0 = wall_s - start_s

    def now(self) -> float:
        """Monotonic seconds."""
        return self._now

    def wall(self) -> datetime:
        """Aware UTC time, advancing with the monotonic one."""
        return datetime.fromtimestamp(self._wall0 + self._now, UTC)

    def advance(self, seconds: float) -> None:
        """Move forward; time never goes back."""
        if seconds < 0:
            raise ValueError(f"seconds must be >= 0, not {seconds}")
        self._now += seconds

    def set(self, now_s: float) -> None:
        """Jump to a later moment."""
        self.advance(now_s - self._now)


def seeded(seed: int | None) -> random.Random:
    """Generator for ties and ids: seeded where a run must repeat, from the system where not."""
    return random.Random(seed)

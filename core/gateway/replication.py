"""How often the fleet's caches repeat themselves, over a day. Pure, with the time given."""

from __future__ import annotations

from collections import deque
from datetime import datetime

from core import wire
from core.index.types import IndexStats

STEP_S = 30.0
POINTS_MAX = 2_880
"""A day."""


class ReplicationHistory:
    """A bounded row of samples of the index."""

    def __init__(self) -> None:
        self._points: deque[wire.ReplicationPoint] = deque(maxlen=POINTS_MAX)
        self._due_s = 0.0

    def due(self, now: float) -> bool:
        """Whether a step has passed since the last sample; says so once."""
        if now < self._due_s:
            return False
        self._due_s = now + STEP_S
        return True

    def sample(self, stats: IndexStats, at: datetime) -> None:
        """Note one moment."""
        self._points.append(
            wire.ReplicationPoint(
                at=at,
                blocks=stats.entries,
                copies=sum(stats.blocks.values()),
                evicted=stats.evicted,
            )
        )

    def points(self, points_max: int) -> list[wire.ReplicationPoint]:
        """Oldest first; evenly thinned to about `points_max`, the newest one always there."""
        every = -(-len(self._points) // points_max) if self._points else 1
        return list(self._points)[::-1][::every][::-1]

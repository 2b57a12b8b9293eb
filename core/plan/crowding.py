"""What reserving nodes for one request costs all others: a fluid model of the fleet.

A long prefill takes its node out of the flow. That is free while the other nodes can carry the
traffic, and dear when they cannot, the more so the more nodes leave at once; this is why large
groups look good for the one request and are bad for the fleet. With k nodes, r node-seconds of
work arriving each second and B of them waiting, while m nodes are reserved

    dB/dt = r - (k - m), B >= 0

and everybody who arrives waits B / k longer: arrivals * integral(B) / k request-seconds in all,
until the backlog has drained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Span = tuple[float, float]
"""From when to when a node is reserved, seconds from now."""
BUSY_MAX = 0.97
"""An overloaded fleet never drains; beyond this utilisation all plans are compared as at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What arrives at the nodes a plan may use. All zero: nothing is known, nobody is delayed."""

    arrivals_per_s: float = 0.0
    mean_prefill_s: float = 0.0

    @property
    def busy_nodes(self) -> float:
        """r: node-seconds of work that arrive each second."""
        return self.arrivals_per_s * self.mean_prefill_s


class ArrivalRate:
    """Exponentially decaying count of arrivals over a window, as a rate."""

    __slots__ = ("_at_s", "_count", "_since_s", "_window_s")

    def __init__(self, window_s: float = 60.0) -> None:
        self._window_s = window_s
        self._count = 0.0
        self._at_s: float | None = None
        self._since_s = 0.0

    def add(self, now: float) -> None:
        """One request arrived."""
        if self._at_s is None:
            self._at_s = self._since_s = now
        self._count = self._count * math.exp((self._at_s - now) / self._window_s) + 1.0
        self._at_s = now

    def per_s(self, now: float) -> float:
        """Arrivals a second; before a window has passed, over the time there is (at least 1 s)."""
        if self._at_s is None:
            return 0.0
        count = self._count * math.exp((self._at_s - now) / self._window_s)
        seen_s = max(now - self._since_s, 1.0)
        return count / (self._window_s * -math.expm1(-seen_s / self._window_s))


def others_delay_s(
    spans: Sequence[Span], *, nodes: int, backlog_s: float, traffic: Traffic
) -> float:
    """Request-seconds that all others wait, from now until the backlog has drained.

    spans: when each reserved node is reserved; backlog_s: node-seconds of work waiting now.
    The backlog that is there anyway is included, so only differences mean something.
    """
    arriving = min(traffic.busy_nodes, BUSY_MAX * nodes)
    times = sorted({0.0, *(max(t, 0.0) for span in spans for t in span)})
    area, backlog = 0.0, backlog_s
    for begin, end in pairwise(times):
        reserved = sum(1 for a, b in spans if a <= begin and b >= end)
        more, backlog = _segment(backlog, arriving - (nodes - reserved), end - begin)
        area += more
    area += backlog * backlog / (2.0 * max(nodes - arriving, 1e-9))
    return traffic.arrivals_per_s / nodes * area


def _segment(backlog: float, slope: float, seconds: float) -> tuple[float, float]:
    """(integral, backlog at the end) of a backlog that changes by `slope` a second, >= 0."""
    after = backlog + slope * seconds
    if after >= 0:
        return seconds * (backlog + after) / 2.0, after
    return backlog * backlog / (-2.0 * slope), 0.0

"""The one event value that breakers, trust and the hotspot detector give to the audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from core.domain import NodeId

Evidence = Mapping[str, float | int | str | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionEvent:
    """A state machine changed state, or was kept from it; stored as it is.

    `now_s` is the monotonic time at which it happened, which may be a little before the call
    that returned it: a timer that ran out between two calls is reported by the later one.
    """

    now_s: float
    machine: str
    """Which machine: node_breaker, panic, trust, hotspot, global_breaker."""
    node: NodeId | None = None
    """None for machines of the whole fleet or of a prefix group."""
    before: str
    after: str
    cause: str
    """Machine-readable: consecutive_failures, error_rate, manual_trip, timer, ..."""
    reason: str = ""
    """The operator's words, for manual transitions."""
    actor: str = ""
    """Who did it; empty for automatic transitions."""
    until_s: float | None = None
    """Monotonic time at which the new state ends by itself; None when it does not."""
    data: Evidence = field(default_factory=dict)
    """Evidence: the counts and shares that caused it."""

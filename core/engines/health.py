"""Life of one node as its probes see it. Pure: results in, health out.

Theory of operation. A single failed probe makes a node suspect, which keeps it eligible; a
streak of `down_after` makes it dead. A refused connection is no mere failure: nobody listens on
the port, so the process and its cache are gone and the node is dead at once. A dead node needs
`up_after` good probes in a row. A node that never answered stays unknown however long it takes
to start, so that its first life is not counted as a recovery.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from core.domain import Health


class Probe(enum.StrEnum):
    """What one probe found."""

    GOOD = "good"
    BAD = "bad"
    """No answer in time, a reset, or a status that says not ready."""
    CUT = "cut"
    """The connection was made and then broken without an answer, as a dying process does it;
    counts as BAD, but it is worth asking again at once."""
    GONE = "gone"
    """The connection was refused: no process listens there."""


class Sign(enum.Enum):
    """Columns of the transition table: a probe's result and how long its streak is."""

    GOOD = 0
    RISEN = 1
    """Good, and the streak has reached `up_after`."""
    BAD = 2
    FALLEN = 3
    """Bad, and the streak has reached `down_after`."""
    GONE = 4


_U, _H, _S, _D = Health.UNKNOWN, Health.HEALTHY, Health.SUSPECT, Health.DEAD
# fmt: off
TABLE: dict[Health, tuple[Health, ...]] = {
    # before good  risen bad   fallen gone
    _U:     (_H,   _H,   _U,   _U,    _U),
    _H:     (_H,   _H,   _S,   _D,    _D),
    _S:     (_H,   _H,   _S,   _D,    _D),
    _D:     (_D,   _H,   _D,   _D,    _D),
}
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRules:
    """Probe timing and thresholds (defaults as HAProxy's, jitter ours)."""

    interval_s: float = 2.0
    timeout_s: float = 1.5
    down_after: int = 3
    up_after: int = 2
    jitter: float = 0.2
    """Share by which each interval is stretched or shortened at random."""

    def __post_init__(self) -> None:
        for name in ("interval_s", "timeout_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be > 0, not {getattr(self, name)}")
        for name in ("down_after", "up_after"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, not {getattr(self, name)}")
        if not 0 <= self.jitter < 1:
            raise ValueError(f"jitter must be in [0, 1), not {self.jitter}")


class HealthTracker:
    """Streaks and state of one node."""

    def __init__(self, rules: HealthRules) -> None:
        self.rules = rules
        self.health = Health.UNKNOWN
        self.streak = 0
        """Positive: good probes in a row; negative: bad ones."""

    def observe(self, probe: Probe) -> Health:
        """Take one result; returns the health it leads to."""
        good = probe is Probe.GOOD
        self.streak = max(self.streak, 0) + 1 if good else min(self.streak, 0) - 1
        self.health = TABLE[self.health][self._sign(probe).value]
        return self.health

    def would_rise(self) -> bool:
        """Whether one more good probe makes the node eligible that is not so now."""
        if self.health is Health.UNKNOWN:
            return True
        return self.health is Health.DEAD and max(self.streak, 0) + 1 >= self.rules.up_after

    def _sign(self, probe: Probe) -> Sign:
        if probe is Probe.GONE:
            return Sign.GONE
        if probe is Probe.GOOD:
            return Sign.RISEN if self.streak >= self.rules.up_after else Sign.GOOD
        return Sign.FALLEN if -self.streak >= self.rules.down_after else Sign.BAD

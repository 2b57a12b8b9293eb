"""The breaker as a bare state machine: table, timer, backoff, and the error-rate window.

`TABLE` is the whole machine and both kinds of breaker (a node's and the global one) run on it:

- closed: traffic flows.
- open: shut automatically until a timer; each opening doubles the time up to a cap, and each
  `open_s` spent closed takes one doubling back (as Envoy's ejection multiplier decays).
- half_open: the timer ran out; trials decide.
- tripped: shut by an operator, with a reason and perhaps an expiry. Automatic signals never
  shorten it; at the expiry trials decide.
- held: kept closed by an operator whatever the statistics say, until the expiry.

Signals are computed before the look-up: `limit` is a failure that reaches a threshold, `enough`
the success that ends half_open, `timer` the end of the state's own time.
"""

from __future__ import annotations

import enum
import math
from collections import deque


class State(enum.StrEnum):
    """State of one breaker; see the module's list."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    TRIPPED = "tripped"
    HELD = "held"


class Signal(enum.Enum):
    """Columns of the transition table."""

    SUCCESS = 0
    ENOUGH = 1
    FAILURE = 2
    LIMIT = 3
    TIMER = 4
    TRIP = 5
    RESET = 6
    HOLD = 7


_C, _O, _H, _T, _K = State.CLOSED, State.OPEN, State.HALF_OPEN, State.TRIPPED, State.HELD
# fmt: off
TABLE: dict[State, tuple[State, ...]] = {
    # before    success enough failure limit timer trip reset hold
    _C:         (_C,    _C,    _C,     _O,   _C,   _T,  _C,   _K),
    _O:         (_O,    _O,    _O,     _O,   _H,   _T,  _C,   _K),
    _H:         (_H,    _C,    _O,     _O,   _H,   _T,  _C,   _K),
    _T:         (_T,    _T,    _T,     _T,   _H,   _T,  _C,   _K),
    _K:         (_K,    _K,    _K,     _K,   _C,   _T,  _C,   _K),
}
# fmt: on
EJECTED = frozenset({State.OPEN, State.HALF_OPEN})
"""Shut automatically: open, or open to trials only."""
MANUAL = frozenset({Signal.TRIP, Signal.RESET, Signal.HOLD})
"""Signals that only an operator sends."""
BUCKETS = 10
"""Resolution of the error-rate window."""
_HAIR = 1.0 - 1e-12


def following(state: State, signal: Signal) -> State:
    """The state after `signal` in `state`."""
    return TABLE[state][signal.value]


def backoff_s(streak: int, *, open_s: float, open_max_s: float) -> float:
    """Open time of the streak-th opening in a row (1 = the first): doubling with a cap."""
    return float(min(open_s * 2.0 ** min(streak - 1, 60), max(open_max_s, open_s)))


class Switch:
    """One breaker's state, timer and backoff; it knows nothing about what it protects."""

    __slots__ = ("actor", "reason", "since_s", "state", "streak", "until_s")

    def __init__(self, now: float) -> None:
        self.state = State.CLOSED
        self.since_s = now
        self.until_s: float | None = None
        self.streak = 0
        self.reason = ""
        self.actor = ""

    def due(self, now: float) -> bool:
        """Whether the state's timer has run out."""
        return self.until_s is not None and now >= self.until_s

    def apply(
        self,
        signal: Signal,
        now: float,
        *,
        open_s: float,
        open_max_s: float,
        until_s: float | None = None,
        reason: str = "",
        actor: str = "",
    ) -> State:
        """Move by the table and return the state before; `until_s` is for trip and hold."""
        before, after = self.state, following(self.state, signal)
        if after is before and signal not in MANUAL:
            return before
        if signal not in (Signal.TRIP, Signal.HOLD):
            until_s = None
        if after is State.OPEN:
            forgiven = int((now - self.since_s) / open_s) if before is State.CLOSED else 0
            self.streak = max(self.streak - forgiven, 0) + 1
            until_s = now + backoff_s(self.streak, open_s=open_s, open_max_s=open_max_s)
        if signal is Signal.RESET:
            self.streak = 0
        self.state, self.since_s, self.until_s = after, now, until_s
        self.reason, self.actor = (reason, actor) if signal in MANUAL else ("", "")
        return before


class RateWindow:
    """Successes and failures of the last `window_s`, in at most `BUCKETS` buckets.

    A change of the window's length empties it.
    """

    __slots__ = ("_buckets", "_until_s", "_window_s")

    def __init__(self) -> None:
        self._window_s = 0.0
        self.clear()

    def add(self, failed: bool, now: float, window_s: float) -> None:
        """Count one outcome at `now`."""
        if now >= self._until_s or window_s != self._window_s:
            self._begin(now, window_s)
        self._buckets[-1][2 if failed else 1] += 1

    def totals(self, now: float, window_s: float) -> tuple[int, int]:
        """(requests, failures) in the window that ends at `now`."""
        self._begin(now, window_s)
        oldest = self._buckets[-1][0] - BUCKETS
        held = [bucket for bucket in self._buckets if bucket[0] > oldest]
        bad = sum(bucket[2] for bucket in held)
        return bad + sum(bucket[1] for bucket in held), bad

    def clear(self) -> None:
        """Forget everything."""
        self._buckets: deque[list[int]] = deque(maxlen=BUCKETS)
        """[tick, successes, failures] of the ticks that had any, oldest first."""
        self._until_s = -math.inf
        """Before this the last bucket is the one to count in."""

    def _begin(self, now: float, window_s: float) -> None:
        """Make the last bucket that of `now`, or of the latest time before if that was later."""
        if window_s != self._window_s:
            self.clear()
            self._window_s = window_s
        tick = int(now / window_s * BUCKETS)
        if not self._buckets or tick > self._buckets[-1][0]:
            self._buckets.append([tick, 0, 0])
            # A hair early: the division above has the last word on where a tick ends.
            self._until_s = (tick + 1) * window_s / BUCKETS * _HAIR

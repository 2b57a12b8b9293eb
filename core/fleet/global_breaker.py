"""The global breaker: one machine that hands scheduling to round robin and back (spec 9).

Theory of operation. It runs on the table of `core.fleet.switch`. Repeated stage-2 firings of the
hotspot detector open it. After `open_s` the policy is tried again for as long: a firing in that
trial opens it for twice the time (capped at `BACKOFF_MAX` times `open_s`), a quiet trial closes
it. An operator can trip it (round robin, whatever happens) and reset or hold it (the policy).
"""

from __future__ import annotations

from core.fleet.breaker import check_manual
from core.fleet.switch import Signal, State, Switch
from core.fleet.transition import TransitionEvent
from core.tunables import Hotspot

_TRIPPED = State.TRIPPED
BACKOFF_MAX = 10.0
"""Longest open time as a multiple of the first."""


class GlobalBreaker:
    """Says whether to fall back to round robin. Methods return the transitions they caused,
    those of timers that ran out inside `fallback` included.
    """

    def __init__(self, rules: Hotspot, now: float) -> None:
        self._rules = rules
        self._switch = Switch(now)
        self._pending: list[TransitionEvent] = []

    @property
    def switch(self) -> Switch:
        """State, timer, reason and actor, to read."""
        return self._switch

    @property
    def tripped(self) -> bool:
        """Whether an operator forces round robin, which holds with the detector off too."""
        return self._switch.state is _TRIPPED

    def configure(self, rules: Hotspot) -> None:
        """New rules from now on; a running timer keeps its end."""
        self._rules = rules

    def fallback(self, now: float) -> bool:
        """Whether scheduling is to use round robin instead of the policy."""
        if self._switch.state is State.CLOSED:
            return False
        self._run_timers(now)
        return self._switch.state in (State.OPEN, State.TRIPPED)

    def fired(self, now: float, *, in_a_row: int) -> None:
        """The detector's stage 2 fired, for the in_a_row-th time in a row for one group."""
        if self._switch.state is State.HALF_OPEN:
            self._move(Signal.FAILURE, "trial_failed", now)
        elif in_a_row >= self._rules.trips_to_open:
            self._move(Signal.LIMIT, "repeated_firings", now)

    def tick(self, now: float) -> tuple[TransitionEvent, ...]:
        """Let timers run out."""
        self._run_timers(now)
        taken, self._pending = tuple(self._pending), []
        return taken

    def trip(
        self, now: float, *, reason: str, actor: str, for_s: float | None = None
    ) -> tuple[TransitionEvent, ...]:
        """An operator forces round robin, for `for_s` seconds or until a reset."""
        return self._manual(Signal.TRIP, "manual_trip", now, reason, actor, for_s)

    def reset(
        self, now: float, *, reason: str, actor: str, hold_s: float | None = None
    ) -> tuple[TransitionEvent, ...]:
        """An operator gives the policy back; with `hold_s` nothing opens it for that long."""
        signal = Signal.RESET if hold_s is None else Signal.HOLD
        return self._manual(signal, "manual_reset", now, reason, actor, hold_s)

    def _run_timers(self, now: float) -> None:
        switch, trial_s = self._switch, self._rules.open_s
        if switch.until_s is not None and now >= switch.until_s:
            self._move(Signal.TIMER, "timer", switch.until_s)
        if switch.state is State.HALF_OPEN and now >= switch.since_s + trial_s:
            self._move(Signal.ENOUGH, "trial_passed", switch.since_s + trial_s)

    def _manual(
        self, signal: Signal, cause: str, now: float, reason: str, actor: str, for_s: float | None
    ) -> tuple[TransitionEvent, ...]:
        check_manual(reason, for_s)
        self._run_timers(now)
        until = None if for_s is None else now + for_s
        self._move(signal, cause, now, reason=reason, actor=actor, until_s=until)
        return self.tick(now)

    def _move(
        self,
        signal: Signal,
        cause: str,
        now: float,
        *,
        reason: str = "",
        actor: str = "",
        until_s: float | None = None,
    ) -> None:
        switch, open_s = self._switch, self._rules.open_s
        before = switch.apply(
            signal,
            now,
            open_s=open_s,
            open_max_s=BACKOFF_MAX * open_s,
            until_s=until_s,
            reason=reason,
            actor=actor,
        )
        if switch.state is before and not reason:
            return
        self._pending.append(
            TransitionEvent(
                now_s=now,
                machine="global_breaker",
                before=before.value,
                after=switch.state.value,
                cause=cause,
                reason=switch.reason,
                actor=switch.actor,
                until_s=switch.until_s,
            )
        )

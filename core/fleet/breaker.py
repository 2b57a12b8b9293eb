"""Node breakers: when a node is left alone, tried again, and taken back (spec 9).

Theory of operation. Every node has one breaker, a machine of `core.fleet.switch`. Consecutive
failures or the error rate of a window open it; after a backoff it admits a few trials at a
time, and only those trials' own outcomes speak: answers to requests begun before the present
state are stale. A 4xx answer, a client's abort or a lost owner is never the node's fault and
never a signal (a flood of bad requests must not take healthy nodes away).

The board adds what concerns the fleet. Automatic ejections stop at a share of the nodes and
never take the last one. When too few nodes remain available the board panics: suspicion is
ignored, an operator's trip is not (nor is death, which is filtered elsewhere), so that a
failure does not cascade over the survivors.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from core.domain import NodeId, OutcomeKind, Slot
from core.errors import Invalid
from core.fleet.switch import EJECTED, RateWindow, Signal, State, Switch
from core.fleet.transition import Evidence, TransitionEvent
from core.tunables import Breaker

Bools = npt.NDArray[np.bool_]
_FAILURES = frozenset({OutcomeKind.ENGINE_ERROR, OutcomeKind.TIMEOUT})
# An attribute of an enumeration costs more than the rest of a line in which it stands.
_OK, _HALF_OPEN = OutcomeKind.OK, State.HALF_OPEN
_FLOWING = frozenset({State.CLOSED, State.HELD})


class NodeBreaker:
    """One node's switch with its statistics and half-open trials.

    `epoch` numbers the present state: a request begun in it carries that number as its ticket.
    `trials` maps a trial's ticket to whether its success has been counted already.
    """

    __slots__ = (
        "consecutive",
        "epoch",
        "node",
        "rate",
        "successes",
        "switch",
        "trials",
        "withheld",
    )

    def __init__(self, node: NodeId, epoch: int, now: float) -> None:
        self.node = node
        self.switch = Switch(now)
        self.rate = RateWindow()
        self.consecutive = 0
        self.successes = 0
        self.trials: dict[int, bool] = {}
        self.epoch = epoch
        self.withheld = False

    @property
    def state(self) -> State:
        """Where the machine stands."""
        return self.switch.state

    def admits(self, rules: Breaker) -> bool:
        """Whether traffic may flow, panic apart."""
        if self.state is State.HALF_OPEN:
            return sum(not counted for counted in self.trials.values()) < rules.half_open_trials
        return self.state in _FLOWING

    def count_failure(self, now: float, rules: Breaker) -> str:
        """Take a failure into the statistics; which threshold it reaches, empty for none."""
        self.rate.add(True, now, rules.window_s)
        self.consecutive += 1
        if self.consecutive >= rules.consecutive_failures:
            return "consecutive_failures"
        total, bad = self.rate.totals(now, rules.window_s)
        if total >= rules.error_rate_requests_min and bad >= rules.error_rate * total:
            return "error_rate"
        return ""

    def entered(self, epoch: int) -> None:
        """Start a state afresh: no old statistics, trials or tickets carry over."""
        self.consecutive = self.successes = 0
        self.trials.clear()
        self.rate.clear()
        self.epoch = epoch
        self.withheld = False


class BreakerBoard:
    """The breakers of a fleet, by slot.

    `allowed` is a cached array: reading it costs nothing until a state changes or a timer runs
    out. Every method that can move a machine returns the transitions since the last such call
    (those of timers that ran out inside `allowed` included), for the audit.
    """

    def __init__(self, rules: Breaker, *, slots: int = 8) -> None:
        self._rules = rules
        self._nodes: dict[int, NodeBreaker] = {}
        self._dead: set[int] = set()
        self._allowed: Bools = np.zeros(slots, dtype=np.bool_)
        self._stale = True
        self._panic = False
        self._serial = 0
        self._next_timer_s = math.inf
        self._pending: list[TransitionEvent] = []

    @property
    def rules(self) -> Breaker:
        """The live thresholds."""
        return self._rules

    @property
    def panic(self) -> bool:
        """Whether ejections are being ignored (as of the last `allowed`)."""
        return self._panic

    @property
    def ejected(self) -> int:
        """How many nodes are ejected automatically."""
        return sum(b.state in EJECTED for b in self._nodes.values())

    @property
    def ejected_cap(self) -> int:
        """How many nodes may be ejected automatically: at least one, never the last one."""
        n = len(self._nodes)
        return min(max(1, int(self._rules.ejected_share_max * n)), max(n - 1, 0))

    def configure(self, rules: Breaker) -> None:
        """New thresholds from now on; running timers keep their end."""
        self._rules = rules
        self._stale = True

    def grow(self, slots: int) -> None:
        """Widen the array to `slots` rows where it is shorter (follows the fleet's arrays)."""
        if slots > len(self._allowed):
            self._allowed = np.zeros(slots, dtype=np.bool_)
            self._stale = True

    def add(self, slot: Slot, node: NodeId, now: float) -> None:
        """A node joins, closed; a slot used before starts afresh."""
        self.grow(slot + 1)
        self._nodes[slot] = NodeBreaker(node, self._next(), now)
        self._dead.discard(slot)
        self._stale = True

    def remove(self, slot: Slot) -> None:
        """A node leaves with everything known about it."""
        self._nodes.pop(slot, None)
        self._dead.discard(slot)
        self._stale = True

    def set_dead(self, slot: Slot, dead: bool) -> None:
        """What probes found; only the panic threshold uses it."""
        (self._dead.add if dead else self._dead.discard)(slot)
        self._stale = True

    def restarted(self, slot: Slot, now: float) -> tuple[TransitionEvent, ...]:
        """A new process serves at the node: what its predecessor did is not held against it.

        What an operator set stays. The backoff stays too, so that a node that crashes again and
        again is left alone for longer each time it fails.
        """
        self.allowed(now)
        breaker = self._nodes.get(slot)
        if breaker is not None and breaker.state in EJECTED:
            streak = breaker.switch.streak
            self._move(breaker, Signal.RESET, now, "engine_restarted")
            breaker.switch.streak = streak
        elif breaker is not None and breaker.state is State.CLOSED:
            breaker.entered(self._next())
        return self.tick(now)

    def switch(self, slot: Slot) -> Switch:
        """State, timer, reason and actor of a slot, to read; KeyError where no node stands."""
        return self._nodes[slot].switch

    def allowed(self, now: float) -> Bools:
        """By slot: whether the breakers let a new request through.

        Read only, and never written again: another array stands for another answer.
        """
        if now >= self._next_timer_s:
            self._run_timers(now)
        if self._stale:
            self._refresh(now)
        return self._allowed

    def tick(self, now: float) -> tuple[TransitionEvent, ...]:
        """Let timers run out; call it periodically so that the audit does not wait for traffic."""
        self.allowed(now)
        if not self._pending:
            return ()
        taken, self._pending = tuple(self._pending), []
        return taken

    def begin(self, slot: Slot) -> int:
        """A request goes to the slot: its ticket, to hand back to `first_byte` and `record`.

        In half_open this takes a trial, while one is free (a panic may send more).
        """
        breaker = self._nodes.get(slot)
        if breaker is None:
            return 0
        if breaker.switch.state is not _HALF_OPEN or not breaker.admits(self._rules):
            return breaker.epoch
        ticket = self._next()
        breaker.trials[ticket] = False
        self._stale = True
        return ticket

    def first_byte(self, slot: Slot, now: float, *, ticket: int) -> tuple[TransitionEvent, ...]:
        """A request's first token arrived: a trial need not wait for the end of its stream."""
        breaker = self._nodes.get(slot)
        if breaker is not None and breaker.trials.get(ticket) is False:
            breaker.trials[ticket] = True
            self._passed(breaker, now)
        return self.tick(now)

    def record(
        self, slot: int, kind: OutcomeKind, now: float, *, ticket: int
    ) -> tuple[TransitionEvent, ...]:
        """A request that `begin` announced has ended, once.

        Outcomes for a node that left, or from before its present state, are dropped.
        """
        if self._stale or now >= self._next_timer_s:
            self.allowed(now)
        breaker = self._nodes.get(slot)
        if breaker is not None and ticket == breaker.epoch:
            if kind is _OK and breaker.switch.state is not _HALF_OPEN:
                breaker.consecutive = 0
                breaker.rate.add(False, now, self._rules.window_s)
            else:
                self._failed(breaker, kind, now)
        elif breaker is not None and ticket in breaker.trials:
            self._trial_ended(breaker, kind, now, ticket)
        return self.tick(now) if self._stale or self._pending else ()

    def trip(
        self, slot: Slot, now: float, *, reason: str, actor: str, for_s: float | None = None
    ) -> tuple[TransitionEvent, ...]:
        """An operator takes the node out, for `for_s` seconds or until a reset."""
        return self._manual(slot, Signal.TRIP, now, reason, actor, for_s)

    def reset(
        self, slot: Slot, now: float, *, reason: str, actor: str, hold_s: float | None = None
    ) -> tuple[TransitionEvent, ...]:
        """An operator closes the breaker; with `hold_s` no statistics open it for that long."""
        signal = Signal.RESET if hold_s is None else Signal.HOLD
        return self._manual(slot, signal, now, reason, actor, hold_s)

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    def _failed(self, breaker: NodeBreaker, kind: OutcomeKind, now: float) -> None:
        if kind not in _FAILURES or breaker.switch.state is _HALF_OPEN:
            return
        cause = breaker.count_failure(now, self._rules)
        if not cause or breaker.state is not State.CLOSED:
            return
        out = sum(b.state not in _FLOWING for b in self._nodes.values())
        if out < self.ejected_cap:
            self._move(breaker, Signal.LIMIT, now, cause)
        elif not breaker.withheld:
            breaker.withheld = True
            evidence: Evidence = {"withheld": cause, "out": out, "cap": self.ejected_cap}
            self._note(breaker, now, breaker.state, "max_ejected_share", evidence)

    def _trial_ended(
        self, breaker: NodeBreaker, kind: OutcomeKind, now: float, ticket: int
    ) -> None:
        counted = breaker.trials.pop(ticket)
        self._stale = True
        if kind in _FAILURES:
            self._move(breaker, Signal.FAILURE, now, "trial_failed")
        elif kind is OutcomeKind.OK and not counted:
            self._passed(breaker, now)

    def _passed(self, breaker: NodeBreaker, now: float) -> None:
        breaker.successes += 1
        self._stale = True
        if breaker.successes >= self._rules.half_open_successes:
            self._move(breaker, Signal.ENOUGH, now, "trials_passed")

    def _manual(
        self, slot: Slot, signal: Signal, now: float, reason: str, actor: str, for_s: float | None
    ) -> tuple[TransitionEvent, ...]:
        check_manual(reason, for_s)
        self.allowed(now)
        until = None if for_s is None else now + for_s
        cause = "manual_trip" if signal is Signal.TRIP else "manual_reset"
        self._move(self._nodes[slot], signal, now, cause, reason, actor, until)
        return self.tick(now)

    def _move(
        self,
        breaker: NodeBreaker,
        signal: Signal,
        now: float,
        cause: str,
        reason: str = "",
        actor: str = "",
        until_s: float | None = None,
    ) -> None:
        rules = self._rules
        total, bad = breaker.rate.totals(now, rules.window_s)
        evidence = {"consecutive": breaker.consecutive, "requests": total, "failures": bad}
        before = breaker.switch.apply(
            signal,
            now,
            open_s=rules.open_s,
            open_max_s=rules.open_max_s,
            until_s=until_s,
            reason=reason,
            actor=actor,
        )
        breaker.entered(self._next())
        self._stale = True
        self._note(breaker, now, before, cause, evidence)

    def _note(
        self,
        breaker: NodeBreaker,
        now: float,
        before: State,
        cause: str,
        data: Evidence,
    ) -> None:
        switch = breaker.switch
        self._pending.append(
            TransitionEvent(
                now_s=now,
                machine="node_breaker",
                node=breaker.node,
                before=before.value,
                after=switch.state.value,
                cause=cause,
                reason=switch.reason,
                actor=switch.actor,
                until_s=switch.until_s,
                data=data,
            )
        )

    def _run_timers(self, now: float) -> None:
        for breaker in self._nodes.values():
            at = breaker.switch.until_s
            if at is not None and now >= at:
                self._move(breaker, Signal.TIMER, at, "timer")
        self._stale = True

    def _refresh(self, now: float) -> None:
        allowed = np.zeros_like(self._allowed)
        self._next_timer_s = math.inf
        available = 0
        for slot, breaker in self._nodes.items():
            allowed[slot] = breaker.admits(self._rules)
            available += slot not in self._dead and breaker.state in _FLOWING
            if breaker.switch.until_s is not None:
                self._next_timer_s = min(self._next_timer_s, breaker.switch.until_s)
        self._set_panic(available < self._rules.panic_share * len(self._nodes), available, now)
        if self._panic:
            for slot, breaker in self._nodes.items():
                allowed[slot] = breaker.state is not State.TRIPPED
        if not np.array_equal(allowed, self._allowed):
            allowed.setflags(write=False)
            self._allowed = allowed
        self._stale = False

    def _set_panic(self, panic: bool, available: int, now: float) -> None:
        if panic == self._panic:
            return
        words = ("calm", "panic")
        self._panic = panic
        self._pending.append(
            TransitionEvent(
                now_s=now,
                machine="panic",
                before=words[not panic],
                after=words[panic],
                cause="available_share",
                data={"available": available, "nodes": len(self._nodes)},
            )
        )


def check_manual(reason: str, for_s: float | None) -> None:
    """Invalid where a manual trip or reset brings no reason or an expiry that is no time."""
    if not reason.strip():
        raise Invalid("reason: a manual trip or reset needs one", field="reason")
    if for_s is not None and not 0 < for_s < math.inf:
        raise Invalid(f"expiry: {for_s} s is not a positive time", field="expiry")

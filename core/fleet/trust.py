"""How far each node's cache signal can be believed, measured and not assumed.

Theory of operation. A node's credit comes from its event stream or, without one, from the
scheduler's own routing history. Two things end it: a stream that reports lost events which no
replay repaired (`lost`), and predictions that the engine does not confirm (`phantom`): over the
last `window` comparable requests more than `phantom_share` of the credited tokens were not
reused. A phantom verdict costs a cool-down that doubles with each relapse; afterwards the node
starts with an empty window and whatever its (emptied) index has learnt again. Windows without a
verdict take the doubling back one by one.

Standings, and the `Trust` each one shows to policies and operators:

- live: stream complete (exact).
- gap: events lost, awaiting repair (degraded).
- cooling: phantoms on a complete stream (degraded).
- gap_cooling: both (degraded).
- history: no stream, routing history stands in (approximate).
- history_cooling: phantoms in the history, as when the engine evicts sooner (off).
- off: no signal configured (off).

Entering a standing of `FORGET` means that the node's index entries are not to be believed:
whoever owns the index drops them.
"""

from __future__ import annotations

import enum
import math
from collections import deque

import numpy as np
import numpy.typing as npt

from core.domain import NodeId, Slot, Trust
from core.fleet.transition import Evidence, TransitionEvent
from core.tunables import TrustRules

Bools = npt.NDArray[np.bool_]


class Standing(enum.StrEnum):
    """State of one node's signal; see the module's list."""

    LIVE = "live"
    GAP = "gap"
    COOLING = "cooling"
    GAP_COOLING = "gap_cooling"
    HISTORY = "history"
    HISTORY_COOLING = "history_cooling"
    OFF = "off"


class Signal(enum.Enum):
    """Columns of the transition table."""

    COMPLETE = 0
    """The stream is attached and complete, or a replay has repaired it."""
    LOST = 1
    """Events are missing for good until a repair; also a stream that went silent or away."""
    PHANTOM = 2
    """The window shows too much credit that the engine did not confirm."""
    COOLED = 3
    """The cool-down is over."""
    DETACHED = 4
    """The node has no stream; the routing history stands in."""
    DISABLED = 5
    """No cache signal is wanted for the node."""


_L, _G, _C, _GC = Standing.LIVE, Standing.GAP, Standing.COOLING, Standing.GAP_COOLING
_H, _HC, _O = Standing.HISTORY, Standing.HISTORY_COOLING, Standing.OFF
# fmt: off
TABLE: dict[Standing, tuple[Standing, ...]] = {
    # before  complete lost  phantom cooled detached disabled
    _L:      (_L,      _G,   _C,     _L,    _H,      _O),
    _G:      (_L,      _G,   _G,     _G,    _H,      _O),
    _C:      (_C,      _GC,  _C,     _L,    _H,      _O),
    _GC:     (_C,      _GC,  _GC,    _G,    _H,      _O),
    _H:      (_L,      _H,   _HC,    _H,    _H,      _O),
    _HC:     (_L,      _HC,  _HC,    _H,    _HC,     _O),
    _O:      (_L,      _O,   _O,     _O,    _H,      _O),
}
# fmt: on
SHOWN: dict[Standing, Trust] = {
    _L: Trust.EXACT,
    _G: Trust.DEGRADED,
    _C: Trust.DEGRADED,
    _GC: Trust.DEGRADED,
    _H: Trust.APPROXIMATE,
    _HC: Trust.OFF,
    _O: Trust.OFF,
}
_TRUSTED = (Trust.EXACT, Trust.APPROXIMATE)
COOLING = frozenset({_C, _GC, _HC})
"""Standings with a cool-down running."""
FORGET = frozenset({_G, _C, _GC, _HC, _O})
"""Standings whose entry voids the node's index entries."""


class NodeTrust:
    """One node's standing and the comparable requests it is judged by."""

    __slots__ = (
        "credited",
        "missed",
        "node",
        "phantom",
        "relapses",
        "samples",
        "since_s",
        "standing",
        "trust",
        "until_s",
    )

    def __init__(self, node: NodeId, standing: Standing, now: float) -> None:
        self.node = node
        self.enter(standing, now)
        self.until_s: float | None = None
        self.relapses = 0
        self.samples: deque[tuple[int, int, int]] = deque()
        """(credited, phantom, missed) tokens of the last comparable requests."""
        self.credited = self.phantom = self.missed = 0

    def enter(self, standing: Standing, now: float) -> None:
        """Stand there from now on; `trust` is what policies and operators see of it."""
        self.standing, self.since_s = standing, now
        self.trust = SHOWN[standing]

    @property
    def phantom_share(self) -> float:
        """Credited tokens that the engine did not confirm, as a share; 0 without credit."""
        return self.phantom / self.credited if self.credited else 0.0

    @property
    def missed_share(self) -> float:
        """Tokens that the engine reused beyond the prediction, against the credited ones."""
        return self.missed / self.credited if self.credited else 0.0

    def add(self, credited: int, phantom: int, missed: int, window: int) -> None:
        """Take one comparable request into the window."""
        self.samples.append((credited, phantom, missed))
        self.credited += credited
        self.phantom += phantom
        self.missed += missed
        while len(self.samples) > window:
            old = self.samples.popleft()
            self.credited -= old[0]
            self.phantom -= old[1]
            self.missed -= old[2]

    def clear(self) -> None:
        """Empty the window."""
        self.samples.clear()
        self.credited = self.phantom = self.missed = 0


class TrustBoard:
    """The trust of a fleet, by slot. Methods return the transitions they caused."""

    def __init__(self, rules: TrustRules, *, slots: int = 8) -> None:
        self._rules = rules
        self._nodes: dict[int, NodeTrust] = {}
        self._credited: Bools = np.zeros(slots, dtype=np.bool_)
        self._next_timer_s = math.inf
        self.doubted = False
        """Whether any row earns no credit; False lets readers skip the array."""

    def configure(self, rules: TrustRules) -> None:
        """New rules from now on; running cool-downs keep their end."""
        self._rules = rules

    def grow(self, slots: int) -> None:
        """Widen the array to `slots` rows where it is shorter (follows the fleet's arrays)."""
        if slots > len(self._credited):
            missing = np.zeros(slots - len(self._credited), dtype=np.bool_)
            self._credited = np.concatenate([self._credited, missing])

    def add(self, slot: Slot, node: NodeId, now: float, *, signal: Trust = Trust.OFF) -> None:
        """A node joins: EXACT (complete stream), DEGRADED (stream not yet complete),
        APPROXIMATE (no stream) or OFF.
        """
        start = {Trust.EXACT: _L, Trust.DEGRADED: _G, Trust.APPROXIMATE: _H, Trust.OFF: _O}
        self.grow(slot + 1)
        self._nodes[slot] = NodeTrust(node, start[signal], now)
        self._credited[slot] = signal in _TRUSTED
        self._note_doubt()

    def remove(self, slot: Slot) -> None:
        """A node leaves with everything known about it."""
        if self._nodes.pop(slot, None) is not None:
            self._credited[slot] = False
            self._note_doubt()

    def node(self, slot: Slot) -> NodeTrust:
        """A node's standing and shares, to read; KeyError where no node stands."""
        return self._nodes[slot]

    def trust(self, slot: int) -> Trust:
        """How far the slot's signal is believed; OFF where no node stands."""
        found = self._nodes.get(slot)
        return Trust.OFF if found is None else found.trust

    @property
    def credited(self) -> Bools:
        """By slot: whether a match on the node earns credit. Shared array, read only.

        A cool-down that has run out counts from the next `tick` on.
        """
        return self._credited

    def signal(
        self, slot: Slot, signal: Signal, now: float, *, cause: str = ""
    ) -> tuple[TransitionEvent, ...]:
        """What the event stream or the configuration says; late news of a node gone is dropped."""
        found = self._nodes.get(slot)
        if found is None:
            return ()
        return self._move(slot, found, signal, now, cause or signal.name.lower())

    def observe(
        self, slot: Slot, now: float, *, predicted: int, reported: int | None, slack_tokens: int
    ) -> tuple[TransitionEvent, ...]:
        """Compare one finished request: predicted match against the engine's cached tokens.

        predicted: tokens of the match that the decision credited. reported: None where the
        engine does not tell: not comparable. slack_tokens: what may differ by rounding (one
        block: an engine always computes the prompt's last token, so a full match loses one).
        """
        found = self._nodes.get(slot)
        if found is None or reported is None or predicted <= slack_tokens:
            return ()
        if found.trust not in _TRUSTED:
            return ()
        phantom = predicted - reported if reported < predicted - slack_tokens else 0
        missed = reported - predicted if reported > predicted + slack_tokens else 0
        found.add(predicted, phantom, missed, self._rules.window)
        return self._judge(slot, found, now)

    def tick(self, now: float) -> tuple[TransitionEvent, ...]:
        """End the cool-downs that have run out. Costs nothing when none has."""
        if now < self._next_timer_s:
            return ()
        events: list[TransitionEvent] = []
        for slot, found in self._nodes.items():
            if found.until_s is not None and now >= found.until_s:
                events += self._move(slot, found, Signal.COOLED, found.until_s, "timer")
        self._set_timer()
        return tuple(events)

    def _judge(self, slot: int, found: NodeTrust, now: float) -> tuple[TransitionEvent, ...]:
        if len(found.samples) < self._rules.window:
            return ()
        if found.phantom_share > self._rules.phantom_share:
            return self._move(slot, found, Signal.PHANTOM, now, "phantom_credit")
        if found.relapses and now - found.since_s >= self._rules.cooldown_max_s:
            found.relapses, found.since_s = found.relapses - 1, now
        return ()

    def _move(
        self, slot: int, found: NodeTrust, signal: Signal, now: float, cause: str
    ) -> tuple[TransitionEvent, ...]:
        before, after = found.standing, TABLE[found.standing][signal.value]
        if after is before:
            return ()
        evidence: Evidence = {
            "requests": len(found.samples),
            "credited_tokens": found.credited,
            "phantom_share": round(found.phantom_share, 4),
        }
        found.enter(after, now)
        self._time(found, signal, now)
        found.clear()
        self._credited[slot] = found.trust in _TRUSTED
        self._note_doubt()
        self._set_timer()
        event = TransitionEvent(
            now_s=now,
            machine="trust",
            node=found.node,
            before=before.value,
            after=after.value,
            cause=cause,
            until_s=found.until_s,
            data=evidence,
        )
        return (event,)

    def _time(self, found: NodeTrust, signal: Signal, now: float) -> None:
        if signal is Signal.PHANTOM:
            rules = self._rules
            cap = max(rules.cooldown_max_s, rules.cooldown_s)
            found.until_s = now + min(rules.cooldown_s * 2.0 ** min(found.relapses, 60), cap)
            found.relapses += 1
        elif found.standing not in COOLING:
            found.until_s = None

    def _note_doubt(self) -> None:
        self.doubted = not all(self._credited[slot] for slot in self._nodes)

    def _set_timer(self) -> None:
        ends = [n.until_s for n in self._nodes.values() if n.until_s is not None]
        self._next_timer_s = min(ends, default=math.inf)

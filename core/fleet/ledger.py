"""What the scheduler has promised: load counted from the moment of selection, given back once.

Each placed request is a `Reservation`. Its life is a table:

    state       prefill_done / first_token   finish
    PREFILL  -> DECODE                       CLOSED
    DECODE      (nothing)                    CLOSED
    CLOSED      (nothing, counted)           (nothing, counted)

While in PREFILL it counts in the prefill node's queue; in DECODE in the decode node's batch
(a decode node other than the prefill node is promised its place at once). Every count is tied to
the node's generation: what a restarted or removed node owed is void, and a late release of it
changes nothing. The naive twin of the counters is `recount`, which `check_integrity` compares.
"""

from __future__ import annotations

import enum
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np

from core.domain import Decision, Outcome, OutcomeKind
from core.errors import IntegrityError
from core.fleet.state import FleetState

_COUNTED = (
    "queued_tokens", "queued_s", "prefilling", "decoding", "kv_tokens", "prompt_tokens",
)  # fmt: skip
_MEAN_OVER = 1000
"""Requests over which the mean prefill time forgets."""


class Phase(enum.Enum):
    """Where a reservation stands."""

    PREFILL = "prefill"
    DECODE = "decode"
    CLOSED = "closed"


class Reservation:
    """One placed request's claim on its nodes. Leaving the context unfinished closes it."""

    __slots__ = (
        "_ends_s",
        "_key",
        "_ledger",
        "alone",
        "batch_seen",
        "begun_s",
        "cached_tokens",
        "decision",
        "kv_seen",
        "moved",
        "outcome",
        "phase",
        "prefilled_s",
        "tbt_slo_s",
        "tickets",
    )

    def __init__(
        self, ledger: Ledger, key: int, decision: Decision, now: float, tbt_slo_s: float
    ) -> None:
        self.decision = decision
        self.moved = decision.decode_slot != decision.prefill_slot
        self.tbt_slo_s = tbt_slo_s
        self.phase = Phase.PREFILL
        self.outcome: Outcome | None = None
        self.cached_tokens: int | None = None
        self.begun_s = now
        self.prefilled_s: float | None = None
        self.alone = False
        """Whether the prefill has had its node's queue to itself so far."""
        self.batch_seen = self.kv_seen = 0.0
        """Size and KV tokens of the decode batch when this request joined it."""
        self.tickets: dict[int, int] = {}
        self._ledger = ledger
        self._key = key
        self._ends_s = 0.0

    def prefill_done(self, now: float, *, cached_tokens: int | None = None) -> None:
        """The prompt is computed: leave the queue, join the decode batch."""
        if cached_tokens is not None:
            self.cached_tokens = cached_tokens
        if self.phase is Phase.PREFILL:
            self._ledger._to_decode(self, now)

    def first_token(self, now: float) -> None:
        """The first token came; implies that the prefill is done."""
        self.prefill_done(now)

    def finish(self, outcome: Outcome, now: float) -> None:
        """Give everything back. The first call counts; later ones are only counted."""
        self._ledger._close(self, outcome, now)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.phase is not Phase.CLOSED:
            text = "" if error is None else type(error).__name__
            self._ledger.close_forgotten(self, text)


@dataclass(frozen=True, slots=True)
class Hold:
    """Seconds and tokens counted in a node's queue for a member of a pipeline group."""

    key: int
    slot: int
    generation: int
    seconds: float
    tokens: float


class Ledger:
    """Counts reservations into the fleet's arrays; the only writer of those columns."""

    def __init__(self, fleet: FleetState) -> None:
        self.fleet = fleet
        self.open: dict[int, Reservation] = {}
        self.holds: dict[int, Hold] = {}
        self.begun = 0
        self.closed: Counter[OutcomeKind] = Counter()
        self.repeated_closes = 0
        self.void_releases = 0
        self.mean_prefill_s = 0.0
        self.priorities: dict[int, int] = {}
        """Open requests by priority class; classes without any are left out."""
        self.on_close: Callable[[Reservation, Outcome, float], None] = _nobody
        self._queues: dict[tuple[int, int], dict[int, float]] = {}
        self._ends: dict[tuple[int, int], list[float]] = {}
        self._limits: dict[tuple[int, int], Counter[float]] = {}

    # -- life of a reservation -------------------------------------------------------------

    def begin(self, decision: Decision, now: float, *, tbt_slo_s: float) -> Reservation:
        """Count a decision's load on its nodes from now on."""
        self.begun += 1
        key = self.begun
        made = Reservation(self, key, decision, now, tbt_slo_s)
        self.open[key] = made
        priority = decision.request.priority
        self.priorities[priority] = self.priorities.get(priority, 0) + 1
        self._learn_mean(decision.predicted.prefill_s)
        self._enter_queue(made, now)
        if made.moved:
            self._enter_batch(made, now)
        return made

    def _enter_queue(self, r: Reservation, now: float) -> None:
        fleet, d, key = self.fleet, r.decision, r._key
        slot = d.prefill_slot
        if fleet.generation[slot] != d.prefill_generation:
            return
        fleet.last_picked[slot] = key
        queue = self._queues.setdefault((slot, d.prefill_generation), {})
        seconds = d.predicted.prefill_s + d.predicted.transfer_s
        if queue:
            head = self.open.get(next(iter(queue)))
            if head is not None:
                head.alone = False
        else:
            r.alone = True
            fleet.head_s[slot], fleet.head_started_s[slot] = seconds, now
        queue[key] = seconds
        tokens = d.request.prompt_tokens
        fleet.queued_s[slot] += seconds
        fleet.queued_tokens[slot] += d.new_tokens
        fleet.prefilling[slot] += 1
        fleet.prompt_tokens[slot] += tokens
        fleet.kv_tokens[slot] += tokens + (0 if r.moved else d.request.output_tokens_expected)
        if d.fetch_from is not None and fleet.has(d.fetch_from):
            source = fleet.slot(d.fetch_from)
            free_at = max(float(fleet.egress_until_s[source]), now)
            fleet.egress_until_s[source] = free_at + d.predicted.transfer_s

    def _enter_batch(self, r: Reservation, now: float) -> None:
        d, fleet = r.decision, self.fleet
        slot, generation = d.decode_slot, d.decode_generation
        if fleet.generation[slot] != generation:
            return
        fleet.decoding[slot] += 1
        r.batch_seen, r.kv_seen = float(fleet.decoding[slot]), float(fleet.kv_tokens[slot])
        if r.moved:
            fleet.kv_tokens[slot] += d.request.prompt_tokens + d.request.output_tokens_expected
        wait_s = d.predicted.ttft_s if r.prefilled_s is None else 0.0
        r._ends_s = now + wait_s + d.request.output_tokens_expected * d.predicted.tbt_s
        place = (slot, generation)
        insort(self._ends.setdefault(place, []), r._ends_s)
        limits = self._limits.setdefault(place, Counter())
        limits[r.tbt_slo_s] += 1
        fleet.strictest_tbt_s[slot] = min(limits)

    def _to_decode(self, r: Reservation, now: float) -> None:
        self._leave_queue(r, now)
        r.phase = Phase.DECODE
        r.prefilled_s = now
        if not r.moved:
            self._enter_batch(r, now)

    def _close(self, r: Reservation, outcome: Outcome, now: float) -> None:
        if r.phase is Phase.CLOSED:
            self.repeated_closes += 1
            return
        was, r.phase, r.outcome = r.phase, Phase.CLOSED, outcome
        if was is Phase.PREFILL:
            self._leave_queue(r, now)
        if was is Phase.DECODE or r.moved:
            self._leave_batch(r)
        self._release_prefill_kv(r)
        del self.open[r._key]
        self.closed[outcome.kind] += 1
        priority = r.decision.request.priority
        self.priorities[priority] -= 1
        if not self.priorities[priority]:
            del self.priorities[priority]
        self.on_close(r, outcome, now)

    def close_forgotten(self, r: Reservation, error: str) -> None:
        """Close a reservation whose owner left without an outcome; its time is unknown."""
        kind = OutcomeKind.CLIENT_ABORT if error in _ABORTS else OutcomeKind.LOST
        started = self.fleet.head_started_s[r.decision.prefill_slot]
        self._close(r, Outcome(kind=kind, error=error), max(float(started), r.begun_s))

    def _leave_queue(self, r: Reservation, now: float) -> None:
        d = r.decision
        self._dequeue(r._key, d.prefill_slot, d.prefill_generation, d.new_tokens, now)

    def _dequeue(self, key: int, slot: int, generation: int, tokens: float, now: float) -> None:
        fleet = self.fleet
        queue = self._queues.get((slot, generation))
        if fleet.generation[slot] != generation or queue is None:
            self.void_releases += 1
            return
        first = next(iter(queue)) == key
        seconds = queue.pop(key)
        fleet.prefilling[slot] -= 1
        if not queue:
            fleet.queued_s[slot] = fleet.queued_tokens[slot] = fleet.head_s[slot] = 0.0
            return
        fleet.queued_s[slot] = max(fleet.queued_s[slot] - seconds, 0.0)
        fleet.queued_tokens[slot] -= tokens
        if first:
            fleet.head_s[slot] = next(iter(queue.values()))
            fleet.head_started_s[slot] = now

    def _leave_batch(self, r: Reservation) -> None:
        d, fleet = r.decision, self.fleet
        slot, place = d.decode_slot, (d.decode_slot, d.decode_generation)
        limits = self._limits.get(place)
        if fleet.generation[slot] != d.decode_generation or limits is None:
            self.void_releases += 1
            return
        fleet.decoding[slot] -= 1
        if r.moved:
            fleet.kv_tokens[slot] -= d.request.prompt_tokens + d.request.output_tokens_expected
        ends = self._ends[place]
        del ends[bisect_right(ends, r._ends_s) - 1]
        limits[r.tbt_slo_s] -= 1
        if not limits[r.tbt_slo_s]:
            del limits[r.tbt_slo_s]
            fleet.strictest_tbt_s[slot] = min(limits, default=np.inf)

    def _release_prefill_kv(self, r: Reservation) -> None:
        d, fleet = r.decision, self.fleet
        slot = d.prefill_slot
        if fleet.generation[slot] != d.prefill_generation:
            return
        tokens = d.request.prompt_tokens
        fleet.prompt_tokens[slot] -= tokens
        fleet.kv_tokens[slot] -= tokens + (0 if r.moved else d.request.output_tokens_expected)

    # -- time that a pipeline group takes on its other members -----------------------------------

    def hold(self, slot: int, seconds: float, *, tokens: float, now: float) -> Hold:
        """Count `seconds` of a node's prefill queue for work that another reservation leads."""
        self.begun += 1
        fleet = self.fleet
        made = Hold(-self.begun, slot, int(fleet.generation[slot]), seconds, tokens)
        self.holds[made.key] = made
        queue = self._queues.setdefault((slot, made.generation), {})
        if not queue:
            fleet.head_s[slot], fleet.head_started_s[slot] = seconds, now
        queue[made.key] = seconds
        fleet.queued_s[slot] += seconds
        fleet.queued_tokens[slot] += tokens
        fleet.prefilling[slot] += 1
        return made

    def release(self, hold: Hold, now: float) -> None:
        """The held time is over (or void); releasing twice changes nothing."""
        if self.holds.pop(hold.key, None) is None:
            return
        self._dequeue(hold.key, hold.slot, hold.generation, hold.tokens, now)

    @property
    def top_priority(self) -> int:
        """Highest priority class in flight; 0 when idle."""
        return max(self.priorities, default=0)

    # -- questions ---------------------------------------------------------------------------

    def batch_at(self, slot: int, when_s: float) -> int:
        """Requests the decode batch is predicted to hold at `when_s`: those promised or
        running whose expected end lies later (F 5, early rejection)."""
        ends = self._ends.get((slot, int(self.fleet.generation[slot])))
        return 0 if ends is None else len(ends) - bisect_right(ends, when_s)

    def drain_s(self, slot: int, now: float) -> float:
        """Predicted seconds until the next request leaves the decode batch."""
        ends = self._ends.get((slot, int(self.fleet.generation[slot])))
        return max(ends[0] - now, 0.0) if ends else 0.0

    def inflight(self, slot: int) -> int:
        """Open requests that touch the node in either phase."""
        return int(self.fleet.prefilling[slot] + self.fleet.decoding[slot])

    def void(self, slot: int, generation: int) -> None:
        """Forget what a past generation owed; its reservations stay open until they finish."""
        for table in (self._queues, self._ends, self._limits):
            table.pop((slot, generation), None)  # type: ignore[attr-defined]

    def recount(self) -> dict[str, np.ndarray]:
        """The counters as the open reservations imply them (naive twin)."""
        fleet = self.fleet
        out = {name: np.zeros(fleet.capacity) for name in _COUNTED}
        for r in self.open.values():
            d = r.decision
            prompt, expected = d.request.prompt_tokens, d.request.output_tokens_expected
            if fleet.generation[d.prefill_slot] == d.prefill_generation:
                s = d.prefill_slot
                out["prompt_tokens"][s] += prompt
                out["kv_tokens"][s] += prompt + (0 if d.disaggregated else expected)
                if r.phase is Phase.PREFILL:
                    out["prefilling"][s] += 1
                    out["queued_tokens"][s] += d.new_tokens
                    out["queued_s"][s] += d.predicted.prefill_s + d.predicted.transfer_s
            joined = d.disaggregated or r.phase is Phase.DECODE
            if joined and fleet.generation[d.decode_slot] == d.decode_generation:
                out["decoding"][d.decode_slot] += 1
                if d.disaggregated:
                    out["kv_tokens"][d.decode_slot] += prompt + expected
        for hold in self.holds.values():
            if fleet.generation[hold.slot] == hold.generation:
                out["prefilling"][hold.slot] += 1
                out["queued_tokens"][hold.slot] += hold.tokens
                out["queued_s"][hold.slot] += hold.seconds
        return out

    def check_integrity(self) -> None:
        """Counters equal the open reservations and are never negative."""
        for name, expected in self.recount().items():
            actual = getattr(self.fleet, name)
            if not np.allclose(actual, expected, atol=1e-6):
                raise IntegrityError(f"ledger: {name} is {actual}, reservations say {expected}")
            if (actual < -1e-6).any():
                raise IntegrityError(f"ledger: {name} is negative: {actual}")

    def _learn_mean(self, prefill_s: float) -> None:
        n = min(self.begun, _MEAN_OVER)
        self.mean_prefill_s += (prefill_s - self.mean_prefill_s) / n


def _nobody(r: Reservation, outcome: Outcome, now: float) -> None:
    """Nobody listens."""


_ABORTS = ("CancelledError", "ClientDisconnect", "GeneratorExit", "KeyboardInterrupt")

"""What the scheduler has promised: load counted from the moment of selection, given back once.

Each placed request is a `Reservation`. Its life is a table:

    state       prefill_done / first_token   finish
    PREFILL  -> DECODE                       CLOSED
    DECODE      (nothing)                    CLOSED
    CLOSED      (nothing)                    (nothing, counted)

While in PREFILL it counts in the prefill node's queue; in DECODE in the decode node's batch
(a decode node other than the prefill node is promised its place and KV at once, and the prefill
node is free of the prompt's KV when the prefill is done). Every count is tied to the node's
generation: what a restarted or removed node owed is void, and a late release of it changes
nothing. The naive twin of the counters is `recount`, which `check_integrity` compares.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from core.domain import Decision, Outcome, OutcomeKind
from core.errors import IntegrityError
from core.fleet.reservation import Hold, Phase, Reservation
from core.fleet.state import FleetState

__all__ = ["Hold", "Ledger", "Phase", "Reservation", "queue_seconds"]

_COUNTED = (
    "queued_tokens", "queued_s", "prefilling", "decoding", "kv_tokens", "decode_kv",
    "prompt_tokens",
)  # fmt: skip
# An attribute of an enumeration costs more than the rest of a line in which it stands.
_PREFILL, _DECODE, _CLOSED = Phase.PREFILL, Phase.DECODE, Phase.CLOSED
_MEAN_OVER = 1000
"""Requests over which the mean prefill time forgets."""


class _Place:
    """What one generation of a node owes, beyond the fleet's columns.

    queue: reservation or hold -> its seconds, in order of arrival. ends: sorted expected ends of
    the requests in the decode batch, promised to it, or queued for it here. limits: TBT limits
    of the batch.
    """

    __slots__ = ("ends", "generation", "limits", "promised_kv", "queue")

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.queue: dict[int, float] = {}
        self.ends: list[float] = []
        self.promised_kv = 0
        self.limits: dict[float, int] = {}


class Ledger:
    """Counts reservations into the fleet's arrays; the only writer of those columns."""

    def __init__(self, fleet: FleetState) -> None:
        self.fleet = fleet
        self.open: dict[int, Reservation] = {}
        self.holds: dict[int, Hold] = {}
        self.begun = 0
        self.closed: dict[OutcomeKind, int] = {}
        self.repeated_closes = 0
        self.void_releases = 0
        self.mean_prefill_s = 0.0
        self.priorities: dict[int, int] = {}
        """Open requests by priority class."""
        self.on_first_token: Callable[[Reservation, float], None] = _nobody
        self.on_close: Callable[[Reservation, Outcome, float], None] = _nobody
        self._serial = 0
        self._seen_s = -np.inf
        """Latest time that any call brought."""
        self._places: dict[int, _Place] = {}
        """By slot, of its present generation or one that is past."""

    # -- life of a reservation -------------------------------------------------------------

    def begin(self, decision: Decision, now: float, *, tbt_slo_s: float) -> Reservation:
        """Count a decision's load on its nodes from now on."""
        self.begun += 1
        self._serial += 1
        if now > self._seen_s:
            self._seen_s = now
        request, moved = decision.request, decision.decode_slot != decision.prefill_slot
        made = Reservation(
            self,
            self._serial,
            decision,
            decision.new_tokens,
            moved,
            request.prompt_tokens + request.output_tokens_expected,
            tbt_slo_s,
            now,
        )
        self.open[self._serial] = made
        self.priorities[request.priority] = self.priorities.get(request.priority, 0) + 1
        n = self.begun if self.begun < _MEAN_OVER else _MEAN_OVER
        self.mean_prefill_s += (decision.predicted.prefill_s - self.mean_prefill_s) / n
        self._enter_queue(made, now)
        if moved:
            self._enter_batch(made, now)
        return made

    def _place(self, slot: int, generation: int) -> _Place | None:
        """The place of a node's present life, made when first needed; None for a past one."""
        if self.fleet.cells.generation[slot] != generation:
            return None
        found = self._places.get(slot)
        if found is not None and found.generation == generation:
            return found
        made = self._places[slot] = _Place(generation)
        return made

    def _standing(self, slot: int) -> _Place | None:
        """The place of a node's present life, if anything was ever placed in it."""
        place, generation = self._places.get(slot), self.fleet.cells.generation[slot]
        return place if place is not None and place.generation == generation else None

    def _enter_queue(self, r: Reservation, now: float) -> None:
        d = r.decision
        slot, place = d.prefill_slot, self._place(d.prefill_slot, d.prefill_generation)
        if place is None:
            return
        cells, prompt = self.fleet.cells, d.request.prompt_tokens
        cells.last_picked[slot] = r.key
        r.alone = not place.queue
        self._enqueue(place, slot, r.key, queue_seconds(d), r.new_tokens, now)
        cells.prompt_tokens[slot] += prompt
        if r.moved:
            cells.kv_tokens[slot] += prompt
        else:
            cells.kv_tokens[slot] += r.kv_tokens
            self._expect_end(r, place, now)

    def _enqueue(
        self, place: _Place, slot: int, key: int, seconds: float, tokens: float, now: float
    ) -> None:
        cells, queue = self.fleet.cells, place.queue
        if queue:
            head = self.open.get(next(iter(queue)))
            if head is not None:
                head.alone = False
        else:
            cells.head_s[slot], cells.head_started_s[slot] = seconds, now
        queue[key] = seconds
        cells.queued_s[slot] += seconds
        cells.queued_tokens[slot] += tokens
        cells.prefilling[slot] += 1

    def _expect_end(self, r: Reservation, place: _Place, now: float) -> None:
        """Note (again) when the request is expected to leave its decode node.

        One that generates nothing leaves when it comes.
        """
        d = r.decision
        if not d.request.output_tokens_expected:
            return
        self._forget_end(r, place)
        wait_s = d.predicted.ttft_s if r.prefilled_s is None else 0.0
        r._ends_s = now + wait_s + d.request.output_tokens_expected * d.predicted.tbt_s
        insort(place.ends, r._ends_s)
        place.promised_kv += r.kv_tokens

    def _forget_end(self, r: Reservation, place: _Place) -> None:
        if r._ends_s is not None:
            del place.ends[bisect_left(place.ends, r._ends_s)]
            place.promised_kv -= r.kv_tokens
            r._ends_s = None

    def _enter_batch(self, r: Reservation, now: float) -> None:
        d, cells = r.decision, self.fleet.cells
        slot, place = d.decode_slot, self._place(d.decode_slot, d.decode_generation)
        if place is None:
            return
        cells.decoding[slot] += 1
        cells.decode_kv[slot] += r.kv_tokens
        r.batch_seen, r.kv_seen = cells.decoding[slot], cells.decode_kv[slot]
        if r.moved:
            cells.kv_tokens[slot] += r.kv_tokens
        self._expect_end(r, place, now)
        place.limits[r.tbt_slo_s] = place.limits.get(r.tbt_slo_s, 0) + 1
        cells.strictest_tbt_s[slot] = min(place.limits)

    def to_decode(self, r: Reservation, now: float) -> None:
        """A queued reservation's prefill is done: see `Reservation.prefill_done`."""
        if now > self._seen_s:
            self._seen_s = now
        d = r.decision
        place = self._place(d.prefill_slot, d.prefill_generation)
        self._dequeue(place, d.prefill_slot, r.key, r.new_tokens, now)
        r.phase = _DECODE
        r.prefilled_s = now
        if r.moved:
            self._release_prefill(r, place)
        else:
            self._enter_batch(r, now)

    def close(self, r: Reservation, outcome: Outcome, now: float) -> None:
        """Give back what the reservation counts, once: see `Reservation.finish`."""
        was, moved, d = r.phase, r.moved, r.decision
        if was is _CLOSED:
            self.repeated_closes += 1
            return
        if now > self._seen_s:
            self._seen_s = now
        r.phase, r.outcome = _CLOSED, outcome
        place = self._place(d.prefill_slot, d.prefill_generation)
        if was is _PREFILL:
            self._dequeue(place, d.prefill_slot, r.key, r.new_tokens, now)
        if was is _DECODE or moved:
            self._leave_batch(r)
        if was is _PREFILL or not moved:
            self._release_prefill(r, place)
        del self.open[r.key]
        self.closed[outcome.kind] = self.closed.get(outcome.kind, 0) + 1
        self._uncount(d.request.priority)
        self.on_close(r, outcome, now)

    def _uncount(self, priority: int) -> None:
        self.priorities[priority] -= 1
        if not self.priorities[priority]:
            del self.priorities[priority]

    def close_forgotten(self, r: Reservation, error: str) -> None:
        """Close a reservation whose owner left without an outcome, at the latest known time."""
        kind = OutcomeKind.CLIENT_ABORT if error in _ABORTS else OutcomeKind.LOST
        self.close(r, Outcome(kind=kind, error=error), self._seen_s)

    def _dequeue(
        self, place: _Place | None, slot: int, key: int, tokens: float, now: float
    ) -> None:
        if place is None:
            self.void_releases += 1
            return
        cells, queue = self.fleet.cells, place.queue
        cells.prefilling[slot] -= 1
        if len(queue) == 1:
            del queue[key]
            cells.queued_s[slot] = cells.queued_tokens[slot] = cells.head_s[slot] = 0.0
            return
        first = next(iter(queue)) == key
        left_s = cells.queued_s[slot] - queue.pop(key)
        left_tokens = cells.queued_tokens[slot] - tokens
        cells.queued_s[slot] = left_s if left_s > 0.0 else 0.0
        cells.queued_tokens[slot] = left_tokens if left_tokens > 0.0 else 0.0
        if first:
            cells.head_s[slot] = next(iter(queue.values()))
            cells.head_started_s[slot] = now

    def _leave_batch(self, r: Reservation) -> None:
        d, cells = r.decision, self.fleet.cells
        slot, place = d.decode_slot, self._place(d.decode_slot, d.decode_generation)
        if place is None:
            self.void_releases += 1
            return
        cells.decoding[slot] -= 1
        cells.decode_kv[slot] -= r.kv_tokens
        if r.moved:
            cells.kv_tokens[slot] -= r.kv_tokens
            self._forget_end(r, place)
        limits = place.limits
        limits[r.tbt_slo_s] -= 1
        if not limits[r.tbt_slo_s]:
            del limits[r.tbt_slo_s]
            cells.strictest_tbt_s[slot] = min(limits, default=math.inf)

    def _release_prefill(self, r: Reservation, place: _Place | None) -> None:
        if place is None:
            return
        d, cells = r.decision, self.fleet.cells
        slot, prompt = d.prefill_slot, d.request.prompt_tokens
        cells.prompt_tokens[slot] -= prompt
        if r.moved:
            cells.kv_tokens[slot] -= prompt
        else:
            cells.kv_tokens[slot] -= r.kv_tokens
            self._forget_end(r, place)

    # -- time that a pipeline group takes on its other members -----------------------------------

    def hold(self, slot: int, seconds: float, *, tokens: float, now: float) -> Hold:
        """Count `seconds` of a node's prefill queue for work that another reservation leads."""
        self._serial += 1
        generation = int(self.fleet.generation[slot])
        made = Hold(self._serial, slot, generation, seconds, tokens)
        self.holds[made.key] = made
        place = self._place(slot, generation)
        assert place is not None
        self._enqueue(place, slot, made.key, seconds, tokens, now)
        return made

    def release(self, hold: Hold, now: float) -> None:
        """The held time is over (or void); releasing twice changes nothing."""
        if self.holds.pop(hold.key, None) is None:
            return
        place = self._place(hold.slot, hold.generation)
        self._dequeue(place, hold.slot, hold.key, hold.tokens, now)

    @property
    def top_priority(self) -> int:
        """Highest priority class in flight; 0 when idle."""
        return max(self.priorities, default=0)

    # -- questions ---------------------------------------------------------------------------

    def batch_at(self, slot: int, when_s: float) -> tuple[int, float]:
        """(requests, KV tokens) that the decode batch is predicted to hold at `when_s`.

        Counts who decodes there, is promised there, or is queued there, and is expected to end
        later (F 5, early rejection); each with the mean KV of them all.
        """
        place = self._standing(slot)
        if place is None or not place.ends:
            return 0, 0.0
        requests = len(place.ends) - bisect_right(place.ends, when_s)
        return requests, place.promised_kv * requests / len(place.ends)

    def drain_s(self, slot: int, now: float) -> float:
        """Predicted seconds until the next request leaves the decode batch."""
        place = self._standing(slot)
        return max(place.ends[0] - now, 0.0) if place is not None and place.ends else 0.0

    def inflight(self, slot: int) -> int:
        """Open requests that touch the node in either phase."""
        return int(self.fleet.prefilling[slot] + self.fleet.decoding[slot])

    def void(self, slot: int, generation: int) -> None:
        """Forget what a past generation owed; its reservations stay open until they finish."""
        place = self._places.get(slot)
        if place is not None and place.generation == generation:
            del self._places[slot]

    def recount(self) -> dict[str, np.ndarray]:
        """The counters as the open reservations imply them (naive twin)."""
        generation = self.fleet.generation
        out = {name: np.zeros(self.fleet.capacity) for name in _COUNTED}
        for r in self.open.values():
            d, slot = r.decision, r.decision.prefill_slot
            queued, moved = r.phase is Phase.PREFILL, r.moved
            if generation[slot] == d.prefill_generation and (queued or not moved):
                out["prompt_tokens"][slot] += d.request.prompt_tokens
                out["kv_tokens"][slot] += d.request.prompt_tokens if moved else r.kv_tokens
            if generation[slot] == d.prefill_generation and queued:
                out["prefilling"][slot] += 1
                out["queued_tokens"][slot] += d.new_tokens
                out["queued_s"][slot] += queue_seconds(d)
            slot = d.decode_slot
            if generation[slot] == d.decode_generation and (moved or not queued):
                out["decoding"][slot] += 1
                out["decode_kv"][slot] += r.kv_tokens
                out["kv_tokens"][slot] += r.kv_tokens if moved else 0
        for hold in self.holds.values():
            if generation[hold.slot] == hold.generation:
                out["prefilling"][hold.slot] += 1
                out["queued_tokens"][hold.slot] += hold.tokens
                out["queued_s"][hold.slot] += hold.seconds
        return out

    def check_integrity(self) -> None:
        """Counters equal the open reservations, are never negative, and idle nodes' are 0."""
        fleet = self.fleet
        for name, expected in self.recount().items():
            actual = getattr(fleet, name)
            if not np.allclose(actual, expected, rtol=1e-9, atol=1e-6):
                raise IntegrityError(f"ledger: {name} is {actual}, reservations say {expected}")
            if (actual < 0).any() or actual[fleet.prefilling + fleet.decoding == 0].any():
                raise IntegrityError(f"ledger: {name} is negative, or not 0 when idle: {actual}")
        closed = sum(self.closed.values())
        if self.begun != len(self.open) + closed:
            raise IntegrityError(f"ledger: {self.begun} begun, {closed} closed")
        ends = Counter((int(r.decision.decode_slot), r._ends_s) for r in self.open.values())
        for slot, place in self._places.items():
            if fleet.generation[slot] != place.generation:
                raise IntegrityError(f"ledger: a past life of slot {slot} is still counted")
            self._check_place(slot, place, ends)

    def _check_place(
        self, slot: int, place: _Place, ends: Mapping[tuple[int, float | None], int]
    ) -> None:
        fleet = self.fleet
        counted = len(place.queue), sum(place.limits.values())
        told = fleet.prefilling[slot], fleet.decoding[slot]
        strictest = min(place.limits, default=np.inf)
        if counted != told:
            raise IntegrityError(f"ledger: slot {slot} owes {counted}, its row says {told}")
        if fleet.strictest_tbt_s[slot] != strictest:
            raise IntegrityError(f"ledger: the strictest limit of slot {slot} is {strictest}")
        for end, count in Counter(place.ends).items():
            if ends.get((slot, end), 0) < count:
                raise IntegrityError(f"ledger: slot {slot} expects an end nobody has, {end}")


def queue_seconds(d: Decision) -> float:
    """Seconds of its prefill node's queue that a decision takes: fetching and computing."""
    p = d.predicted
    return p.prefill_s + p.transfer_s - p.handover_s


def _nobody(*_: object) -> None:
    """Nobody listens."""


_ABORTS = ("CancelledError", "ClientDisconnect", "GeneratorExit", "KeyboardInterrupt")

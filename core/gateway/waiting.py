"""Queue mode: requests wait here until a node has room, and are answered in time if none has.

Theory. A request goes straight on while nobody waits and a node it could use has room
(`core.plan.prospects`). Otherwise it takes a place in the fair queue (`core.plan.fair_queue`), and
one at a time those that wait are given a turn: whoever has it decides, holds its node's load, and
only then the next is looked for, so that room is never given twice. Turns are looked for whenever
load is given back, and with the service's heartbeat.

A request whose node failed it has had its turn: it goes straight on, past those that wait, where
another node has room, and is else the first of its tenant's line, at no further charge.
Reservations of `/v1/schedule` cannot wait here: where they would have to, they get 429 with a
Retry-After.

A place is lost, with 429 and a Retry-After, when the queue is full (a higher class takes the place
of the lowest one's last), or when its time is up: early enough that the prompt could still be
computed within its limit. Where nobody could serve the request at all the turn comes at once, for
the refusal that says so.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from core import wire
from core.domain import Decision, NodeId, Rejection, Request
from core.gateway.flights import Flight
from core.gateway.live import LogHistogram
from core.gateway.pipelining import can_group
from core.plan.fair_queue import FairQueue, Waiting
from core.plan.prospects import Prospects, room_anywhere

if TYPE_CHECKING:
    from core.gateway.intake import Intake
    from core.gateway.service import Service

BUSY_S = 0.1
"""A turn that found the decode nodes full is tried again after this."""
RETRY_LEAST_S = 1.0
GROUPS_MAX = 200
NO_ROOM = "no_room"
"""Code of the refusal that asks a scheduler elsewhere to come again."""


@dataclass(slots=True, eq=False)
class Place:
    """One request's place."""

    request: Request
    arrived_s: float
    turn: asyncio.Future[str]
    """Done with "" when it is its turn, else with why it has to go."""
    not_before_s: float = -math.inf
    carry: bool = False
    """Whether a pipeline group may serve it."""
    overdue: bool = False
    """Its time ran out while it had the turn."""


class WaitingRoom:
    """All who wait, of every model. One a service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._conductor = service.conductor
        self.queue: FairQueue[Place] = FairQueue()
        self.waits = LogHistogram()
        """Seconds that those waited who were served."""
        self.totals: Counter[str] = Counter()
        self._turn: Place | None = None
        """Who has the turn now."""

    @property
    def on(self) -> bool:
        """Whether requests wait at all."""
        return self._conductor.tunables.admission.mode == "queue"

    def prospects(self, request: Request) -> Prospects:
        """Those of a request now."""
        return self._conductor.prospects(request, self._service.clock.now())

    async def decide(
        self,
        intake: Intake,
        flight: Flight,
        *,
        arrived_s: float,
        tried: frozenset[NodeId] = frozenset(),
    ) -> Decision | Rejection:
        """A decision in turn, or the refusal. The caller must hold it before it awaits anything.

        tried: nodes that failed it, after its turn.
        """
        service, again = self._service, bool(tried)
        request = intake.without(tried) if again else intake.request
        found = self.prospects(request)
        free = self._turn is None and (again or not len(self.queue))
        if free and (found.roomy or not found.nodes):
            decided = service.decide(request, waits=found.nodes > 0, carry=can_group(intake))
            if not is_full(decided):
                return decided
        place = Place(request, arrived_s, asyncio.get_running_loop().create_future())
        cost = float(max(request.prompt_tokens, 1))
        place.carry = can_group(intake)
        waiting = Waiting(request.tenant, request.priority, cost, len(intake.raw), place)
        refused = self._admit(waiting, first=again)
        return refused or await self._wait(waiting, flight, found)

    def turned_away(self, request: Request) -> Rejection | None:
        """The refusal of one that cannot wait here, where in queue mode it would have to.

        A scheduler elsewhere asks (`/v1/schedule`) and keeps no connection: it is told when to ask
        again, and does not pass those by who wait.
        """
        if not self.on:
            return None
        found = self.prospects(request)
        if not found.nodes or (found.roomy and not len(self.queue)):
            return None
        return self._refuse(request, NO_ROOM, _SAYS[NO_ROOM])

    def stir(self) -> None:
        """Load was given back, or time has passed: give the next one a turn."""
        if not len(self.queue) or self._turn is not None:
            return
        if not self.on:
            self._release_all()
            return
        now = self._service.clock.now()
        if not room_anywhere(self._conductor.fleet, self._conductor.tunables, now):
            return
        while (picked := self.queue.pick(lambda place: self._ready(place, now))) is not None:
            if _tell(picked.what, ""):
                self._turn = picked.what
                return

    def view(self) -> wire.QueueView:
        """GET /queue."""
        limits, now = self._service.limits, self._service.clock.now()
        groups: dict[tuple[int, str], list[float]] = {}
        for one in self.queue:
            groups.setdefault((-one.priority, one.tenant), []).append(one.cost)
        oldest_s = min((one.what.arrived_s for one in self.queue), default=now)
        return wire.QueueView(
            mode=self._conductor.tunables.admission.mode,
            waiting=len(self.queue),
            waiting_max=limits.queue_max,
            nbytes=self.queue.nbytes,
            nbytes_max=limits.queue_bytes_max,
            oldest_s=now - oldest_s,
            groups=[
                wire.QueueGroup(
                    tenant=tenant, priority=-below, waiting=len(costs), tokens=round(sum(costs))
                )
                for (below, tenant), costs in sorted(groups.items())[:GROUPS_MAX]
            ],
            fates=dict(self.totals),
        )

    # -- one request -------------------------------------------------------------------------

    def _admit(self, waiting: Waiting[Place], *, first: bool) -> Rejection | None:
        """Queue it, in a lower one's place where the queue is full."""
        while self._is_full(waiting.nbytes):
            least = self.queue.least(waiting.priority)
            if least is None:
                self.totals["full"] += 1
                return self._refuse(waiting.what.request, "queue_full", "the queue is full")
            self.queue.discard(least)
            self.totals["displaced"] += 1
            _tell(least.what, "queue_full")
        self.queue.push(waiting, first=first)
        self.totals["queued"] += 1
        return None

    def _is_full(self, nbytes: int) -> bool:
        limits, queue = self._service.limits, self.queue
        return len(queue) >= limits.queue_max or queue.nbytes + nbytes > limits.queue_bytes_max

    async def _wait(
        self, waiting: Waiting[Place], flight: Flight, found: Prospects
    ) -> Decision | Rejection:
        place, loop = waiting.what, asyncio.get_running_loop()
        left_s = self._patience_s(place, found) - (self._service.clock.now() - place.arrived_s)
        timer = loop.call_later(max(left_s, 0.0), self._time_is_up, waiting)
        try:
            while True:
                self.stir()
                why = await place.turn
                flight.check()
                if why:
                    return self._refuse(place.request, why, _SAYS[why])
                decided = self._take_turn(place)
                if not is_full(decided):
                    return decided
                if place.overdue:
                    self.totals["expired"] += 1
                    return self._refuse(place.request, "queue_timeout", _SAYS["queue_timeout"])
                self._again(waiting)
        finally:
            timer.cancel()
            self.queue.discard(waiting)
            if self._turn is place:
                self._turn = None
            # The caller holds what it got before the loop comes to this.
            loop.call_soon(self.stir)

    def _take_turn(self, place: Place) -> Decision | Rejection:
        service = self._service
        decided = service.decide(place.request, waits=True, carry=place.carry)
        if isinstance(decided, Rejection):
            return decided
        waited_s = service.clock.now() - place.arrived_s
        self.waits.add(waited_s)
        self.totals["served"] += 1
        note = f"waited {waited_s:.3g} s for a node with room"
        told: Decision = msgspec.structs.replace(
            decided, notes=(*decided.notes, note), waited_s=waited_s
        )
        return told

    def _again(self, waiting: Waiting[Place]) -> None:
        """The turn came too soon: back to the front of its tenant's line."""
        place = waiting.what
        place.not_before_s = self._service.clock.now() + BUSY_S
        place.turn = asyncio.get_running_loop().create_future()
        self.queue.push(waiting, first=True)
        self._turn = None

    def _time_is_up(self, waiting: Waiting[Place]) -> None:
        waiting.what.overdue = True
        if self.queue.discard(waiting):
            self.totals["expired"] += 1
            _tell(waiting.what, "queue_timeout")

    def _patience_s(self, place: Place, found: Prospects) -> float:
        """Seconds after its arrival at which it makes no sense to wait on: the prompt has to be
        computed within the limit, too."""
        t = self._conductor.tunables
        limit_s = (place.request.ttft_slo_s or t.slo.ttft_s) * t.admission.ttft_slack
        computing_s = found.prefill_s if math.isfinite(found.prefill_s) else 0.0
        return min(limit_s - computing_s, t.admission.queue_wait_max_s)

    # -- turns -------------------------------------------------------------------------------

    def _ready(self, place: Place, now: float) -> bool:
        if now < place.not_before_s:
            return False
        found = self._conductor.prospects(place.request, now)
        return found.roomy > 0 or not found.nodes

    def _release_all(self) -> None:
        """The mode was switched: everybody may go."""
        while (picked := self.queue.pick(lambda _: True)) is not None:
            _tell(picked.what, "")

    def _refuse(self, request: Request, code: str, says: str) -> Rejection:
        return self._service.refuse(request, code, says, retry_after_s=self._retry_s(request))

    def _retry_s(self, request: Request) -> float:
        """When what waits now will have been computed, about."""
        t, found = self._conductor.tunables, self.prospects(request)
        if not found.nodes:
            return RETRY_LEAST_S
        per_token_s = found.prefill_s / max(request.prompt_tokens, 1)
        drain_s = found.queue_s + self.queue.cost * per_token_s / found.nodes
        return min(max(drain_s, RETRY_LEAST_S), t.admission.retry_after_max_s)


_SAYS = {
    "queue_full": "the queue is full, and requests of a higher class took this one's place",
    "queue_timeout": "no node had room in time",
    NO_ROOM: "no node has room now, or others wait for it: ask again",
}


def _tell(place: Place, why: str) -> bool:
    """Wake who waits; False where it was cancelled meanwhile."""
    if place.turn.done():
        return False
    place.turn.set_result(why)
    return True


def is_full(decided: Decision | Rejection) -> bool:
    """Whether a refusal is one that waiting may cure: what is full will be empty again."""
    return isinstance(decided, Rejection) and decided.status == 429 and decided.code in _CURABLE


_CURABLE = frozenset({"no_candidates", "no_decode_candidates", "predicted_tbt_slo"})

"""Dynamic batching (S2 4.4.4): under load, requests wait some milliseconds to be grouped.

Those that arrive together are placed one after the other in an order that serves the cache: by
model and shared cold prefix, in a group the shortest first (`core.plan.batching.form_batches`).
The first of a group carries the prefix, and the others follow it, as anybody does while it is
under way (`core.plan.gathering`). In queue mode nothing waits here: there the fair queue decides
who is next. Further attempts of a request do not wait again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from core.domain import Request, RequestId
from core.gateway.flights import Flight
from core.plan.batching import Pending, form_batches
from core.plan.prefill import fleet_load

if TYPE_CHECKING:
    from core.gateway.service import Service


class Collector:
    """Who waits to be grouped. One a service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._pending: dict[RequestId, tuple[Pending, asyncio.Future[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.totals: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._pending)

    async def turn(self, request: Request, flight: Flight) -> None:
        """Wait until the request is due; at once where batching is off or the load is low.

        The caller must hold what it decides before it awaits anything, so that the next of the
        group sees it.
        """
        t = self._service.conductor.tunables
        if not t.batching.enabled or t.admission.mode == "queue":
            return
        if not self._pending and self._load() < t.batching.load_min:
            return
        due = asyncio.get_running_loop().create_future()
        self._pending[request.id] = (self._described(request), due)
        self.totals["requests"] += 1
        if self._timer is None or len(self._pending) >= t.batching.size_max:
            # Not here and now: whoever came last would not wait, and be the first of its group.
            asyncio.get_running_loop().call_soon(self._look)
        try:
            await due
        finally:
            self._pending.pop(request.id, None)
        flight.check()

    def _look(self) -> None:
        """Let go who is due, in order; look again when the next will be."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now, rules = self._service.clock.now(), self._service.conductor.tunables.batching
        waiting = [one for one, due in self._pending.values() if not due.done()]
        formed = form_batches(waiting, now, rules=rules, load=self._load())
        for batch in formed.batches:
            self.totals["groups" if batch.group is not None else "ungrouped"] += 1
            for one in batch.requests:
                self._pending[one.id][1].set_result(None)
        if formed.waiting:
            loop, wait_s = asyncio.get_running_loop(), max(formed.due_s - now, 0.0)
            self._timer = loop.call_later(wait_s, self._look)

    def _load(self) -> float:
        """Mean load of the nodes that prefill."""
        conductor = self._service.conductor
        fleet = conductor.fleet
        at_work = fleet.prefills & fleet.healthy
        load = fleet_load(fleet, conductor.tunables, self._service.clock.now()).load
        return float(load[at_work].mean()) if at_work.any() else 0.0

    def _described(self, request: Request) -> Pending:
        conductor = self._service.conductor
        size, keys = next(iter(request.keys.items()), (1, ()))
        return Pending(
            id=request.id,
            model=request.model,
            prompt_tokens=request.prompt_tokens,
            keys=keys,
            block_size=size,
            reachable_tokens=int(conductor.match(request.keys).max(initial=0)),
            arrived_s=self._service.clock.now(),
            adapter=request.adapter,
            priority=request.priority,
        )

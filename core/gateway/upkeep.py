"""The service's heartbeat: deadlines, timers of the state machines, sweeps, loop lag."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Iterable
from heapq import nlargest
from typing import TYPE_CHECKING

from core.domain import Health, NodeId
from core.fleet.transition import TransitionEvent
from core.gateway.replication import ReplicationHistory
from core.plan.prefill import fleet_load

if TYPE_CHECKING:
    from core.gateway.service import Service

PERIOD_S = 0.25
SAMPLE_S = 1.0
_SWEEP_ENTRIES = 4_096
_LAGS = round(60 / PERIOD_S)

log = logging.getLogger("conductor.gateway")


class Upkeep:
    """Runs `beat` four times a second. `beat` is plain code: tests call it with their own time."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.replication = ReplicationHistory()
        self._task: asyncio.Task[None] | None = None
        self._lags: deque[float] = deque(maxlen=_LAGS)
        self._due_s = math.inf
        """Loop time of the next beat."""
        self._sample_at_s = -math.inf
        self._loop = service.jobs.loop(
            "upkeep", every_s=PERIOD_S, what="deadlines, timers of state machines, index sweep"
        )
        self.failures = 0

    def start(self) -> None:
        """Begin; needs a running loop."""
        self._task = asyncio.create_task(self._run(), name="gateway-upkeep")

    def serving(self) -> None:
        """Requests are taken from now on. How late the loop was while the process was still being
        put together (routes, imports) delayed nobody, and is not told."""
        self._lags.clear()
        self._due_s = asyncio.get_running_loop().time() + PERIOD_S

    async def stop(self) -> None:
        """End, and take the last events."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        self._note_events(self._service.conductor.take_events())

    @property
    def lag_s(self) -> float:
        """How late the last beat was."""
        return self._lags[-1] if self._lags else 0.0

    @property
    def worst_lag_s(self) -> float:
        """Worst of the last minute."""
        return max(self._lags, default=0.0)

    @property
    def repeated_lag_s(self) -> float:
        """Second worst of the last minute: one stall alone is over, and nobody can do a thing."""
        worst = nlargest(2, self._lags)
        return worst[1] if len(worst) == 2 else 0.0

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        self._due_s = loop.time() + PERIOD_S
        while True:
            await asyncio.sleep(max(self._due_s - loop.time(), 0.0))
            self._lags.append(max(loop.time() - self._due_s, 0.0))
            self._due_s = max(self._due_s + PERIOD_S, loop.time())
            try:
                with self._loop.round():
                    self.beat(self._service.clock.now())
            except Exception:
                # The heartbeat must not stop over one bad beat; the counter is in the metrics.
                self.failures += 1
                log.exception("upkeep failed")

    def beat(self, now: float) -> None:
        """One round at `now`."""
        service = self._service
        service.conductor.tick(now)
        self._note_events(service.conductor.take_events())
        service.lifecycle.beat(now)
        service.jobs.hurry(now)
        service.flights.sweep(now)
        service.elsewhere.expire(now)
        service.waiting.stir()
        service.conductor.index.sweep(_SWEEP_ENTRIES)
        if now >= self._sample_at_s:
            self._sample_at_s = now + SAMPLE_S
            self._sample(now)
        if self.replication.due(now):
            self.replication.sample(service.conductor.index.stats(), service.clock.wall())

    def _sample(self, now: float) -> None:
        service = self._service
        fleet = service.conductor.fleet
        load = fleet_load(fleet, service.conductor.tunables, now).load
        service.live.sample(
            now,
            load={spec.id: round(float(load[slot]), 4) for slot, spec in fleet.slots()},
            inflight=len(service.conductor.ledger.open),
            queued_tokens=float(fleet.queued_tokens.sum()),
        )

    def _note_events(self, events: Iterable[TransitionEvent]) -> None:
        service = self._service
        for event in events:
            service.counters[f"transition.{event.machine}.{event.after}"] += 1
            if event.machine == "health" and event.after == Health.DEAD and event.node:
                moved = service.flights.node_died(NodeId(event.node))
                service.counters["moved_from_dead_nodes"] += moved
            if event.machine == "hotspot" and event.after == "filtered":
                service.monitoring.fired(event.now_s)
            data = {
                "before": event.before,
                "cause": event.cause,
                "reason": event.reason,
                "actor": event.actor,
                **event.data,
            }
            if event.until_s is not None:
                data["ends_in_s"] = round(event.until_s - event.now_s, 3)
            service.record_event(f"{event.machine}.{event.after}", event.node or "", data)

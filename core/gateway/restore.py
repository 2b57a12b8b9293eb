"""Bringing back what stood when the service stopped: nodes, what operators said of them, alerts.

Nodes of the settings file come first and win over anything recorded under their id. Then come
the nodes that were registered through the API and not removed since. A node that was removed does
not come back: one of the file stays out as long as the file states it as it was then.

A record store that is away delays nothing: the file's nodes serve, and the rest is taken up once
the store can be read. Until then nothing can be changed here (`core.gateway.committed`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, get_args

from core.control.alerts import Kept, Told
from core.domain import NodeId, NodeSpec
from core.engines.addresses import addresses_of, check_allowed
from core.errors import ConductorError, StoreError
from core.gateway.standing import FLEET, KeptBreaker, Standing, breaker_from_data, from_data
from core.ports import RecordStore

if TYPE_CHECKING:
    from core.gateway.service import Service

READ_S = 5.0
"""How long the start waits for the store."""
RESTORE_S = 5.0
"""How often it is asked again where it was away."""
ALERT_EVENTS = 1000
"""So many of the last changes of alerts are read."""
_TOLD: Mapping[str, Told] = {f"alert.{what}": what for what in get_args(Told)}
log = logging.getLogger("conductor.gateway")


@dataclass(frozen=True, slots=True)
class StatedNode:
    """A node of the settings file; `discover_events` off keeps it on routing history."""

    spec: NodeSpec
    discover_events: bool = True


@dataclass(frozen=True, slots=True)
class _Found:
    specs: Mapping[NodeId, NodeSpec]
    """Nodes not removed, as they were registered."""
    standings: Mapping[NodeId, Standing]
    breaker: KeptBreaker | None
    said_at: Mapping[str, datetime]
    """When each of these was said, by its name."""
    alerts: Sequence[Kept] = ()
    """What was told of alerts, oldest first."""


class Restorer:
    """Registers the nodes of a starting service. `start` once, then `again` until `done`."""

    def __init__(self, service: Service, stated: Sequence[StatedNode]) -> None:
        self._service = service
        self._stated = stated
        self.done = False

    async def start(self) -> None:
        """Register the file's nodes, and the recorded ones where the store can be read; the records
        then tell of the start once, whatever came with it."""
        found = await self._read()
        if found is not None:
            self._service.lifecycle.heard_at.update(found.said_at)
            self._service.lifecycle.waiting.update(found.standings)
        for node in self._stated:
            await self._state(node)
        if found is not None:
            await self._take_up(found)
        facts = {"version": self._service.version, "nodes": len(self._service.conductor.fleet)}
        self._service.record_event("service.started", "", facts)

    async def again(self) -> None:
        """Try once more where the store could not be read. Raises StoreError while it is away."""
        if self.done:
            return
        found = await self._read()
        if found is None:
            raise StoreError("nodes and cordons of before the start cannot be read yet")
        lifecycle, fleet = self._service.lifecycle, self._service.conductor.fleet
        for name, at in found.said_at.items():
            lifecycle.heard_at.setdefault(name, at)
        for node, kept in found.standings.items():
            if not fleet.has(node):
                lifecycle.waiting.setdefault(node, kept)
            elif not lifecycle.standing(node).says_something:
                spec = lifecycle.stated_spec(node)
                if not kept.removed:
                    lifecycle.adopt(node, kept)
                elif kept.keeps_out(spec, "file"):
                    why = "an operator took it out before the service started"
                    await lifecycle.take_out(node, reason=why, author="conductor")
                else:
                    lifecycle.save(node)  # stated anew since
        await self._take_up(found)

    async def _state(self, node: StatedNode) -> None:
        lifecycle = self._service.lifecycle
        if lifecycle.left_out(node.spec, "file"):
            text = "node %s stays out: an operator removed it, and its settings are unchanged"
            log.warning(text, node.spec.id)
            self._service.record_event("node.left_out", node.spec.id, {"origin": "file"})
            return
        await lifecycle.add(node.spec, origin="file", discover_events=node.discover_events)

    async def _take_up(self, found: _Found) -> None:
        service = self._service
        for node, spec in found.specs.items():
            kept = found.standings.get(node)
            ours = kept is not None and kept.origin == "api" and not kept.removed
            if ours and not service.conductor.fleet.has(node):
                await self._bring_back(spec)
        switch = service.conductor.detector.breaker.switch
        if found.breaker is not None and not switch.reason:
            service.lifecycle.adopt_fleet(found.breaker)
        service.monitoring.board.restore(found.alerts, service.clock.now(), service.clock.wall())
        self.done = True
        service.jobs.drop("restore")

    async def _bring_back(self, spec: NodeSpec) -> None:
        """Register a recorded node. Its name is resolved when it is connected to, not now."""
        service = self._service
        try:
            for field, address in addresses_of(spec):
                if address.ip is not None:
                    check_allowed(address.ip, service.limits.allowed_networks, field=field)
            await service.lifecycle.join(spec, origin="api")
        except ConductorError as error:
            log.error("node %s is not brought back: %s", spec.id, error.message)
            service.record_event("node.not_restored", spec.id, {"error": error.message})
            return
        if kept := service.lifecycle.waiting.pop(spec.id, None):
            service.lifecycle.adopt(spec.id, kept)
        service.record_event("node.restored", spec.id, {"url": spec.url, "origin": "api"})

    async def _read(self) -> _Found | None:
        store = self._service.store
        if store is None:
            return _Found({}, {}, None, {})
        try:
            async with asyncio.timeout(READ_S):
                return await asyncio.to_thread(_found, store)
        except (StoreError, TimeoutError) as error:
            log.warning("recorded nodes cannot be read yet: %s", error)
            return None


def _found(store: RecordStore) -> _Found:
    """What the store has. Blocks; StoreError."""
    specs = {n.spec.id: n.spec for n in store.nodes() if n.state != "removed"}
    standings, breaker, said_at = {}, None, {}
    for record in store.standings():
        said_at[record.name] = record.at
        try:
            if record.name == FLEET:
                breaker = breaker_from_data(record.data)
            else:
                standings[NodeId(record.name)] = from_data(record.data)
        except ValueError as error:
            log.error("standing of %s cannot be read: %s", record.name, error)
    return _Found(specs, standings, breaker, said_at, _alerts(store))


def _alerts(store: RecordStore) -> list[Kept]:
    """The last changes of alerts, oldest first. Blocks; StoreError."""
    told = store.events(kind="alert.*", limit=ALERT_EVENTS)
    return [
        Kept(alert=str(e.data.get("alert", "")), at=e.at, what=what, facts=e.data)
        for e in reversed(told)
        if (what := _TOLD.get(e.kind)) is not None
    ]

"""What operators arranged through another replica: its nodes, cordons, weights, notes, breakers.

Each replica knows when the word on a node was said that is in force here (`heard_at`); the newest
word wins (`core.gateway.standing`). When the store tells that something was said, this one reads
all of it and takes over what is newer than its own word. Nothing taken over is said again, so
replicas do not answer each other. What was said before this process started is the restorer's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from core.domain import NodeId, NodeSpec
from core.engines.addresses import addresses_of, check_allowed
from core.errors import ConductorError, StoreError
from core.gateway.standing import FLEET, Standing, breaker_from_data, from_data
from core.ports import RecordStore, StandingRecord

if TYPE_CHECKING:
    from core.gateway.service import Service

TOPIC = "nodes"
"""Announced by the store with every node or standing it takes."""
log = logging.getLogger("conductor.gateway")


class Follower:
    """Takes over what other replicas' operators said."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = asyncio.Lock()

    async def follow(self, *, old_is_heard: bool = False) -> None:
        """Look once; StoreError where the store is away. old_is_heard: what was said before this
        process started was taken up, or is nothing to it, and does not speak against an act."""
        store = self._service.store
        if store is None:
            return
        async with self._lock:
            specs, found = await asyncio.to_thread(_read, store)
            for record in found:
                if self._is_news(record):
                    self._service.lifecycle.heard_at[record.name] = record.at
                    await self._take(record, specs)
                elif old_is_heard:
                    self._service.lifecycle.heard_at.setdefault(record.name, record.at)

    async def heard(self) -> None:
        """Somebody said something. A store that is away tells again when it is back."""
        try:
            await self.follow()
        except StoreError as error:
            log.warning("nodes of other replicas cannot be read: %s", error.message)

    def _is_news(self, record: StandingRecord) -> bool:
        service = self._service
        return record.at > service.lifecycle.heard_at.get(record.name, service.started_at)

    async def _take(self, record: StandingRecord, specs: Mapping[NodeId, NodeSpec]) -> None:
        service = self._service
        try:
            if record.name == FLEET:
                service.lifecycle.mirror_fleet(breaker_from_data(record.data))
            else:
                await self._node(NodeId(record.name), from_data(record.data), specs)
        except (ConductorError, ValueError) as error:
            log.error("what another replica said of %s is not followed: %s", record.name, error)
            service.counters["following.failed"] += 1
            return
        service.counters["following.taken"] += 1
        service.feed.publish("node.followed", record.name, dict(record.data), service.clock.wall())

    async def _node(self, node: NodeId, kept: Standing, specs: Mapping[NodeId, NodeSpec]) -> None:
        service, lifecycle = self._service, self._service.lifecycle
        there = service.conductor.fleet.has(node)
        if kept.removed:
            if there:
                await lifecycle.leave(node)
            lifecycle.waiting[node] = kept
        elif there:
            lifecycle.mirror(node, kept)
        elif kept.origin == "api" and node in specs:
            for field, address in addresses_of(specs[node]):
                if address.ip is not None:
                    check_allowed(address.ip, service.limits.allowed_networks, field=field)
            lifecycle.waiting.pop(node, None)
            await lifecycle.join(specs[node], origin="api")
            lifecycle.mirror(node, kept)
        else:
            lifecycle.waiting[node] = kept


def _read(store: RecordStore) -> tuple[Mapping[NodeId, NodeSpec], list[StandingRecord]]:
    """Nodes not removed, and what was said. Blocks; StoreError."""
    said = list(store.standings())
    return {n.spec.id: n.spec for n in store.nodes() if n.state != "removed"}, said

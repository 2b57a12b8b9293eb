"""The life of nodes in memory: joining, cordon, drain, weight, note, leaving.

A cordoned node takes no new requests. A drained one is cordoned and watched until the last
request on it has ended; then `node.drained` says so, once. What operators say
(`core.gateway.node_acts`) is kept as the node's standing (`core.gateway.standing`), so that it
outlives this process; what was said of a removed node is forgotten with it.

What this module keeps by itself (a node of the settings, the end of a drain) goes through the
record queue and carries the time of the operator's word that it belongs to, or the oldest time
there is: no store lets it replace a later word of an operator, from whichever replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from core import wire
from core.domain import NodeId, NodeSpec
from core.engines.addresses import check_trusted
from core.gateway.admission import check_addresses
from core.gateway.standing import (
    KeptBreaker,
    KeptCordon,
    KeptNote,
    Origin,
    Standing,
    digest,
    kept_breaker,
    removed,
    same_breaker,
)

if TYPE_CHECKING:
    from core.gateway.service import Service

OPERATOR = "operator"
"""Actor of an act whose author did not give a name."""
UNSAID = datetime(1970, 1, 1, tzinfo=UTC)
"""Time of what is kept of a node of which no operator has said anything."""


@dataclass(slots=True, kw_only=True)
class Cordon:
    """Why and since when a node takes no new requests. `draining`: its end is waited for."""

    draining: bool
    since: datetime
    since_s: float
    reason: str
    actor: str
    running_at_start: int
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Stated:
    """A node as it was stated: by whom, and before discovery completed it."""

    origin: Origin
    spec: NodeSpec


class Lifecycle:
    """The nodes that are there, and how each of them stands."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._stated: dict[NodeId, Stated] = {}
        self._cordons: dict[NodeId, Cordon] = {}
        self._notes: dict[NodeId, KeptNote] = {}
        self._weights: dict[NodeId, float] = {}
        self._saved: set[NodeId] = set()
        self._removals: set[asyncio.Task[None]] = set()
        self.heard_at: dict[str, datetime] = {}
        """Time of the newest word on a node, or on the whole fleet, that is in force here."""
        self._being_said: set[str] = set()
        self._late: set[str] = set()
        """Names of which something was to be kept while a word on them was being stored."""
        self.waiting: dict[NodeId, Standing] = {}
        """Standings of nodes that are not there (any more, or not yet)."""

    # -- joining and leaving ---------------------------------------------------------------

    async def add(self, spec: NodeSpec, *, origin: Origin, discover_events: bool = True) -> None:
        """Register a node that no operator registers. Conflict for a known id, Invalid or
        Forbidden for its address. What operators said of it holds, unless it publishes.
        """
        service = self._service
        if origin in ("file", "dns"):
            check_trusted(spec)
            service.guard.trust(spec)
        else:
            await check_addresses(spec, service.limits.allowed_networks)
        await self.join(spec, origin=origin, discover_events=discover_events)
        kept = self.waiting.pop(spec.id, None)
        if kept is not None and not kept.removed and origin != "publisher":
            self.adopt(spec.id, kept)
        self.save(spec.id)
        service.record_event("node.registered", spec.id, {"url": spec.url, "origin": origin})

    def left_out(self, spec: NodeSpec, origin: Origin) -> bool:
        """Whether an operator took this node out, and nobody stated it anew since."""
        kept = self.waiting.get(spec.id)
        return kept is not None and kept.keeps_out(spec, origin)

    async def join(self, spec: NodeSpec, *, origin: Origin, discover_events: bool = True) -> None:
        """Register a node whose addresses were checked, without a word in the records."""
        service = self._service
        if service.fleet is not None:
            await service.fleet.add(spec, discover_events=discover_events)
        else:
            service.conductor.register(spec, service.clock.now())
        self._stated[spec.id] = Stated(origin, spec)

    async def take_out(self, node: NodeId, *, reason: str, author: str) -> None:
        """Take a node out that an operator took out before, or whose publisher left; requests on
        it go on. NotFound for an unknown id."""
        running, kept = self.running(node), removed(self.standing(node))
        self._record(node, "removed")
        await self.leave(node)
        self.waiting[node] = kept
        self._keep(node, kept.data())
        self._tell("node.removed", node, reason, author, {"running": running})

    async def vanish(self, node: NodeId, cause: str) -> None:
        """A node's address is not there any more: it leaves, and may come back as it was."""
        kept, running = self.standing(node), self.running(node)
        self._record(node, "removed")
        await self.leave(node)
        if kept.says_something:
            self.waiting[node] = kept
        self._service.record_event("node.vanished", node, {"cause": cause, "running": running})

    async def leave(self, node: NodeId) -> None:
        """Take a node out without a word in the records."""
        service = self._service
        if service.fleet is not None:
            await service.fleet.remove(node)
        else:
            service.conductor.remove(node, service.clock.now())
        self._forget(node)
        self._stated.pop(node, None)
        service.indexer.forget(node)

    # -- cordon, drain, weight, note ---------------------------------------------------------

    def set_cordon(self, node: NodeId, kept: KeptCordon | None) -> None:
        """Place nothing more on a node, or place requests on it again. NotFound."""
        service = self._service
        now, running = service.clock.now(), self.running(node)
        service.conductor.drain(node, kept is not None, now)
        if kept is None:
            self._cordons.pop(node, None)
            return
        self._cordons[node] = Cordon(
            draining=kept.draining,
            since=kept.since,
            since_s=now - (service.clock.wall() - kept.since).total_seconds(),
            reason=kept.reason,
            actor=kept.actor,
            running_at_start=running,
            finished_at=kept.finished_at,
        )

    def set_note(self, node: NodeId, kept: KeptNote | None) -> None:
        """Keep a note, or none."""
        if kept is None:
            self._notes.pop(node, None)
        else:
            self._notes[node] = kept

    def set_weight(self, node: NodeId, weight: float) -> None:
        """An operator's weight. NotFound."""
        service, spec = self._service, self._service.conductor.fleet.spec(node)
        if service.fleet is not None:
            service.fleet.weigh(spec.id, weight)
        service.conductor.update_spec(replace(spec, weight=weight), service.clock.now())
        self._weights[spec.id] = weight

    def beat(self, now: float) -> None:
        """See which drains are done, whose standings can be taken up, and who left."""
        service = self._service
        fleet = service.conductor.fleet
        for node in [n for n in (*self._cordons, *self._notes) if not fleet.has(n)]:
            self._forget(node)
        for node in [n for n in self.waiting if fleet.has(n)]:
            self.adopt(node, self.waiting.pop(node))
        for node, cordon in self._cordons.items():
            if not cordon.draining or cordon.finished_at is not None or self.running(node):
                continue
            cordon.finished_at = service.clock.wall()
            took = {"seconds": round(now - cordon.since_s, 3), "ran": cordon.running_at_start}
            self._tell("node.drained", node, cordon.reason, cordon.actor, took)
            self.save(node)

    # -- what outlives the process ---------------------------------------------------------

    def standing(self, node: NodeId) -> Standing:
        """What operators last said of a registered node."""
        service, cordon = self._service, self._cordons.get(node)
        fleet = service.conductor.fleet
        spec = fleet.spec(node)
        stated = self._stated.get(node) or Stated("rank", spec)
        now, at = service.clock.now(), service.clock.wall()
        kept = None
        if cordon is not None:
            kept = KeptCordon(
                draining=cordon.draining,
                since=cordon.since,
                reason=cordon.reason,
                actor=cordon.actor,
                finished_at=cordon.finished_at,
            )
        return Standing(
            origin=stated.origin,
            stated=digest(stated.spec) if stated.origin == "file" else "",
            stated_weight=stated.spec.weight,
            weight=self._weights.get(node),
            cordon=kept,
            note=self._notes.get(node),
            breaker=kept_breaker(service.conductor.breakers.switch(fleet.slot(node)), now, at),
        )

    def adopt(self, node: NodeId, kept: Standing) -> None:
        """Take up what an earlier process, or this one before the node left, kept of it."""
        service = self._service
        if kept.removed:
            why = "an operator took it out"
            task = asyncio.create_task(self.take_out(node, reason=why, author="conductor"))
            self._removals.add(task)
            task.add_done_callback(self._removals.discard)
            return
        spec = service.conductor.fleet.spec(node)
        if kept.weighed(spec) != spec and kept.weight is not None:
            self.set_weight(node, kept.weight)
        if kept.note is not None:
            self.set_note(node, kept.note)
        if kept.cordon is not None:
            self.set_cordon(node, kept.cordon)
        if kept.breaker is not None:
            self._adopt_breaker(node, kept.breaker)

    def mirror(self, node: NodeId, kept: Standing) -> None:
        """Make a node stand as another replica's operator left it; nothing is said again."""
        service, ours = self._service, self.standing(node)
        now = service.clock.now()
        same = ours.cordon is not None and kept.cordon is not None
        if same and ours.cordon.since == kept.cordon.since:  # type: ignore[union-attr]
            # Each replica waits for its own requests: when they ended is its own to say.
            kept = msgspec.structs.replace(kept, cordon=ours.cordon)
        if same_breaker(ours.breaker, kept.breaker):
            kept = msgspec.structs.replace(kept, breaker=None)
            ours = msgspec.structs.replace(ours, breaker=None)
        if kept.cordon is None and ours.cordon is not None:
            self.set_cordon(node, None)
        if kept.weight is None and ours.weight is not None:
            self.set_weight(node, ours.stated_weight)
            self._weights.pop(node)
        if kept.note is None:
            self.set_note(node, None)
        if kept.breaker is None and ours.breaker is not None:
            slot = service.conductor.fleet.slot(node)
            for event in service.conductor.breakers.reset(
                slot, now, reason="reset through another replica", actor=OPERATOR
            ):
                service.conductor.note(event)
        self.adopt(node, kept)

    def mirror_fleet(self, kept: KeptBreaker | None) -> None:
        """The same for the global breaker; None: nobody holds it any more."""
        service = self._service
        if kept is not None:
            self.adopt_fleet(kept)
            return
        for event in service.conductor.detector.breaker.reset(
            service.clock.now(), reason="reset through another replica", actor=OPERATOR
        ):
            service.conductor.note(event)

    def _adopt_breaker(self, node: NodeId, kept: KeptBreaker) -> None:
        service = self._service
        now, left_s = service.clock.now(), kept.left_s(service.clock.wall())
        if left_s == 0.0:
            return
        board, slot = service.conductor.breakers, service.conductor.fleet.slot(node)
        if kept.state == "tripped":
            events = board.trip(slot, now, reason=kept.reason, actor=kept.actor, for_s=left_s)
        else:
            events = board.reset(slot, now, reason=kept.reason, actor=kept.actor, hold_s=left_s)
        for event in events:
            service.conductor.note(event)

    def adopt_fleet(self, kept: KeptBreaker) -> None:
        """Take up an operator's hold of the global breaker."""
        service, breaker = self._service, self._service.conductor.detector.breaker
        now, left_s = service.clock.now(), kept.left_s(service.clock.wall())
        if left_s == 0.0:
            return
        if kept.state == "tripped":
            events = breaker.trip(now, reason=kept.reason, actor=kept.actor, for_s=left_s)
        else:
            events = breaker.reset(now, reason=kept.reason, actor=kept.actor, hold_s=left_s)
        for event in events:
            service.conductor.note(event)

    def save(self, node: NodeId) -> None:
        """Keep how the node stands now."""
        self._record(node, "draining" if node in self._cordons else "active")
        kept = self.standing(node)
        if kept.origin != "dns" or kept.says_something or node in self._saved:
            # Names of discovered nodes come and go; only what was said of one is worth a row.
            self._saved.add(node)
            self._keep(node, kept.data())

    # -- views -----------------------------------------------------------------------------

    def stated_spec(self, node: NodeId) -> NodeSpec:
        """A registered node as it was stated, before discovery."""
        stated = self._stated.get(node)
        return self._service.conductor.fleet.spec(node) if stated is None else stated.spec

    def origin(self, node: NodeId) -> str:
        """Where the node came from: file, api, dns, publisher, or rank of a server."""
        stated = self._stated.get(node)
        return "rank" if stated is None else stated.origin

    def note(self, node: NodeId) -> wire.NoteView | None:
        """The maintenance note of a node."""
        kept = self._notes.get(node)
        return (
            None if kept is None else wire.NoteView(text=kept.text, author=kept.author, at=kept.at)
        )

    def drain_view(self, node: NodeId) -> wire.DrainView | None:
        """How far a cordon or drain has come; None where requests are placed."""
        cordon = self._cordons.get(node)
        if cordon is None:
            return None
        done = cordon.finished_at is not None
        return wire.DrainView(
            state="drained" if done else "draining" if cordon.draining else "cordoned",
            since=cordon.since,
            reason=cordon.reason,
            actor=cordon.actor,
            running=self.running(node),
            running_at_start=cordon.running_at_start,
            done=done,
            finished_at=cordon.finished_at,
        )

    # -- small things ----------------------------------------------------------------------

    def running(self, node: NodeId) -> int:
        """Requests in flight on a node. NotFound."""
        conductor = self._service.conductor
        return conductor.ledger.inflight(conductor.fleet.slot(node))

    def _forget(self, node: NodeId) -> None:
        self._cordons.pop(node, None)
        self._notes.pop(node, None)
        self._weights.pop(node, None)
        self._saved.discard(node)

    def _tell(
        self, kind: str, node: NodeId, reason: str, author: str, data: Mapping[str, object]
    ) -> None:
        who = {"reason": reason, "actor": author.strip() or OPERATOR}
        self._service.record_event(kind, node, {**who, **data})

    def registration(self, node: NodeId) -> NodeSpec:
        """A registered node as it was stated, with the weight of now."""
        spec = self._service.conductor.fleet.spec(node)
        stated = self._stated.get(node)
        return spec if stated is None else replace(stated.spec, weight=spec.weight)

    def _record(self, node: NodeId, state: str) -> None:
        service = self._service
        if service.recorder is not None:
            service.recorder.node(self.registration(node), state, service.clock.wall())

    @contextmanager
    def saying(self, name: str) -> Iterator[None]:
        """While a word is stored and then done. What this process keeps of it meanwhile (the end
        of a drain) does not know the word yet, and would replace it: it is kept afterwards."""
        self._being_said.add(name)
        try:
            yield
        finally:
            self._being_said.discard(name)
            if name in self._late:
                self._late.discard(name)
                if self._service.conductor.fleet.has(NodeId(name)):
                    self.save(NodeId(name))

    def _keep(self, name: str, data: Mapping[str, object]) -> None:
        if name in self._being_said:
            self._late.add(name)
        elif self._service.recorder is not None:
            at = self.heard_at.get(name, UNSAID)
            self._service.recorder.standing(name, data, at)

"""The life of nodes as operators steer it: joining, cordon, drain, weight, note, leaving.

A cordoned node takes no new requests. A drained one is cordoned and watched until the last
request on it has ended; then `node.drained` says so, once. What operators say is kept as the
node's standing (`core.gateway.standing`), so that it outlives this process; what was said of a
removed node is forgotten with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from core import wire
from core.domain import NodeId, NodeSpec
from core.engines.addresses import check_trusted
from core.errors import Conflict, Invalid
from core.gateway.admission import check_addresses
from core.gateway.standing import (
    FLEET,
    KeptBreaker,
    KeptCordon,
    KeptNote,
    Origin,
    Standing,
    as_data,
    digest,
    kept_breaker,
    removed,
)

if TYPE_CHECKING:
    from core.gateway.service import Service

OPERATOR = "operator"
"""Actor of an act whose author did not give a name."""


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
    """Acts on nodes, each recorded with who and why, and what they left standing."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._stated: dict[NodeId, Stated] = {}
        self._cordons: dict[NodeId, Cordon] = {}
        self._notes: dict[NodeId, KeptNote] = {}
        self._weights: dict[NodeId, float] = {}
        self._saved: set[NodeId] = set()
        self._removals: set[asyncio.Task[None]] = set()
        self.said_at: dict[str, datetime] = {}
        """When this process last said something of a node, or of the whole fleet."""
        self.waiting: dict[NodeId, Standing] = {}
        """Standings of nodes that are not there (any more, or not yet)."""

    # -- joining and leaving ---------------------------------------------------------------

    async def add(
        self, spec: NodeSpec, *, origin: Origin = "api", discover_events: bool = True
    ) -> None:
        """Register a node. Conflict for a known id, Invalid or Forbidden for its address.

        Where an operator registers it, it starts afresh; else what was said of it holds.
        """
        service = self._service
        if origin in ("file", "dns"):
            check_trusted(spec)
            service.guard.trust(spec)
        else:
            await check_addresses(spec, service.limits.allowed_networks)
        await self.join(spec, origin=origin, discover_events=discover_events)
        kept = self.waiting.pop(spec.id, None)
        if kept is not None and not kept.removed and origin not in ("api", "publisher"):
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

    async def remove(self, node: NodeId, *, reason: str = "", author: str = "") -> None:
        """Take a node out for good; requests on it go on. NotFound for an unknown id."""
        service = self._service
        service.conductor.fleet.slot(node)
        kept = removed(self.standing(node))
        running = self._running(node)
        self._record(node, "removed")
        await self.leave(node)
        self.waiting[node] = kept
        self._keep(node, kept.data())
        self._note_act("node.removed", node, reason, author, {"running": running})

    async def vanish(self, node: NodeId, cause: str) -> None:
        """A node's address is not there any more: it leaves, and may come back as it was."""
        kept, running = self.standing(node), self._running(node)
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

    # -- cordon and drain ------------------------------------------------------------------

    def cordon(self, node: NodeId, *, drain: bool, reason: str = "", author: str = "") -> None:
        """Place nothing more on a node; with `drain` its last request is waited for.

        A cordoned node can go on to a drain; a drain asked for again changes nothing.
        """
        service, known = self._service, self._cordons.get(node)
        service.conductor.fleet.slot(node)
        if known is not None and known.draining >= drain:
            return
        now, running = service.clock.now(), self._running(node)
        service.conductor.drain(node, True, now)
        self._cordons[node] = Cordon(
            draining=drain,
            since=service.clock.wall(),
            since_s=now,
            reason=reason,
            actor=author.strip() or OPERATOR,
            running_at_start=running,
        )
        self.save(node)
        kind = "node.draining" if drain else "node.cordoned"
        self._note_act(kind, node, reason, author, {"running": running})
        self.beat(now)

    def resume(self, node: NodeId, *, reason: str = "", author: str = "") -> None:
        """Place requests on the node again."""
        service = self._service
        spec = service.conductor.fleet.spec(node)
        if not service.conductor.fleet.draining[service.conductor.fleet.slot(node)]:
            return
        if not spec.url:
            raise Conflict(f"node {node!r} has no address to send requests to", field="node")
        self._cordons.pop(node, None)
        service.conductor.drain(node, False, service.clock.now())
        self.save(node)
        self._note_act("node.resumed", node, reason, author, {})

    def beat(self, now: float) -> None:
        """See which drains are done, whose standings can be taken up, and who left."""
        service = self._service
        fleet = service.conductor.fleet
        for node in [n for n in (*self._cordons, *self._notes) if not fleet.has(n)]:
            self._forget(node)
        for node in [n for n in self.waiting if fleet.has(n)]:
            self.adopt(node, self.waiting.pop(node))
        for node, cordon in self._cordons.items():
            if not cordon.draining or cordon.finished_at is not None or self._running(node):
                continue
            cordon.finished_at = service.clock.wall()
            took = {"seconds": round(now - cordon.since_s, 3), "ran": cordon.running_at_start}
            self._note_act("node.drained", node, cordon.reason, cordon.actor, took)
            self.save(node)

    # -- weight and note -------------------------------------------------------------------

    def change(self, node: NodeId, asked: wire.NodeChange, *, author: str = "") -> None:
        """Set a node's weight or note; an empty note clears it. Invalid names the field."""
        service = self._service
        spec = service.conductor.fleet.spec(node)
        if asked.weight is None and asked.note is None:
            raise Invalid("weight: give a weight, a note, or both", field="weight")
        data: dict[str, object] = {}
        if asked.weight is not None and asked.weight != spec.weight:
            data["weight"] = [spec.weight, asked.weight]
            self._weigh(spec, asked.weight)
        if asked.note is not None:
            data["note"] = asked.note
            self._set_note(node, asked.note.strip(), author)
        if data:
            self.save(node)
            self._note_act("node.changed", node, asked.reason, author, data)

    def _weigh(self, spec: NodeSpec, weight: float) -> None:
        service = self._service
        if service.fleet is not None:
            service.fleet.weigh(spec.id, weight)
        service.conductor.update_spec(replace(spec, weight=weight), service.clock.now())
        self._weights[spec.id] = weight

    def _set_note(self, node: NodeId, text: str, author: str) -> None:
        if text:
            actor, at = author.strip() or OPERATOR, self._service.clock.wall()
            self._notes[node] = KeptNote(text=text, author=actor, at=at)
        else:
            self._notes.pop(node, None)

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
            task = asyncio.create_task(self.remove(node, reason=why, author="conductor"))
            self._removals.add(task)
            task.add_done_callback(self._removals.discard)
            return
        now, spec = service.clock.now(), service.conductor.fleet.spec(node)
        if kept.weighed(spec) != spec and kept.weight is not None:
            self._weigh(spec, kept.weight)
        if kept.note is not None:
            self._notes[node] = kept.note
        if kept.cordon is not None:
            since_s = now - (service.clock.wall() - kept.cordon.since).total_seconds()
            service.conductor.drain(node, True, now)
            self._cordons[node] = Cordon(
                draining=kept.cordon.draining,
                since=kept.cordon.since,
                since_s=since_s,
                reason=kept.cordon.reason,
                actor=kept.cordon.actor,
                running_at_start=0,
                finished_at=kept.cordon.finished_at,
            )
        if kept.breaker is not None:
            self._adopt_breaker(node, kept.breaker)

    def mirror(self, node: NodeId, kept: Standing) -> None:
        """Make a node stand as another replica's operator left it; nothing is said again."""
        service, ours = self._service, self.standing(node)
        now, spec = service.clock.now(), service.conductor.fleet.spec(node)
        same = ours.cordon is not None and kept.cordon is not None
        if same and ours.cordon.since == kept.cordon.since:  # type: ignore[union-attr]
            # Each replica waits for its own requests: when they ended is its own to say.
            kept = msgspec.structs.replace(kept, cordon=ours.cordon)
        if kept.cordon is None and ours.cordon is not None:
            self._cordons.pop(node)
            service.conductor.drain(node, False, now)
        if kept.weight is None and ours.weight is not None:
            self._weigh(spec, ours.stated_weight)
            self._weights.pop(node)
        if kept.note is None:
            self._notes.pop(node, None)
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

    def save_fleet(self) -> None:
        """Keep how the global breaker stands now."""
        service = self._service
        switch = service.conductor.detector.breaker.switch
        kept = kept_breaker(switch, service.clock.now(), service.clock.wall())
        self._keep(FLEET, {} if kept is None else as_data(kept))

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
            running=self._running(node),
            running_at_start=cordon.running_at_start,
            done=done,
            finished_at=cordon.finished_at,
        )

    # -- small things ----------------------------------------------------------------------

    def _running(self, node: NodeId) -> int:
        conductor = self._service.conductor
        return conductor.ledger.inflight(conductor.fleet.slot(node))

    def _forget(self, node: NodeId) -> None:
        self._cordons.pop(node, None)
        self._notes.pop(node, None)
        self._weights.pop(node, None)
        self._saved.discard(node)

    def _note_act(
        self, kind: str, node: NodeId, reason: str, author: str, data: Mapping[str, object]
    ) -> None:
        who = {"reason": reason, "actor": author.strip() or OPERATOR}
        self._service.record_event(kind, node, {**who, **data})

    def _record(self, node: NodeId, state: str) -> None:
        """Keep the node as it was stated, with the weight of now."""
        service = self._service
        if service.recorder is None:
            return
        spec = service.conductor.fleet.spec(node)
        stated = self._stated.get(node)
        kept = spec if stated is None else replace(stated.spec, weight=spec.weight)
        service.recorder.node(kept, state, service.clock.wall())

    def _keep(self, name: str, data: Mapping[str, object]) -> None:
        at = self._service.clock.wall()
        self.said_at[name] = at
        if self._service.recorder is not None:
            self._service.recorder.standing(name, data, at)

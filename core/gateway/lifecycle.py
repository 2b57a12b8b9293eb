"""The life of nodes as operators steer it: joining, cordon, drain, weight, note, leaving.

A cordoned node takes no new requests. A drained one is cordoned and watched until the last
request on it has ended; then `node.drained` says so, once. Nothing here survives the node: what
was said of a removed one is forgotten with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from core import wire
from core.domain import NodeId, NodeSpec
from core.errors import Conflict, Invalid
from core.gateway.admission import check_addresses

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


class Lifecycle:
    """Acts on nodes, each recorded with who and why, and what they left standing."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._cordons: dict[NodeId, Cordon] = {}
        self._notes: dict[NodeId, wire.NoteView] = {}

    # -- joining and leaving ---------------------------------------------------------------

    async def add(self, spec: NodeSpec) -> None:
        """Register a node. Conflict for a known id, Invalid or Forbidden for its address."""
        service = self._service
        await check_addresses(spec, service.limits.allowed_networks)
        if service.fleet is not None:
            await service.fleet.add(spec)
        else:
            service.conductor.register(spec, service.clock.now())
        self._record(spec, "active")
        service.record_event("node.registered", spec.id, {"url": spec.url})

    async def remove(self, node: NodeId, *, reason: str = "", author: str = "") -> None:
        """Take a node out for good; requests on it go on. NotFound for an unknown id."""
        service = self._service
        spec = service.conductor.fleet.spec(node)
        running = self._running(node)
        if service.fleet is not None:
            await service.fleet.remove(node)
        else:
            service.conductor.remove(node, service.clock.now())
        self._forget(node)
        service.indexer.forget(node)
        self._record(spec, "removed")
        self._note_act("node.removed", node, reason, author, {"running": running})

    # -- cordon and drain ------------------------------------------------------------------

    def cordon(self, node: NodeId, *, drain: bool, reason: str = "", author: str = "") -> None:
        """Place nothing more on a node; with `drain` its last request is waited for.

        A cordoned node can go on to a drain; a drain asked for again changes nothing.
        """
        service, known = self._service, self._cordons.get(node)
        spec = service.conductor.fleet.spec(node)
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
        self._record(spec, "draining")
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
        self._record(spec, "active")
        self._note_act("node.resumed", node, reason, author, {})

    def beat(self, now: float) -> None:
        """See which drains are done, and forget nodes that left by other ways."""
        service = self._service
        fleet = service.conductor.fleet
        for node in [n for n in (*self._cordons, *self._notes) if not fleet.has(n)]:
            self._forget(node)
        for node, cordon in self._cordons.items():
            if not cordon.draining or cordon.finished_at is not None or self._running(node):
                continue
            cordon.finished_at = service.clock.wall()
            took = {"seconds": round(now - cordon.since_s, 3), "ran": cordon.running_at_start}
            self._note_act("node.drained", node, cordon.reason, cordon.actor, took)

    # -- weight and note -------------------------------------------------------------------

    def change(self, node: NodeId, asked: wire.NodeChange) -> None:
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
            self._set_note(node, asked.note.strip(), asked.author)
        if data:
            self._note_act("node.changed", node, asked.reason, asked.author, data)

    def _weigh(self, spec: NodeSpec, weight: float) -> None:
        service = self._service
        if service.fleet is not None:
            service.fleet.weigh(spec.id, weight)
        service.conductor.update_spec(replace(spec, weight=weight), service.clock.now())
        self._record(replace(spec, weight=weight), self._state(spec.id))

    def _set_note(self, node: NodeId, text: str, author: str) -> None:
        if text:
            actor, at = author.strip() or OPERATOR, self._service.clock.wall()
            self._notes[node] = wire.NoteView(text=text, author=actor, at=at)
        else:
            self._notes.pop(node, None)

    # -- views -----------------------------------------------------------------------------

    def note(self, node: NodeId) -> wire.NoteView | None:
        """The maintenance note of a node."""
        return self._notes.get(node)

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

    def _state(self, node: NodeId) -> str:
        return "draining" if node in self._cordons else "active"

    def _forget(self, node: NodeId) -> None:
        self._cordons.pop(node, None)
        self._notes.pop(node, None)

    def _note_act(
        self, kind: str, node: NodeId, reason: str, author: str, data: Mapping[str, object]
    ) -> None:
        who = {"reason": reason, "actor": author.strip() or OPERATOR}
        self._service.record_event(kind, node, {**who, **data})

    def _record(self, spec: NodeSpec, state: str) -> None:
        if self._service.recorder is not None:
            self._service.recorder.node(spec, state, self._service.clock.wall())

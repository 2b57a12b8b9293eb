"""What operators do to nodes and breakers: each act is stored with its entry, then it is done.

Every method checks the act as things stand, has its word on the node stored
(`core.gateway.committed`), and only then changes what is in memory. StoreError: nothing changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from core import wire
from core.domain import NodeId, NodeSpec
from core.errors import Conflict, Invalid
from core.gateway import overview
from core.gateway.admission import check_addresses
from core.gateway.audited import asked_facts
from core.gateway.committed import Act, Cause, Word
from core.gateway.lifecycle import OPERATOR
from core.gateway.standing import KeptCordon, KeptNote, Standing, removed
from core.roster import check_spec, node_cost

if TYPE_CHECKING:
    from core.gateway.service import Service

Do = Callable[[], Awaitable[None]]
Event = tuple[str, str, Mapping[str, Any]]
"""Kind, node and data."""


def node_facts(service: Service, node: NodeId) -> dict[str, Any]:
    """What operators can change of a node, as it is now. NotFound."""
    view = overview.node_view(service, node)
    return {
        "placing": "yes" if view.drain is None else view.drain.state,
        "breaker": view.breaker.state,
        "weight": view.weight,
        "note": "" if view.note is None else view.note.text,
    }


class NodeActs:
    """Acts on nodes, each recorded with who and why; one a service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    # -- joining and leaving ---------------------------------------------------------------

    async def register(self, spec: NodeSpec, *, asked: Mapping[str, Any] | None = None) -> None:
        """Add a node; it starts afresh, whatever was said of it before. Conflict for a known id,
        Invalid or Forbidden for its address. asked: for the audit."""
        service = self._service
        cause = Cause(action="node.register", target=spec.id, after=asked)
        async with service.committer.refusals(cause):
            await check_addresses(spec, service.limits.allowed_networks)

        def check() -> Act:
            check_spec(spec)
            node_cost(spec)
            if service.conductor.fleet.has(spec.id):
                raise Conflict(f"node {spec.id!r} is registered already", field="id")
            kept = Standing(origin="api", stated_weight=spec.weight)
            event = ("node.registered", spec.id, {"url": spec.url, "origin": "api"})
            return Act(word=_word(spec.id, kept, spec), events=(event,), do=join)

        async def join() -> None:
            service.lifecycle.waiting.pop(spec.id, None)
            await service.lifecycle.join(spec, origin="api")

        await service.committer.run(cause, check)

    async def remove(self, node: NodeId, *, reason: str = "", author: str = "") -> None:
        """Take a node out for good; requests on it go on. NotFound for an unknown id."""
        lifecycle = self._service.lifecycle

        def check() -> Act:
            kept = removed(lifecycle.standing(node))
            facts = _who(reason, author, running=lifecycle.running(node))

            async def leave() -> None:
                if self._service.conductor.fleet.has(node):
                    await lifecycle.leave(node)
                lifecycle.waiting[node] = kept

            word = _word(node, kept, lifecycle.registration(node), state="removed")
            return self._act(node, leave, word, ("node.removed", node, facts))

        await self.run("node.remove", node, reason, None, check)

    # -- cordon and drain ------------------------------------------------------------------

    async def cordon(
        self, node: NodeId, *, drain: bool, reason: str = "", author: str = ""
    ) -> None:
        """Place nothing more on a node; with `drain` its last request is waited for.

        A cordoned node can go on to a drain; a drain asked for again changes nothing.
        """
        service, lifecycle = self._service, self._service.lifecycle

        def check() -> Act:
            now = lifecycle.standing(node)
            if now.cordon is not None and now.cordon.draining >= drain:
                return self._act(node, _done, None)
            actor, at = author.strip() or OPERATOR, service.clock.wall()
            cordon = KeptCordon(draining=drain, since=at, reason=reason, actor=actor)
            kind = "node.draining" if drain else "node.cordoned"
            facts = _who(reason, author, running=lifecycle.running(node))

            def place() -> None:
                lifecycle.set_cordon(node, cordon)
                lifecycle.beat(service.clock.now())

            kept = msgspec.structs.replace(now, cordon=cordon)
            return self.said(node, kept, place, (kind, node, facts))

        await self.run("node.drain" if drain else "node.cordon", node, reason, None, check)

    async def resume(self, node: NodeId, *, reason: str = "", author: str = "") -> None:
        """Place requests on the node again. Conflict for one without an address."""
        fleet, lifecycle = self._service.conductor.fleet, self._service.lifecycle

        def check() -> Act:
            if not fleet.draining[fleet.slot(node)]:
                return self._act(node, _done, None)
            if not fleet.spec(node).url:
                raise Conflict(f"node {node!r} has no address to send requests to", field="node")
            kept = msgspec.structs.replace(lifecycle.standing(node), cordon=None)
            event = ("node.resumed", node, _who(reason, author))
            return self.said(node, kept, lambda: lifecycle.set_cordon(node, None), event)

        await self.run("node.resume", node, reason, None, check)

    # -- weight and note -------------------------------------------------------------------

    async def change(self, node: NodeId, asked: wire.NodeChange, *, author: str = "") -> None:
        """Set a node's weight or note; an empty note clears it. Invalid names the field."""
        lifecycle = self._service.lifecycle

        def check() -> Act:
            spec, now = self._service.conductor.fleet.spec(node), lifecycle.standing(node)
            if asked.weight is None and asked.note is None:
                raise Invalid("weight: give a weight, a note, or both", field="weight")
            kept, data = self._changed(spec, now, asked, author)
            if not data:
                return self._act(node, _done, None)

            def put() -> None:
                if "weight" in data and kept.weight is not None:
                    lifecycle.set_weight(node, kept.weight)
                lifecycle.set_note(node, kept.note)

            event = ("node.changed", node, _who(asked.reason, author, **data))
            return self.said(node, kept, put, event)

        await self.run("node.change", node, asked.reason, asked_facts(asked), check)

    def _changed(
        self, spec: NodeSpec, now: Standing, asked: wire.NodeChange, author: str
    ) -> tuple[Standing, dict[str, Any]]:
        """How the node would stand, and what of it is new."""
        data: dict[str, Any] = {}
        if asked.weight is not None and asked.weight != spec.weight:
            data["weight"] = [spec.weight, asked.weight]
            now = msgspec.structs.replace(now, weight=asked.weight)
        if asked.note is not None:
            data["note"], text = asked.note, asked.note.strip()
            actor, at = author.strip() or OPERATOR, self._service.clock.wall()
            note = KeptNote(text=text, author=actor, at=at) if text else None
            now = msgspec.structs.replace(now, note=note)
        return now, data

    # -- inside ----------------------------------------------------------------------------

    async def run(
        self,
        action: str,
        node: NodeId,
        reason: str,
        after: Mapping[str, Any] | None,
        check: Callable[[], Act],
    ) -> None:
        """Carry an act on a node out. NotFound for an unknown one, without an entry."""
        self._service.conductor.fleet.slot(node)
        cause = Cause(action=action, target=node, reason=reason, after=after)
        await self._service.committer.run(cause, check)

    def said(self, node: NodeId, kept: Standing, put: Callable[[], None], event: Event) -> Act:
        """An act that leaves the node standing as `kept`, by `put`."""
        lifecycle = self._service.lifecycle

        async def do() -> None:
            if self._service.conductor.fleet.has(node):
                put()
            else:  # it left meanwhile, and may come back
                lifecycle.waiting[node] = kept

        spec = lifecycle.registration(node)
        if kept.weight is not None:
            spec = replace(spec, weight=kept.weight)
        state = "active" if kept.cordon is None else "draining"
        return self._act(node, do, _word(node, kept, spec, state=state), event)

    def _act(
        self,
        node: NodeId,
        do: Callable[[], Awaitable[None]],
        word: Word | None,
        *events: tuple[str, str, Any],
    ) -> Act:
        return Act(do=do, word=word, events=events, before=node_facts(self._service, node))


async def _done() -> None:
    """It is so already."""


def _word(node: NodeId, kept: Standing, spec: NodeSpec, *, state: str = "active") -> Word:
    return Word(name=node, data=kept.data(), spec=spec, state=state)


def _who(reason: str, author: str, **data: object) -> dict[str, object]:
    return {"reason": reason, "actor": author.strip() or OPERATOR, **data}

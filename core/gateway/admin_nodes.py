"""Admin routes of nodes and breakers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query

from core import wire
from core.domain import EventEndpoints, NodeId, NodeSpec, Place
from core.gateway import overview
from core.gateway.audited import asked_facts
from core.gateway.breaker_acts import switch_global, switch_node
from core.gateway.views import breaker_view
from core.identity.principal import author as acting

if TYPE_CHECKING:
    from core.gateway.service import Service

DEFAULT_BLOCK_SIZE = 16
Short = Annotated[str, Query(max_length=500)]


def node_routes(service: Service) -> APIRouter:
    """All routes, to be mounted under the API's prefix."""
    router = APIRouter(tags=["nodes"])

    @router.get("/nodes")
    async def nodes() -> wire.NodeList:
        return wire.NodeList(nodes=overview.node_views(service))

    @router.post("/nodes", status_code=201)
    async def register(asked: wire.NodeRegistration) -> wire.NodeView:
        await service.node_acts.register(_spec(asked), asked=asked_facts(asked))
        return overview.node_view(service, NodeId(asked.id))

    @router.get("/nodes/{node}")
    async def one(node: str) -> wire.NodeView:
        return overview.node_view(service, NodeId(node))

    @router.patch("/nodes/{node}")
    async def change(node: str, asked: wire.NodeChange) -> wire.NodeView:
        await service.node_acts.change(NodeId(node), asked, author=acting(asked.author))
        return overview.node_view(service, NodeId(node))

    @router.delete("/nodes/{node}")
    async def remove(node: str, reason: Short = "", author: Short = "") -> wire.Done:
        await service.node_acts.remove(NodeId(node), reason=reason, author=acting(author))
        return wire.Done(message=f"{node} is removed; requests on it go on")

    _cordon_routes(router, service)
    _breaker_routes(router, service)
    return router


def _breaker_routes(router: APIRouter, service: Service) -> None:
    @router.post("/nodes/{node}/breaker")
    async def breaker(node: str, act: wire.BreakerAction) -> wire.NodeView:
        await switch_node(service, NodeId(node), act, author=acting(act.author))
        return overview.node_view(service, NodeId(node))

    @router.get("/breaker")
    async def global_breaker() -> wire.BreakerView:
        return _global(service)

    @router.post("/breaker")
    async def switch(act: wire.BreakerAction) -> wire.BreakerView:
        await switch_global(service, act, author=acting(act.author))
        return _global(service)


def _cordon_routes(router: APIRouter, service: Service) -> None:
    @router.post("/nodes/{node}/cordon")
    async def cordon(node: str, why: wire.ActionReason | None = None) -> wire.NodeView:
        return await _cordoned(service, NodeId(node), why, drain=False)

    @router.post("/nodes/{node}/drain")
    async def drain(node: str, why: wire.ActionReason | None = None) -> wire.NodeView:
        return await _cordoned(service, NodeId(node), why, drain=True)

    @router.post("/nodes/{node}/uncordon")
    @router.post("/nodes/{node}/undrain")
    async def resume(node: str, why: wire.ActionReason | None = None) -> wire.NodeView:
        why = why or wire.ActionReason()
        who = acting(why.author)
        await service.node_acts.resume(NodeId(node), reason=why.reason, author=who)
        return overview.node_view(service, NodeId(node))


async def _cordoned(
    service: Service, node: NodeId, why: wire.ActionReason | None, *, drain: bool
) -> wire.NodeView:
    why = why or wire.ActionReason()
    who = acting(why.author)
    await service.node_acts.cordon(node, drain=drain, reason=why.reason, author=who)
    return overview.node_view(service, node)


def _global(service: Service) -> wire.BreakerView:
    return breaker_view(service.conductor.detector.breaker.switch, service.clock.now())


def _spec(asked: wire.NodeRegistration) -> NodeSpec:
    """A registration as a spec."""
    events = asked.events
    return NodeSpec(
        id=NodeId(asked.id),
        url=asked.url.rstrip("/"),
        engine=asked.engine,
        role=asked.role,
        models=tuple(asked.models),
        adapters=dict(asked.adapters),
        block_size=asked.block_size or DEFAULT_BLOCK_SIZE,
        kv_capacity_tokens=asked.kv_capacity_tokens,
        context_tokens_max=asked.context_tokens_max,
        batch_max=asked.batch_max,
        queue_max=asked.queue_max,
        profile=asked.profile,
        speed=asked.speed,
        place=Place(host=asked.place.host, rack=asked.place.rack, zone=asked.place.zone),
        links=tuple(asked.links),
        events=EventEndpoints(**events.model_dump()) if events is not None else None,
        dp_rank=asked.dp_rank,
        tenants=frozenset(asked.tenants),
        kv_transfer=asked.kv_transfer,
        kv_dtype=asked.kv_dtype,
        can_fetch=asked.can_fetch,
        pipeline_group=asked.pipeline_group,
        kv_store=asked.kv_store,
        kv_store_url=asked.kv_store_url.rstrip("/"),
        kv_store_instance=asked.kv_store_instance,
        weight=asked.weight,
    )

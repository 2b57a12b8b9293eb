"""Admin routes of evidence: stored events, the hotspot detector, one decision made again."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, TypeVar

from fastapi import APIRouter, Path, Query

from core import wire
from core.control.revisions import with_changes
from core.control.what_if import WhatIf, what_if
from core.errors import StoreError
from core.gateway.auth import LEAST_VIEWER
from core.gateway.control_views import pairs
from core.gateway.views import breaker_view
from core.ports import EventRecord, RecordStore
from core.tunables import diff

if TYPE_CHECKING:
    from core.gateway.service import Service

T = TypeVar("T")
GROUPS_SHOWN = 20


def evidence_routes(service: Service) -> APIRouter:
    """All routes, to be mounted under the API's prefix."""
    router = APIRouter(tags=["evidence"])

    @router.get("/history")
    async def history(
        kind: Annotated[str, Query(max_length=64, pattern=r"^[a-z0-9_.-]*\*?$")] = "",
        node: Annotated[str, Query(max_length=128)] = "",
        since: datetime | None = None,
        until: datetime | None = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
    ) -> wire.EventHistory:
        """Stored events, newest first; `kind` may end in ``*`` to match a beginning."""
        start, end = _utc(since), _utc(until)
        found = await _read(
            service,
            lambda store: store.events(
                start=start, end=end, kind=kind or None, node=node or None, limit=limit + 1
            ),
        )
        return wire.EventHistory(
            events=[_event(e) for e in found[:limit]], more=len(found) > limit
        )  # fmt: skip

    @router.get("/hotspots")
    async def hotspots(
        limit: Annotated[int, Query(ge=1, le=200)] = GROUPS_SHOWN,
    ) -> wire.HotspotView:
        """What the detector counts now, by prefix group, with its thresholds."""
        return hotspot_view(service, limit)

    @router.post("/decisions/{name}/what-if", openapi_extra=LEAST_VIEWER)
    async def again(
        name: Annotated[str, Path(max_length=128)], asked: wire.WhatIfAsk
    ) -> wire.WhatIfView:
        """The recorded candidates of one decision, weighed under other parameters."""
        stored = await _read(service, lambda store: store.decision(name))
        plane = service.control
        then = asked.base == "then"
        start = await plane.revision(stored.decision.revision) if then else plane.book.live
        tried = with_changes(start.tunables, asked.changes)
        found = what_if(stored, tried)
        return wire.WhatIfView(
            id=stored.decision.id,
            base=start.number,
            policy=tried.policy,
            changes=pairs(diff(start.tunables, tried)),
            moved=found.moved,
            text=_sentence(found),
            **dataclasses.asdict(found),
        )

    return router


def hotspot_view(service: Service, limit: int) -> wire.HotspotView:
    """The detector's counts and rules at this moment."""
    conductor, now = service.conductor, service.clock.now()
    rules = conductor.tunables.hotspot
    names: dict[int, str] = {slot: spec.id for slot, spec in conductor.fleet.slots()}
    groups = [
        wire.HotGroupView(
            group=f"{g.group:016x}",
            state=g.heat.value,
            requests=g.requests,
            share=g.share,
            holders=g.holders,
            nodes=g.nodes,
            holder_share=g.holders / g.nodes if g.nodes else 0.0,
            run=g.run,
            run_limit=2 * g.holders,
            firings=g.firings,
            excluded=sorted(names[slot] for slot in g.excluded if slot in names),
            ends_in_s=None if g.until_s is None else max(g.until_s - now, 0.0),
        )
        for g in conductor.detector.groups(now, limit)
    ]
    return wire.HotspotView(
        enabled=rules.enabled,
        window_s=rules.window_s,
        requests_min=rules.requests_min,
        cooldown_s=rules.cooldown_s,
        trips_to_open=rules.trips_to_open,
        open_s=rules.open_s,
        group_blocks=rules.group_blocks,
        groups=groups,
        breaker=breaker_view(conductor.detector.breaker.switch, now),
    )


def _event(e: EventRecord) -> wire.EventView:
    return wire.EventView(id=e.id, at=e.at, kind=e.kind, node=e.node, data=e.data)


def _sentence(found: WhatIf) -> str:
    if not found.moved:
        return f"It would go to {found.source} again."
    return f"It would go to {found.target} instead of {found.source}."


def _utc(at: datetime | None) -> datetime | None:
    return None if at is None else at.astimezone(UTC)


async def _read(service: Service, ask: Callable[[RecordStore], T]) -> T:
    """Ask the record store in a thread. StoreError without one."""
    store = service.store
    if store is None:
        raise StoreError("this service keeps no records")
    return await asyncio.to_thread(ask, store)

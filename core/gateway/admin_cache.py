"""Admin routes of the prefix index."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query

from core import wire
from core.gateway import cache_views
from core.gateway.admin_past import span
from core.gateway.auth import LEAST_VIEWER

if TYPE_CHECKING:
    from core.gateway.service import Service


def cache_routes(service: Service) -> APIRouter:
    """All routes, to be mounted under the API's prefix."""
    router = APIRouter(prefix="/cache", tags=["cache"])
    trees = cache_views.Trees(service)

    @router.get("/hot")
    async def hot(
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
        node: Annotated[str, Query(max_length=128)] = "",
    ) -> wire.HotPrefixes:
        """The prefixes asked for most, hottest first; with `node`, those it holds."""
        return cache_views.hot_prefixes(service, limit, node)

    @router.get("/tree")
    async def tree(
        root: str = "", budget: Annotated[int, Query(ge=10, le=1000)] = 400
    ) -> wire.CacheTree:
        """The tree in at most `budget` cells; at most two seconds old."""
        return await trees.view(root, budget)

    @router.get("/prefixes/{key}")
    async def prefix(key: str) -> wire.PrefixView:
        """One prefix by the key of its last block, listed or not."""
        return cache_views.prefix_view(service, key)

    @router.get("/replication")
    async def replication(
        points: Annotated[int, Query(ge=2, le=3000)] = 240,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> wire.Replication:
        """Blocks and their copies over time, the last hour where no time is given."""
        start, end = span(since, until)
        return await service.replication.between(start, end, points)

    @router.post("/lookup", openapi_extra=LEAST_VIEWER)
    async def lookup(asked: wire.LookupAsk) -> wire.LookupView:
        """Where a prompt lies in the fleet's caches. Reads only; nothing is counted."""
        return await cache_views.lookup(service, asked)

    return router

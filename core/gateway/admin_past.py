"""Admin routes that sum up stored records: requests by group, timings, a node's readings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Protocol, TypeVar

from fastapi import APIRouter, Query

from core import wire
from core.errors import BadRequest, StoreError
from core.gateway import past_views
from core.ports import RecordStore

T = TypeVar("T")
SPAN_DEFAULT = timedelta(hours=1)
SPAN_MAX = timedelta(days=7)
SHARES_MAX = 50_000
TIMINGS_MAX = 5_000
READINGS_MAX = 50_000


class HasStore(Protocol):
    """Whoever has records: the service, or a read-only instance over its database."""

    @property
    def store(self) -> RecordStore | None:
        """The store, None without one."""
        ...


def past_routes(owner: HasStore) -> APIRouter:
    """All routes, to be mounted under the API's prefix."""
    router = APIRouter(tags=["past"])

    @router.get("/shares")
    async def shares(
        since: datetime | None = None,
        until: datetime | None = None,
        limit: Annotated[int | None, Query(ge=1, le=SHARES_MAX)] = None,
        nodes: bool = True,
    ) -> wire.Shares:
        """Requests by tenant, model and, with `nodes`, nodes: all of the stretch.

        The largest groups; smaller ones are added up by tenant and model. With `limit` only the
        newest so many. Of those that are not rolled up yet at most 50,000 are counted; `complete`
        says whether that were all.
        """
        start, end = span(since, until)

        def ask(store: RecordStore) -> wire.Shares:
            found = store.shares(start, end, limit=limit, by_node=nodes)
            return past_views.shares_view(found, start, end)

        return await _read(owner, ask)

    @router.get("/timings")
    async def timings(
        since: datetime | None = None,
        until: datetime | None = None,
        limit: Annotated[int, Query(ge=1, le=20_000)] = TIMINGS_MAX,
    ) -> wire.TimingsView:
        """Margins to the limits, and predictions against what came, of the newest `limit`."""
        start, end = span(since, until)

        def ask(store: RecordStore) -> wire.TimingsView:
            return past_views.timings_view(store.timings(start, end, limit=limit), start, end)

        return await _read(owner, ask)

    @router.get("/nodes/{node}/readings")
    async def readings(
        node: str,
        since: datetime | None = None,
        until: datetime | None = None,
        points: Annotated[int, Query(ge=2, le=2000)] = 300,
    ) -> wire.Readings:
        """What a node reported of itself, also of one that is gone."""
        start, end = span(since, until)

        def ask(store: RecordStore) -> wire.Readings:
            found = store.telemetry(start, end, node=node, limit=READINGS_MAX)
            return past_views.readings_view(node, found, start, end, points)

        return await _read(owner, ask)

    return router


def span(since: datetime | None, until: datetime | None) -> tuple[datetime, datetime]:
    """Both ends in UTC; the last hour where none is given. BadRequest names the field."""
    end = _utc(until) if until is not None else datetime.now(UTC)
    start = _utc(since) if since is not None else end - SPAN_DEFAULT
    if not timedelta(0) < end - start <= SPAN_MAX:
        raise BadRequest(
            f"since: must lie before `until`, at most {SPAN_MAX.days} days", field="since"
        )
    return start, end


def _utc(at: datetime) -> datetime:
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


async def _read(owner: HasStore, ask: Callable[[RecordStore], T]) -> T:
    """Ask the record store in a thread. StoreError without one."""
    store = owner.store
    if store is None:
        raise StoreError("this service keeps no records")
    return await asyncio.to_thread(ask, store)

"""Admin routes of the record store: its state, who shares it, and exports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, TypeVar

from fastapi import APIRouter, Path, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from core import wire
from core.errors import BadRequest, Overloaded, StoreError
from core.gateway import stored
from core.gateway.audited import audited
from core.gateway.auth import LEAST_ADMIN
from core.ports import RecordStore, SinkCounters, StoreStatus, StoreUpkeep

if TYPE_CHECKING:
    from core.gateway.service import Service

FRESH_S = 15.0
"""Figures of the database are read this seldom: they walk whole indexes."""
View = TypeVar("View", bound=BaseModel)
_TYPES = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}


def record_routes(service: Service) -> APIRouter:
    """The routes, to be mounted under the API's prefix before `/decisions/{id}`."""
    router = APIRouter(tags=["records"])
    desk, exports = _Desk(service), _Exports(service)

    @router.get("/storage")
    async def storage() -> wire.StorageView:
        return await desk.view()

    @router.get("/replicas")
    async def replicas() -> wire.ReplicaList:
        found = await asyncio.to_thread(required(service).replicas)
        return wire.ReplicaList(replicas=[_same(wire.ReplicaView, r) for r in found])

    @router.get("/decisions/{id}/prompt", openapi_extra=LEAST_ADMIN)
    async def prompt(id: Annotated[str, Path(max_length=64)]) -> wire.PromptView:
        """The redacted prompt of a decision, by its whole id; who reads it is in the audit."""
        store = required(service)
        found = await asyncio.to_thread(store.prompt, id)
        async with audited(service, "prompt.read", target=id):
            expires_at = prompt_expires_at(service, found.at)
            return wire.PromptView(
                decision_id=id, at=found.at, text=found.text, expires_at=expires_at
            )

    @router.get("/decisions/export", response_class=StreamingResponse)
    async def export(asked: Annotated[wire.ExportQuery, Query()]) -> StreamingResponse:
        """Decisions beside their outcomes, newest first, as a file; pages are read as it is sent.

        A file cut at `limit` looks like one that ended; `x-conductor-rows-max` tells the limit.
        """
        return await exports.answer(asked)

    return router


def required(service: Service) -> RecordStore:
    """The store; StoreError where this service has none."""
    if service.store is None:
        raise StoreError("this service keeps no records")
    return service.store


def prompt_expires_at(service: Service, at: datetime) -> datetime | None:
    """When the prompt of a decision made at `at` is deleted; None: prompts are not kept."""
    days = service.limits.prompt_days
    return at + timedelta(days=days) if days else None


class _Desk:
    """The state of the store, read once for everybody who asks within `FRESH_S`."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = asyncio.Lock()
        self._read: tuple[float, wire.DatabaseView] | None = None

    async def view(self) -> wire.StorageView:
        service = self._service
        database, error = None, ""
        try:
            database = await self._database()
        except StoreError as failed:
            error = failed.message
        counters, upkeep = service.record_counters(), service.store_upkeep
        return wire.StorageView(
            database=database,
            error=error,
            writer=None if counters is None else _same(wire.WriterView, counters),
            spool=None if counters is None else _spool(counters),
            upkeep=None if upkeep is None else _upkeep(upkeep()),
            export_rows_max=service.limits.export_rows_max,
        )

    async def _database(self) -> wire.DatabaseView:
        store, clock = required(self._service), self._service.clock
        async with self._lock:
            if self._read is None or clock.now() - self._read[0] >= FRESH_S:
                self._read = None
                found = await asyncio.to_thread(store.status)
                self._read = clock.now(), _database(found, clock.wall())
            return self._read[1]


class _Exports:
    """Files on their way to clients, a few at once."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._running = 0

    async def answer(self, asked: wire.ExportQuery) -> StreamingResponse:
        limits, store = self._service.limits, required(self._service)
        if asked.limit > limits.export_rows_max:
            text = f"limit: at most {limits.export_rows_max} rows (records.export_rows_max)"
            raise BadRequest(text, field="limit")
        if asked.cursor is not None:
            raise BadRequest("cursor: an export has no pages", field="cursor")
        if self._running >= limits.exports_max:
            raise Overloaded(f"{self._running} exports are running already", retry_after_s=5.0)
        self._running += 1
        try:
            query = stored.query_of(asked)
            pieces = await asyncio.to_thread(
                lambda: store.export(query, asked.format, limit=asked.limit)
            )
        except BaseException:
            self._done()
            raise
        name = f"decisions-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.{asked.format}"
        headers = {
            "content-disposition": f'attachment; filename="{name}"',
            "cache-control": "no-store",
            "x-conductor-rows-max": str(asked.limit),
        }
        return _Sent(pieces, self._done, media_type=_TYPES[asked.format], headers=headers)

    def _done(self) -> None:
        self._running -= 1


class _Sent(StreamingResponse):
    """Sends pieces that are made in threads, and says when it is over, however it ends."""

    def __init__(
        self,
        pieces: Iterator[bytes],
        done: Callable[[], None],
        *,
        media_type: str,
        headers: dict[str, str],
    ) -> None:
        super().__init__(_made(pieces), media_type=media_type, headers=headers)
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._done()


async def _made(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (piece := await asyncio.to_thread(_next, pieces)) is not None:
        if piece:
            yield piece


def _next(pieces: Iterator[bytes]) -> bytes | None:
    return next(pieces, None)


def _database(s: StoreStatus, at: datetime) -> wire.DatabaseView:
    return wire.DatabaseView(
        url=s.database,
        kind=s.kind,
        schema_version=s.schema,
        newest_schema=s.newest_schema,
        size_bytes=s.size_bytes,
        rows=dict(s.rows),
        oldest_at=s.oldest_at,
        newest_at=s.newest_at,
        partitions=s.partitions,
        rollups_behind=s.rollups_behind,
        read_at=at,
    )


def _same(kind: type[View], value: object) -> View:
    """A value as the schema that has its fields, by their names."""
    return kind.model_validate(value, from_attributes=True)


def _spool(c: SinkCounters) -> wire.SpoolView:
    return wire.SpoolView(
        rows=c.spooled,
        size_bytes=c.spool_bytes,
        damaged=c.spool_damaged,
        failures=c.spool_failures,
    )


def _upkeep(u: StoreUpkeep) -> wire.UpkeepView:
    return wire.UpkeepView(
        rolled_at=_time(u.rolled_at_s),
        rolled_buckets=u.rolled_buckets,
        rollup_lag_s=u.rollup_lag_s,
        cleaned_at=_time(u.cleaned_at_s),
        deleted_rows=u.deleted_rows,
        refused=u.refused,
        failures=u.failures,
        last_error=u.last_error,
        replicas_alive=u.replicas_alive,
    )


def _time(at_s: float) -> datetime | None:
    return datetime.fromtimestamp(at_s, UTC) if at_s else None

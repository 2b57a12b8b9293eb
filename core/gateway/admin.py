"""The admin API: FastAPI under /admin/v1, with OpenAPI at /admin/v1/openapi.json.

Reads of records run in threads; everything else reads the live state on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from core import wire
from core.errors import BadRequest, ConductorError, Invalid, NotFound
from core.explain import explain
from core.gateway import errors, overview, stored
from core.gateway.admin_cache import cache_routes
from core.gateway.admin_control import control_routes, install_stale
from core.gateway.admin_events import event_routes
from core.gateway.admin_evidence import evidence_routes
from core.gateway.admin_identity import identity_routes
from core.gateway.admin_lab import lab_routes
from core.gateway.admin_nodes import node_routes
from core.gateway.admin_past import past_routes
from core.gateway.admin_records import prompt_expires_at, record_routes, required
from core.gateway.admin_views import view_routes
from core.gateway.admin_watch import watch_routes
from core.gateway.auth import declare_roles
from core.gateway.costs import cost_routes
from core.gateway.moves.routes import migration_routes
from core.gateway.store_gate import store_gate
from core.identity.principal import ACTING, AccessRole, author
from core.ports import RecordStore, StoredDecision

if TYPE_CHECKING:
    from core.gateway.service import Service
from core.gateway.signals import signal_routes

T = TypeVar("T")
HISTORY_DEFAULT = timedelta(hours=1)
HISTORY_MAX = timedelta(days=7)


def create_admin(service: Service) -> FastAPI:
    """The sub-application, to be put behind its door (`core.gateway.auth`)."""
    states = overview.States(service)
    app = FastAPI(
        title="Conductor admin API",
        version=service.version or "0",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(store_gate(service))],
    )
    app.state.service = service
    app.state.acted = states.forget
    app.include_router(_live_routes(service, states), prefix=wire.API_PREFIX)
    app.include_router(node_routes(service), prefix=wire.API_PREFIX)
    app.include_router(signal_routes(service), prefix=wire.API_PREFIX)
    app.include_router(cost_routes(service), prefix=wire.API_PREFIX)
    app.include_router(cache_routes(service), prefix=wire.API_PREFIX)
    app.include_router(past_routes(service), prefix=wire.API_PREFIX)
    app.include_router(record_routes(service), prefix=wire.API_PREFIX)
    app.include_router(_decision_routes(service), prefix=wire.API_PREFIX)
    app.include_router(_tuning_routes(service), prefix=wire.API_PREFIX)
    app.include_router(event_routes(service), prefix=wire.API_PREFIX)
    app.include_router(control_routes(service), prefix=wire.API_PREFIX)
    app.include_router(evidence_routes(service), prefix=wire.API_PREFIX)
    app.include_router(lab_routes(service), prefix=wire.API_PREFIX)
    app.include_router(migration_routes(service), prefix=wire.API_PREFIX)
    app.include_router(watch_routes(service), prefix=wire.API_PREFIX)
    app.include_router(view_routes(service), prefix=wire.API_PREFIX)
    app.include_router(identity_routes(service), prefix=wire.API_PREFIX)
    _install_errors(app, service)
    install_stale(app, service)

    one_at_a_time = asyncio.Lock()

    @app.get(f"{wire.API_PREFIX}/openapi.json", include_in_schema=False)
    async def document() -> dict[str, Any]:
        async with one_at_a_time:
            return await asyncio.to_thread(declare_roles, app)

    return app


def _live_routes(service: Service, states: overview.States) -> APIRouter:
    router = APIRouter(tags=["live"])
    points = overview.LivePoints(service)

    @router.get("/state", response_model=wire.FleetState)
    async def state() -> Response:
        return Response(states.encoded(), media_type="application/json")

    @router.get("/queue")
    async def queue() -> wire.QueueView:
        return service.waiting.view()

    @router.get("/series")
    async def series(
        window: Annotated[str, Query(pattern="^(live|minutes)$")] = "live",
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> wire.Series:
        if window == "live":
            return points.series()
        return await _stored_series(service, since, until)

    return router


def _decision_routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["decisions"])

    @router.get("/decisions")
    async def decisions(asked: Annotated[wire.DecisionQuery, Query()]) -> wire.DecisionPage:
        before = stored.cursor_of(asked.cursor) if asked.cursor else None
        query = stored.query_of(asked)

        def ask(store: RecordStore) -> wire.DecisionPage:
            page = store.decisions(query, before=before, limit=asked.limit, whole=False)
            return stored.page_view(page)

        return await _read(service, ask)

    @router.get("/decisions/{name}")
    async def decision(name: str) -> wire.DecisionDetail:
        found = await _read(service, lambda store: _find(store, name))
        view = stored.detail_view(explain(found))
        if not ACTING.get().may(AccessRole.ADMIN):
            return view
        expires_at = prompt_expires_at(service, found.decision.at)
        keeping = wire.PromptKeeping(on=expires_at is not None, expires_at=expires_at)
        return view.model_copy(update={"prompt": keeping})

    return router


def _tuning_routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["tuning"])

    @router.get("/tunables")
    async def tunables() -> wire.TunablesView:
        return overview.tunables_view(service)

    @router.put("/tunables")
    async def change(asked: wire.TunablesChange) -> wire.TunablesView:
        await service.control.change(
            asked.changes, base=asked.base, reason=asked.reason, author=author(asked.author)
        )
        return overview.tunables_view(service)

    @router.get("/policies")
    async def policies() -> wire.PolicyList:
        return overview.policy_list(service)

    return router


async def _read(service: Service, ask: Callable[[RecordStore], T]) -> T:
    """Ask the record store in a thread. StoreError without one."""
    return await asyncio.to_thread(ask, required(service))


def _find(store: RecordStore, name: str) -> StoredDecision:
    """By decision id or its beginning, else the last decision of a request of that id."""
    try:
        return store.decision(name)
    except NotFound:
        of_request = store.by_request(name)
        if not of_request:
            raise
        return of_request[-1]


async def _stored_series(
    service: Service, since: datetime | None, until: datetime | None
) -> wire.Series:
    end = (until or datetime.now(UTC)).astimezone(UTC)
    start = since.astimezone(UTC) if since is not None else end - HISTORY_DEFAULT
    if not timedelta(0) < end - start <= HISTORY_MAX:
        raise BadRequest(f"must lie before `until`, at most {HISTORY_MAX.days} days", field="since")

    def ask(store: RecordStore) -> list[wire.SeriesPoint]:
        buckets = store.series(start, end, step_s=60)
        return stored.series_points(list(buckets), timedelta(minutes=1))

    points = await _read(service, ask)
    slo = service.conductor.tunables.slo
    return wire.Series(
        window="minutes",
        step_s=60.0,
        points=points,
        ttft_slo_s=slo.ttft_s,
        tbt_slo_s=slo.tbt_s,
    )


# --- errors ------------------------------------------------------------------------------------


def _install_errors(app: FastAPI, service: Service) -> None:
    """Every error in the one shape, whoever raised it."""

    async def ours(_: Request, error: Exception) -> Response:
        status, body, retry = errors.from_exception(error, request_id=service.new_request_id())
        headers = {} if retry is None else {"retry-after": errors.retry_after(retry).decode()}
        return Response(body, status, headers=headers, media_type="application/json")

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
        return await ours(request, Invalid(f"{field}: {first['msg']}", field=field))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        kind: Any = NotFound if error.status_code == 404 else BadRequest
        if error.status_code == 405:
            body = errors.error_body(405, "not allowed here", code="method_not_allowed")
            return Response(body, 405, media_type="application/json")
        return await ours(request, kind(str(error.detail)))

    app.add_exception_handler(ConductorError, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)

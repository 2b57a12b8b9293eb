"""Admin routes of the control plane: revisions, schedule, preview, shadow, canary, guard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, FastAPI, Header, Path, Query, Request
from fastapi.responses import Response

from core import wire
from core.control.revisions import StaleBase
from core.errors import Invalid
from core.gateway import control_views as views
from core.identity.principal import author
from core.tunables import diff

if TYPE_CHECKING:
    from core.gateway.service import Service

Number = Annotated[int, Path(ge=1, le=2**31 - 1)]
IfMatch = Annotated[str | None, Header(alias="If-Match", max_length=64)]
_STALE: dict[int | str, dict[str, Any]] = {409: {"model": wire.StaleBody}}


def control_routes(service: Service) -> APIRouter:
    """All routes, to be mounted under the API's prefix."""
    router = APIRouter(tags=["control"])
    router.include_router(_revisions(service))
    router.include_router(_scheduled(service))
    router.include_router(_trials(service))
    return router


def install_stale(app: FastAPI, service: Service) -> None:
    """A stale base answers with both diffs."""

    async def stale(_: Request, error: Exception) -> Response:
        assert isinstance(error, StaleBase)
        body = views.stale_body(error, service.new_request_id())
        return Response(body.model_dump_json(), 409, media_type="application/json")

    app.add_exception_handler(StaleBase, stale)


def _revisions(service: Service) -> APIRouter:
    router, plane = APIRouter(), service.control

    @router.get("/revisions")
    async def revisions(limit: Annotated[int, Query(ge=1, le=200)] = 50) -> wire.RevisionList:
        found = plane.book.history()[:limit]
        return wire.RevisionList(
            live=plane.book.live.number, revisions=[views.revision_view(r) for r in found]
        )

    @router.post("/revisions", status_code=201, responses=_STALE)
    async def apply(
        asked: wire.RevisionAsk, answer: Response, if_match: IfMatch = None
    ) -> wire.FullRevision:
        made = await plane.change(
            asked.changes,
            base=_base(asked.base, if_match),
            author=author(asked.author),
            reason=asked.reason,
            until=asked.until,
        )
        answer.headers["etag"] = f'"{made.number}"'
        return views.revision_view(made)

    @router.post("/revisions/rollback", status_code=201, responses=_STALE)
    async def rollback(asked: wire.RollbackAsk, answer: Response) -> wire.FullRevision:
        made = await plane.rollback(
            asked.to, base=asked.base, author=author(asked.author), reason=asked.reason
        )
        answer.headers["etag"] = f'"{made.number}"'
        return views.revision_view(made)

    @router.get("/revisions/{number}")
    async def one(number: Number, answer: Response) -> wire.FullRevision:
        answer.headers["etag"] = f'"{number}"'
        return views.revision_view(await plane.revision(number))

    @router.get("/revisions/{number}/diff")
    async def difference(
        number: Number, to: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None
    ) -> wire.RevisionDiff:
        """Against revision `to`, by default the live one."""
        start = await plane.revision(number)
        end = plane.book.live if to is None else await plane.revision(to)
        return wire.RevisionDiff(
            from_revision=start.number,
            to_revision=end.number,
            changes=views.pairs(diff(start.tunables, end.tunables)),
        )

    return router


def _scheduled(service: Service) -> APIRouter:
    router, plane = APIRouter(), service.control

    @router.get("/scheduled")
    async def scheduled(all: bool = False) -> wire.ScheduledList:
        """Waiting changes, earliest first; with `all` the newest 200, ended ones too."""
        found = await plane.scheduled(pending_only=not all)
        return wire.ScheduledList(items=[views.scheduled_view(s) for s in found])

    @router.post("/scheduled", status_code=201)
    async def schedule(asked: wire.ScheduleAsk) -> wire.ScheduledView:
        made = await plane.schedule(
            asked.changes,
            due=asked.at,
            until=asked.until,
            author=author(asked.author),
            reason=asked.reason,
        )
        return views.scheduled_view(made)

    @router.post("/scheduled/{id}/cancel")
    async def cancel(
        id: Annotated[str, Path(max_length=64)], asked: wire.Why
    ) -> wire.ScheduledView:
        ended = await plane.cancel(id, author=author(asked.author), reason=asked.reason)
        return views.scheduled_view(ended)

    return router


def _trials(service: Service) -> APIRouter:
    router, plane = APIRouter(), service.control

    @router.post("/preview")
    async def preview(asked: wire.PreviewAsk) -> wire.PreviewView:
        live = plane.book.live.number
        report, replayed = await plane.preview(
            asked.changes,
            decisions=asked.decisions,
            simulate=asked.simulate,
            requests=asked.requests,
        )
        return views.preview_view(live, report, replayed)

    @router.get("/shadow")
    async def shadow() -> wire.ShadowView:
        return views.shadow_view(plane.shadow)

    @router.post("/shadow/start", status_code=201)
    async def start_shadow(asked: wire.TrialAsk) -> wire.ShadowView:
        run = await plane.start_shadow(
            asked.changes, author=author(asked.author), reason=asked.reason
        )
        return views.shadow_view(run)

    @router.post("/shadow/stop")
    async def stop_shadow(asked: wire.Why) -> wire.ShadowView:
        run = await plane.stop_shadow(author=author(asked.author), reason=asked.reason)
        return views.shadow_view(run)

    @router.get("/canary")
    async def canary() -> wire.CanaryView:
        return views.canary_view(plane.canary)

    @router.post("/canary/start", status_code=201)
    async def start_canary(asked: wire.CanaryAsk) -> wire.CanaryView:
        run = await plane.start_canary(
            asked.changes, share=asked.share, author=author(asked.author), reason=asked.reason
        )
        return views.canary_view(run)

    @router.post("/canary/stop")
    async def stop_canary(asked: wire.Why) -> wire.CanaryView:
        run = await plane.stop_canary(author=author(asked.author), reason=asked.reason)
        return views.canary_view(run)

    @router.get("/guard")
    async def guard() -> wire.GuardView:
        return views.guard_view(plane, service.clock.now())

    return router


def _base(body: int | None, header: str | None) -> int:
    """The revision a change was made from, of the body or of If-Match; Invalid without one."""
    told = (header or "").strip().removeprefix("W/").strip('"')
    if told and not told.isdecimal():
        raise Invalid("If-Match: expected a revision's number in quotes", field="If-Match")
    if told and body is not None and int(told) != body:
        raise Invalid(f"base: {body} is not the {told} of If-Match", field="base")
    if body is None and not told:
        raise Invalid("base: the revision the change was made from (or If-Match)", field="base")
    return body if body is not None else int(told)

"""Admin route of the live event feed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from core.errors import Invalid

if TYPE_CHECKING:
    from core.gateway.service import Service

NUMBER_MAX = 2**63 - 1
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def event_routes(service: Service) -> APIRouter:
    """The route, to be mounted under the API's prefix."""
    router = APIRouter(tags=["live"])

    @router.get("/events", response_class=StreamingResponse, responses=_STREAM)
    async def events(
        kind: Annotated[str, Query(max_length=64, pattern=r"^[a-z0-9_.-]*$")] = "",
        after: Annotated[int | None, Query(ge=0, le=NUMBER_MAX)] = None,
        last_event_id: Annotated[str | None, Header(max_length=32)] = None,
    ) -> StreamingResponse:
        """Changes as they happen: transitions, node life cycle, revisions and other acts.

        `kind` keeps events whose kind begins with it. `after` (or Last-Event-ID) is the number
        of the last event that was seen. An event `lost` counts those a slow reader missed.
        """
        start = after if last_event_id is None else _number(last_event_id)
        frames = service.feed.subscribe(after=start, prefix=kind)
        return StreamingResponse(frames, media_type="text/event-stream", headers=_HEADERS)

    return router


def _number(told: str) -> int:
    if not (told.isascii() and told.isdecimal()) or int(told) > NUMBER_MAX:
        text = "Last-Event-ID: expected the number of an event"
        raise Invalid(text, field="Last-Event-ID")
    return int(told)

"""The admin API over stored records alone, for while no scheduler runs.

What is asked of the running fleet answers 503, what would change something 405; both say where
to ask instead. No route is made here: those of the admin API that read records are let through.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from core import wire
from core.errors import StoreError
from core.gateway import errors
from core.gateway.admin import create_admin
from core.gateway.app import Asgi
from core.gateway.auth import GuardedAdmin
from core.gateway.exchange import Exchange, Receive, Scope, Send

if TYPE_CHECKING:
    from core.gateway.service import Service

KEPT = re.compile(
    rf"{wire.API_PREFIX}/(cache/replication|decisions(/.*)?|history|policies|replicas"
    r"|revisions(/.*)?|scheduled|series|shares|timings|storage|tunables|views|whoami|audit(/.*)?|nodes/[^/]+/readings"
    r"|openapi\.json)"
)
"""Routes that are answered from records alone."""
_LIVE = "this instance only reads stored records: ask the service itself"
_ACTS = "this instance only reads stored records: act on the service itself"
_READING = frozenset({"GET", "HEAD"})
_PING_S = 3.0


def create_history_app(service: Service) -> Asgi:
    """The application over a service that was not entered and has a store."""
    admin = GuardedAdmin(create_admin(service), service)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send, request_id=service.new_request_id())
        path, reads = exchange.path, exchange.method in _READING
        if path in ("/health", "/health/live", "/health/ready") and reads:
            view = await health(service)
            await exchange.answer(200, view.model_dump_json().encode())
        elif not reads:
            await _refuse(exchange, 405, _ACTS)
        elif KEPT.fullmatch(path) is None or b"window=live" in scope.get("query_string", b""):
            await _refuse(exchange, 503, _LIVE)
        else:
            await admin(scope, receive, send)

    return app


async def health(service: Service) -> wire.HealthView:
    """Ready always; degraded, with the reason, where the records cannot be read."""
    problems: list[str] = []
    if service.store is None:
        problems = ["there is no record store"]
    else:
        try:
            async with asyncio.timeout(_PING_S):
                await asyncio.to_thread(service.store.ping)
        except (StoreError, TimeoutError) as error:
            problems = [f"the records cannot be read: {error or 'no answer'}"]
    return wire.HealthView(
        status="degraded" if problems else "ok",
        ready=True,
        version=service.version,
        problems=problems,
    )


async def _refuse(exchange: Exchange, status: int, text: str) -> None:
    await exchange.refuse(status, errors.error_body(status, text, code="history_only"))

"""The ASGI application: a plain router in front, FastAPI for the admin routes behind it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from core.errors import NotFound
from core.gateway import errors, indexer, openai, pages, proxy, schedule
from core.gateway.admin import create_admin
from core.gateway.auth import GuardedAdmin
from core.gateway.exchange import Exchange, Receive, Scope, Send
from core.gateway.proxy import Work, guarded

if TYPE_CHECKING:
    from core.gateway.service import Service

Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

_GUARDED: dict[tuple[str, str], Work] = {
    ("POST", "/v1/chat/completions"): proxy.completion,
    ("POST", "/v1/completions"): proxy.completion,
    ("GET", "/v1/models"): openai.models,
    ("POST", "/v1/schedule"): schedule.schedule,
    ("POST", "/register"): indexer.register,
    ("POST", "/unregister"): indexer.unregister,
    ("POST", "/query"): indexer.query,
    ("POST", "/query_by_hash"): indexer.query_by_hash,
}
_OPERATORS = frozenset({"/register", "/unregister"})
"""They take an operator's token where others take a key."""
_KNOWN = {path for _, path in _GUARDED}
_PAGES: dict[str, pages.Page] = {
    "/health": pages.health,
    "/health/live": pages.live,
    "/health/ready": pages.ready,
    "/metrics": pages.metrics,
}


def create_app(service: Service, *, prepared: bool = False) -> Asgi:
    """The application of a service, entered before the first request comes.

    prepared: take the time now that the first admin request would else take from everybody.
    """
    admin = GuardedAdmin(create_admin(service), service)
    if prepared:
        admin.prepare()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        if scope["path"].startswith("/admin/"):
            await admin(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send, request_id=service.new_request_id())
        path = exchange.path
        page = _PAGES.get(path)
        if page is not None and exchange.method in ("GET", "HEAD"):
            await pages.shown(service, exchange, page)
            return
        work = _GUARDED.get((exchange.method, path)) or _other(exchange)
        if work is None:
            await _refuse(exchange)
            return
        await guarded(service, exchange, work, keyed=path not in _OPERATORS)

    return app


def _other(exchange: Exchange) -> Work | None:
    """Routes with names in their paths, and the rest of /v1."""
    path = exchange.path
    if path in _KNOWN or not path.startswith("/v1/"):
        return None
    if path.startswith("/v1/schedule/"):
        return schedule.report if exchange.method == "POST" else None
    if path.startswith("/v1/models/"):
        return openai.models if exchange.method == "GET" else None
    return openai.passthrough


async def _refuse(exchange: Exchange) -> None:
    path = exchange.path
    if path in _KNOWN or path in _PAGES or path.startswith("/v1/"):
        text = f"{exchange.method} is not allowed here"
        await exchange.refuse(405, errors.error_body(405, text, code="method_not_allowed"))
        return
    await exchange.fail(NotFound("no such route", field="path"))


async def _lifespan(receive: Receive, send: Send) -> None:
    """The service is entered by whoever built it, so there is nothing to start here."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        else:
            await send({"type": "lifespan.shutdown.complete"})
            return

"""The door of the admin API: nothing behind it runs, or reads a body, before it is open.

Each route has a least role: what it declares (`openapi_extra=LEAST_ADMIN`), else by its method,
viewer for GET and operator for everything that acts. The document at ``openapi.json`` says it of
every route (``x-least-role``); the door goes by the routes themselves, since writing the document
holds the event loop for as long as hundreds of requests. A path of no route counts by its method.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.routing import RouteContext, iter_route_contexts
from starlette.requests import ClientDisconnect
from starlette.routing import compile_path

from core.errors import ConductorError
from core.gateway import errors
from core.gateway.document import with_errors
from core.gateway.exchange import Message, Receive, Scope, Send
from core.identity.authority import require
from core.identity.principal import ACTING, AccessRole

if TYPE_CHECKING:
    from core.gateway.service import Service

ROLE_KEY = "x-least-role"
NOBODY = "none"
LEAST_ADMIN = {ROLE_KEY: AccessRole.ADMIN.value}
LEAST_VIEWER = {ROLE_KEY: AccessRole.VIEWER.value}
OPEN = {ROLE_KEY: NOBODY}
"""For the routes that hand out credentials."""
_READING = frozenset({"GET", "HEAD", "OPTIONS"})


class _ShutOut(OSError):
    """Raised into an answer under way, as if its reader had left."""


class GuardedAdmin:
    """The admin application behind its door."""

    def __init__(self, app: FastAPI, service: Service) -> None:
        self._app = app
        self._service = service
        self._acted = getattr(app.state, "acted", lambda: None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request in under its caller's name, or answer 401 or 403."""
        service = self._service
        peer = (scope.get("client") or ("", 0))[0]
        try:
            who = await service.authority.identify(scope["headers"], peer)
            least = self.least_role(scope["method"], scope["path"])
            require(who, least)
        except ConductorError as error:
            service.counters[f"admin.refused.{error.status}"] += 1
            await _refuse(error, service.new_request_id(), send)
            return

        async def watched(message: Message) -> None:
            """A long answer ends once its reader would not be let in any more; before an act is
            answered, what is kept of the state is let go."""
            if message["type"] == "http.response.start" and scope["method"] not in _READING:
                self._acted()
            if message.get("more_body") and not await service.authority.holds(who, least):
                await send({"type": "http.response.body", "body": b""})
                raise _ShutOut
            await send(message)

        token = ACTING.set(who)
        try:
            await self._app(scope, receive, watched)
        except (_ShutOut, ClientDisconnect):
            service.counters["admin.cut"] += 1
        finally:
            ACTING.reset(token)
            service.counters[f"admin_requests.{answered(scope)}"] += 1

    def least_role(self, method: str, path: str) -> AccessRole | None:
        """What a request needs, the most of all routes it fits; None where it is open."""
        fitting = [
            roles[method]
            for pattern, roles in self._table
            if method in roles and pattern.fullmatch(path)
        ]
        if not fitting:
            return by_method(method)
        return max(fitting, key=lambda role: -1 if role is None else role.rank)

    def prepare(self) -> None:
        """Do now what the first request would else do while others wait: finish every route."""
        self._table  # noqa: B018 (computed when first asked for)

    @cached_property
    def _table(self) -> list[tuple[re.Pattern[str], dict[str, AccessRole | None]]]:
        return [
            (
                compile_path(route.path)[0],
                {method: _role(route, method) for method in route.methods},
            )
            for route in iter_route_contexts(self._app.routes)
            if route.path is not None and route.methods
        ]


def answered(scope: Scope) -> str:
    """The route that answered a request, for its counter: no words from outside."""
    route, method = scope.get("route"), scope["method"]
    if method not in (getattr(route, "methods", None) or ()):
        return "no such route"
    return f"{method} {getattr(route, 'path', '')}"


def declare_roles(app: FastAPI) -> dict[str, Any]:
    """The API's document, every operation with its least role."""
    document = with_errors(app.openapi())
    for operations in document["paths"].values():
        for method, operation in operations.items():
            operation.setdefault(ROLE_KEY, by_method(method.upper()).value)
    return document


def by_method(method: str) -> AccessRole:
    """The least role of a route that declares none."""
    return AccessRole.VIEWER if method in _READING else AccessRole.OPERATOR


def _role(route: RouteContext, method: str) -> AccessRole | None:
    extra = getattr(route, "openapi_extra", None) or {}
    declared = extra.get(ROLE_KEY, by_method(method).value)
    return None if declared == NOBODY else AccessRole(declared)


async def _refuse(error: ConductorError, request_id: str, send: Send) -> None:
    status, body, retry_s = errors.from_exception(error, request_id=request_id)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if retry_s is not None:
        headers.append((b"retry-after", errors.retry_after(retry_s)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

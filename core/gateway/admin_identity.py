"""Admin routes of identity: who the caller is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter

from core import wire
from core.identity.principal import ACTING, Kind

if TYPE_CHECKING:
    from core.gateway.service import Service


def identity_routes(service: Service) -> APIRouter:  # noqa: ARG001
    """All routes, to be mounted under the API's prefix."""
    router = APIRouter(tags=["identity"])

    @router.get("/whoami")
    async def whoami() -> wire.WhoAmI:
        """The caller: name, role, and how it was recognised."""
        who = ACTING.get()
        return wire.WhoAmI(
            name=who.name,
            role=who.role,
            kind=who.kind,
            anonymous=who.kind is Kind.ANONYMOUS,
        )

    return router

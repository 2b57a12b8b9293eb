"""Health and metrics: answered at once, never behind a database or an engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from core import wire
from core.errors import ConductorError
from core.gateway.exchange import Exchange
from core.gateway.metrics import registry_of
from core.identity.authority import require
from core.identity.principal import AccessRole

if TYPE_CHECKING:
    from core.gateway.service import Service

Page = Callable[["Service", Exchange], Awaitable[None]]
Status = Literal["ok", "degraded", "starting", "stopping", "no_nodes"]


async def shown(service: Service, exchange: Exchange, page: Page) -> None:
    """Answer with a page; /metrics is for viewers, unless the settings open it."""
    try:
        if page is metrics and not service.authority.rules.open_metrics:
            who = await service.authority.identify(exchange.headers, exchange.peer)
            require(who, AccessRole.VIEWER)
    except ConductorError as error:
        await exchange.fail(error)
        return
    await page(service, exchange)


async def live(_: Service, exchange: Exchange) -> None:
    """GET /health/live: the process runs."""
    await exchange.answer(200, b'{"status":"ok"}')


async def ready(service: Service, exchange: Exchange) -> None:
    """GET /health/ready: 200 where requests are taken, else 503."""
    view = health_view(service)
    await exchange.answer(200 if view.ready else 503, view.model_dump_json().encode())


async def health(service: Service, exchange: Exchange) -> None:
    """GET /health: the same in words; 200 as long as the process runs."""
    await exchange.answer(200, health_view(service).model_dump_json().encode())


async def metrics(service: Service, exchange: Exchange) -> None:
    """GET /metrics: Prometheus text."""
    text = generate_latest(registry_of(service))
    await exchange.answer(200, text, [(b"content-type", CONTENT_TYPE_LATEST.encode())])


def health_view(service: Service) -> wire.HealthView:
    """Ready as long as it does not stop: without nodes or a database it still answers, with
    503 for what it cannot place, and says so here."""
    conductor = service.conductor
    fleet = conductor.fleet
    allowed = conductor.breakers.allowed(service.clock.now())[: fleet.capacity]
    eligible = int((fleet.healthy & ~fleet.draining & allowed).sum())
    problems = service.problems()
    status: Status = "ok" if not problems else "degraded"
    if not len(fleet) or not eligible:
        status = "no_nodes"
    if service.stopping:
        status = "stopping"
    return wire.HealthView(
        status=status,
        ready=not service.stopping,
        version=service.version,
        nodes=len(fleet),
        eligible=eligible,
        problems=problems,
    )

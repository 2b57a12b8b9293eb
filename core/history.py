"""`conductor serve --history-only`: the admin API over the records, with nothing that decides.

It starts without the service and goes on without it. It never writes: not a row, not a schema
version, not a token. Records of another schema version are not read; the health page says so.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from core.clock import SystemClock
from core.conductor import Conductor
from core.gateway.service import Service
from core.identity.first_start import make_authority
from core.prompt import Prompts
from core.settings import Settings
from core.wiring import limits, product_version, start_tunables
from storage.store import ReadingStore

FOLLOW_S = 2.0
"""How often revisions of the service are looked for."""


@asynccontextmanager
async def running_history(settings: Settings) -> AsyncIterator[Service]:
    """A service that is not entered: it answers from the store, and takes no traffic."""
    store, clock = ReadingStore(settings.database), SystemClock()
    service = Service(
        conductor=Conductor(tunables=start_tunables(settings)),
        clock=clock,
        prompts=Prompts({}),
        store=store,
        limits=limits(settings),
        authority=make_authority(settings.auth, settings.server, store=store, clock=clock),
        version=product_version(),
    )
    task = asyncio.create_task(_follow(service), name="follow")
    try:
        yield service
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        service.prompts.close()
        store.close()


async def _follow(service: Service) -> None:
    """Keep the revisions shown, and who may read them, up to date; a store that is away is
    asked again."""
    while True:
        service.forget_identities()
        await service.control.follow(service.clock.now())
        await asyncio.sleep(FOLLOW_S)

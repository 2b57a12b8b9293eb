"""An emulated engine inside the test's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from core.clock import SystemClock
from core.engines.emulated.config import EngineConfig
from core.engines.emulated.engine import Engine
from core.engines.emulated.faults import Faults
from core.engines.emulated.http import Connection
from core.engines.emulated.routes import Router


@asynccontextmanager
async def engine_here(
    *, faults: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[tuple[str, Engine]]:
    """(URL, engine) of a running engine; settings as in `EngineConfig`."""
    loop = asyncio.get_running_loop()
    config = EngineConfig(**({"name": "e", "model": "tiny"} | settings))
    engine = Engine(config, loop, clock=SystemClock())
    if faults:
        engine.set_faults(Faults().changed(faults))
    router, connections = Router(engine), set()
    server = await loop.create_server(
        lambda: Connection(router.handle, connections), "127.0.0.1", 0
    )
    engine.http_port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{engine.http_port}", engine
    finally:
        server.close()
        engine.shut_down()
        for connection in list(connections):
            connection.abort()
        await server.wait_closed()

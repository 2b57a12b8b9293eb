"""The process: event loop, listening socket, signals, state file."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
from pathlib import Path
from typing import Any

from core.clock import SystemClock
from core.engines.emulated.config import EngineConfig
from core.engines.emulated.engine import Engine
from core.engines.emulated.http import Connection
from core.engines.emulated.routes import Router

log = logging.getLogger(__name__)
DRAIN_S = 0.5
"""How long closing connections may take to send what was written."""


def describe(engine: Engine) -> dict[str, Any]:
    """Addresses and settings, as written to the state file and the ready line."""
    config = engine.config
    publisher = engine.publisher
    host = config.public_host
    events = publisher and f"tcp://{host}:{publisher.live_port}"
    replay = publisher and publisher.replay_port and f"tcp://{host}:{publisher.replay_port}"
    return {
        "name": config.name,
        "pid": os.getpid(),
        "url": f"http://{host}:{engine.http_port}",
        "role": config.role.value,
        "model": config.model,
        "adapters": list(config.adapters),
        "block_size": config.block_size,
        "kv_tokens": config.blocks * config.block_size,
        "profile": config.profile,
        "events": events,
        "replay": replay,
        "topic": engine.topic,
    }


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Write a state file in one go, so that readers never see half of it."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(state))
    part.replace(path)


async def serve(config: EngineConfig) -> None:
    """Run an engine until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    engine = Engine(config, loop, clock=SystemClock())
    router = Router(engine)
    connections: set[Connection] = set()
    server = await loop.create_server(
        lambda: Connection(router.handle, connections), config.host, config.port, backlog=1024
    )
    engine.http_port = server.sockets[0].getsockname()[1]
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    state = describe(engine)
    if config.state_file is not None:
        write_state(config.state_file, state)
    print(json.dumps(state), flush=True)
    await stop.wait()
    server.close()
    engine.shut_down()
    await _drain(connections)
    log.info("%s: stopped", config.name)


async def _drain(connections: set[Connection]) -> None:
    """Let written answers leave, then close whatever is still open."""
    for connection in list(connections):
        connection.close()
    end = asyncio.get_running_loop().time() + DRAIN_S
    while connections and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(0.01)
    for connection in list(connections):
        connection.abort()

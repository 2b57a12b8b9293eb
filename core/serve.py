"""Runs the service and the console in the foreground."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import uvicorn
import uvloop

from core.gateway.app import Asgi, create_app
from core.gateway.history import create_history_app
from core.gateway.limits import Limits
from core.gateway.protocol import gateway_protocol
from core.gateway.service import Service
from core.history import running_history
from core.launcher import require_free
from core.priority import give_way, interrupt_nobody
from core.settings import Settings
from core.wiring import configure_logging, running_service

_BACKLOG = 2048
_POLL_S = 0.05
_TURN_S = 0.0005
"""How long a busy event loop keeps a thread waiting that comes back from the database, which it
does after each row, and how long such a thread keeps a decision waiting; Python's own is 5 ms."""
_CLOSE_S = 3
"""After the drain: connections that idle are closed, streams that hang are cut."""


def run_service(settings: Settings) -> None:
    """Serve until SIGTERM or Ctrl-C, then drain. What it keeps is for its own user alone.

    Conflict where something listens on the port: before records are opened, not after.
    """
    require_free(settings.server.host, settings.server.port, what="server")
    os.umask(0o077)
    configure_logging(settings.log_level, json=not sys.stderr.isatty())
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    apps: list[Asgi] = []

    def made(service: Service) -> None:
        """While no node is watched, and nobody waits."""
        apps.append(create_app(service, prepared=True))
        quieten_collector()

    async with running_service(settings, made=made) as service:
        sys.setswitchinterval(_TURN_S)
        asyncio.get_running_loop().set_default_executor(
            ThreadPoolExecutor(thread_name_prefix="aside", initializer=interrupt_nobody)
        )
        config = _server(apps[0], settings.server.port, service.limits, settings)
        await DrainingServer(config, service, drain_s=settings.limits.drain_s).serve()


def run_history(settings: Settings) -> None:
    """Serve stored records until SIGTERM or Ctrl-C; Conflict as `run_service`."""
    require_free(settings.server.host, settings.history.port, what="history")
    os.umask(0o077)
    configure_logging(settings.log_level, json=not sys.stderr.isatty())
    give_way()
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_serve_history(settings))


async def _serve_history(settings: Settings) -> None:
    async with running_history(settings) as service:
        app = create_history_app(service)
        await StoppingServer(_server(app, settings.history.port, service.limits, settings)).serve()


def _server(app: Asgi, port: int, limits: Limits, settings: Settings) -> uvicorn.Config:
    """What both instances ask of their server: our protocol with its limits, no log of its own."""
    return uvicorn.Config(
        app,
        host=settings.server.host,
        port=port,
        http=gateway_protocol(limits),
        proxy_headers=False,
        lifespan="off",
        access_log=False,
        log_config=None,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=_CLOSE_S,
        server_header=False,
    )


def quieten_collector() -> None:
    """Keep what lives as long as the process out of the collector, and let it run seldom.

    Requests die by reference count; a full collection would only walk through the index.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


class StoppingServer(uvicorn.Server):
    """Ends at the first signal, and in order: no stream here is worth waiting for."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Signal handler of uvicorn."""
        self.should_exit = True


class DrainingServer(uvicorn.Server):
    """Stops in two steps: first unready while streams run on, then closed.

    The first signal drains for at most `drain_s`; a second one ends at once.
    """

    def __init__(self, config: uvicorn.Config, service: Service, *, drain_s: float) -> None:
        super().__init__(config)
        self._service = service
        self._drain_s = drain_s
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; what the event loop is late from now on, somebody waits for."""
        await super().startup(sockets=sockets)
        self._service.upkeep.serving()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Signal handler of uvicorn."""
        if self._draining is not None:
            super().handle_exit(sig, frame)
            return
        self._service.stop_accepting()
        self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        deadline = asyncio.get_running_loop().time() + self._drain_s
        while len(self._service.flights) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(_POLL_S)
        self.should_exit = True


def run_console(settings: Settings, url: str, history_url: str = "") -> None:
    """Replace this process by the console's server."""
    from dashboard.launch import streamlit_command

    argv, env = streamlit_command(
        host=settings.console.host,
        port=settings.console.port,
        api_url=url,
        history_url=history_url,
    )
    os.execve(argv[0], argv, {**os.environ, **env})

"""Keeping one node's event sockets connected: receiving, noticing loss, opening anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

from core.domain import EventEndpoints
from core.engines.sockets import EventSockets, Frames
from core.engines.stream_tools import StreamStatus, StreamTools
from core.errors import ConductorError


class Link:
    """The connection of one stream while its context is open.

    on_messages(messages) gets what arrives, on_change(up) each connection made and lost. Nothing
    is received while `room` is not set: the socket's own bounded queue fills instead.
    """

    def __init__(
        self,
        endpoints: EventEndpoints,
        tools: StreamTools,
        status: StreamStatus,
        *,
        on_messages: Callable[[list[Frames]], None],
        on_change: Callable[[bool], None],
    ) -> None:
        self._endpoints = endpoints
        self._tools = tools
        self._status = status
        self._on_messages = on_messages
        self._on_change = on_change
        self._sockets = self._make()
        self._receiver: asyncio.Task[None] | None = None
        self._opened_s = 0.0
        self.lost_s: float | None = None
        """Since when there is no connection; None while there is one."""
        self.room = asyncio.Event()
        self.room.set()

    async def __aenter__(self) -> Self:
        self.lost_s = self._tools.clock.now()
        await self._open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close()

    @property
    def replays(self) -> bool:
        """Whether the node has a replay socket."""
        return self._endpoints.replay is not None

    def replay(self, start: int) -> AsyncIterator[Frames]:
        """Answers of the replay socket from batch `start` on; raises ReplayTimeout."""
        return self._sockets.replay(start)

    async def reopen_if_lost(self, now: float) -> None:
        """Try with new sockets once a connection stayed away for `reopen_s`."""
        if self.lost_s is None:
            return
        if now - max(self.lost_s, self._opened_s) >= self._tools.rules.reopen_s:
            await self._close()
            self._sockets = self._make()
            await self._open()

    def _make(self) -> EventSockets:
        return EventSockets(
            self._endpoints,
            context=self._tools.context,
            on_link=self._changed,
            limits=self._tools.rules.sockets,
            pin=self._tools.pin,
        )

    async def _open(self) -> None:
        self._opened_s = self._tools.clock.now()
        try:
            await self._sockets.__aenter__()
        except ConductorError as error:
            # Not an address to connect to, or not now: asked again when links are made anew.
            self._status.refused, self._receiver = error.message, None
            return
        self._status.refused = ""
        self._receiver = asyncio.create_task(self._receive())

    async def _close(self) -> None:
        await ended(self._receiver)
        await self._sockets.__aexit__(None, None, None)

    async def _receive(self) -> None:
        while True:
            await self.room.wait()
            messages = await self._sockets.receive()
            self._status.messages += len(messages)
            self._status.last_message_s = self._tools.clock.now()
            self._on_messages(messages)
            await asyncio.sleep(0)  # more may be there already; everybody gets a turn

    def _changed(self, up: bool) -> None:
        was_up, self._status.connected = self._status.connected, up
        if up:
            self.lost_s = None
        elif was_up:
            self._status.links_lost += 1
            self.lost_s = self._tools.clock.now()
        if up or was_up:
            self._on_change(up)


async def ended(*tasks: asyncio.Task[None] | None) -> None:
    """Cancel tasks and wait for their ends."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)

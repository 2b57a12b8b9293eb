"""The ZMQ sockets of one node's event stream: live subscription, replay, connection watch.

Framing only; what a message means is core.index's business. Publishers are untrusted: message
size, queue length, frame counts and waiting times are bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from core.domain import EventEndpoints
from core.errors import ConductorError
from core.index.events import PAYLOAD_BYTES_MAX

Frames = list[bytes]
"""One message as received."""

_END = b"\xff" * 8
_WATCHED = zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED | zmq.Event.MONITOR_STOPPED


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketLimits:
    """Bounds of one node's sockets."""

    queue_messages: int = 20_000
    """Live messages waiting in the socket; more are lost and come back by replay."""
    replay_messages: int = 20_000
    """Replay answers waiting in the socket: twice the engines' usual buffer. They send without
    looking, and what does not fit between them and us is dropped on their side."""
    message_bytes: int = PAYLOAD_BYTES_MAX + 1024
    drain_messages: int = 16
    """Messages taken in one round of the event loop."""
    replay_idle_s: float = 2.0
    replay_total_s: float = 120.0
    heartbeat_ms: int = 2000
    """How often a silent connection is tested; it counts as lost after three times as long."""
    reconnect_ms: int = 100
    reconnect_max_ms: int = 1000


class ReplayTimeout(Exception):
    """The replay socket stayed silent, or went on for too long."""


Pin = Callable[[str], Awaitable[str]]
"""A tcp address -> the same with a checked address for its host; ConductorError refuses it."""


async def unpinned(address: str) -> str:
    """The address as it is: whoever uses the sockets alone knows where they lead."""
    return address


class EventSockets:
    """Subscription and replay of one node. Use as an async context manager.

    on_link(up) is called from the event loop with every connection made and lost. Entering raises
    ConductorError where `pin` refuses the address.
    """

    def __init__(
        self,
        endpoints: EventEndpoints,
        *,
        context: zmq.asyncio.Context,
        on_link: Callable[[bool], None],
        limits: SocketLimits | None = None,
        pin: Pin = unpinned,
    ) -> None:
        self._endpoints = endpoints
        self._context = context
        self._on_link = on_link
        self._limits = limits or SocketLimits()
        self._pin = pin
        self._live: zmq.asyncio.Socket | None = None
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        address = await self._pin(self._endpoints.live)
        live = self._context.socket(zmq.SUB)
        self._live = live
        self._bound(live)
        live.setsockopt(zmq.RCVHWM, self._limits.queue_messages)
        live.setsockopt(zmq.SUBSCRIBE, self._endpoints.topic.encode())
        self._watch = asyncio.create_task(self._watch_link(live.get_monitor_socket(_WATCHED)))
        try:
            live.connect(address)
        except zmq.ZMQError:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        live, watch = self._live, self._watch
        self._live = self._watch = None
        if live is None or watch is None:
            return
        # Stopping says so to the monitor, which has to be open still: the call would block.
        live.disable_monitor()
        await asyncio.gather(watch, return_exceptions=True)
        live.close(linger=0)

    @property
    def replays(self) -> bool:
        """Whether the node has a replay socket."""
        return self._endpoints.replay is not None

    async def receive(self) -> list[Frames]:
        """Wait for live messages; returns at least one and at most `drain_messages`."""
        live = self._live
        assert live is not None, "use the sockets inside their context"
        messages = [await live.recv_multipart()]
        while len(messages) < self._limits.drain_messages:
            try:
                messages.append(await live.recv_multipart(zmq.DONTWAIT))
            except zmq.Again:
                break
        return messages

    async def replay(self, start: int) -> AsyncIterator[Frames]:
        """Answers with the buffered batches of seq >= start, in order, the end mark last.

        A fresh socket each time, so that answers to an abandoned request cannot mix in.
        Raises ReplayTimeout.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limits.replay_total_s
        address = await self._replay_address()
        dealer = self._context.socket(zmq.DEALER)
        try:
            self._bound(dealer)
            dealer.setsockopt(zmq.RCVHWM, self._limits.replay_messages)
            dealer.connect(address)
            await dealer.send_multipart([b"", max(start, 0).to_bytes(8, "big")])
            ended, taken = False, 0
            while not ended:
                taken += 1
                if taken % self._limits.drain_messages == 0:
                    # What is there already is taken without a pause: let others have the loop.
                    await asyncio.sleep(0)
                left = min(self._limits.replay_idle_s, deadline - loop.time())
                frames = await self._answer(dealer, left)
                ended = len(frames) > 1 and frames[-2] == _END
                yield frames
        finally:
            dealer.close(linger=0)

    async def _replay_address(self) -> str:
        assert self._endpoints.replay is not None, "ask `replays` first"
        try:
            return await self._pin(self._endpoints.replay)
        except ConductorError as error:
            raise ReplayTimeout(f"the replay socket is not asked: {error.message}") from error

    async def _answer(self, dealer: zmq.asyncio.Socket, timeout_s: float) -> Frames:
        try:
            async with asyncio.timeout(max(timeout_s, 0.0)):
                return await dealer.recv_multipart()
        except TimeoutError:
            raise ReplayTimeout(f"no replay answer within {timeout_s:.1f} s") from None

    def _bound(self, socket: zmq.asyncio.Socket) -> None:
        limits = self._limits
        socket.setsockopt(zmq.MAXMSGSIZE, limits.message_bytes)
        socket.setsockopt(zmq.HEARTBEAT_IVL, limits.heartbeat_ms)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * limits.heartbeat_ms)
        socket.setsockopt(zmq.RECONNECT_IVL, limits.reconnect_ms)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, limits.reconnect_max_ms)
        socket.setsockopt(zmq.IPV6, 1)

    async def _watch_link(self, monitor: zmq.asyncio.Socket) -> None:
        with monitor:
            while True:
                event = parse_monitor_message(await monitor.recv_multipart())["event"]
                if event == zmq.Event.MONITOR_STOPPED:
                    return
                self._on_link(event == zmq.Event.HANDSHAKE_SUCCEEDED)

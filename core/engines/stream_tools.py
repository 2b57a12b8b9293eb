"""What event streams share and tell: rules, fair turns on the event loop, a stream's status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import zmq.asyncio

from core.clock import Clock
from core.conductor import Conductor
from core.engines.sockets import Pin, SocketLimits, unpinned
from core.index.event_stream import CursorStats, Status
from core.index.ingest import IngestStats


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRules:
    """Timing and bounds of a node's event stream."""

    sockets: SocketLimits = field(default_factory=SocketLimits)
    turn_s: float = 0.001
    """How long one turn of one stream may hold the event loop, about."""
    slice_blocks: int = 64
    """Blocks applied between two looks at the clock."""
    inbox_messages: int = 4096
    """Messages taken from the sockets and not worked on yet."""
    replays_at_once: int = 8
    """Over the whole fleet."""
    tick_s: float = 0.5
    audit_s: float = 10.0
    """After so long without a message, ask whether the last ones were missed."""
    link_lost_s: float = 10.0
    """A connection away for so long voids what was learned; it is learned anew on return."""
    reopen_s: float = 5.0
    """Sockets whose connection stays away for so long are made anew: libzmq gives up by itself
    on a peer that broke the protocol."""


class Turns:
    """At most one stream works in each round of the event loop, in the order they asked.

    So a storm of events delays each decision by one turn, however many nodes take part in it.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Work inside, without awaiting; everybody else gets the loop before the next turn."""
        async with self._lock:
            yield
            await asyncio.sleep(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTools:
    """What all streams of a fleet share."""

    conductor: Conductor
    clock: Clock
    context: zmq.asyncio.Context
    rules: StreamRules = field(default_factory=StreamRules)
    turns: Turns = field(default_factory=Turns)
    pin: Pin = unpinned
    """Event address -> the checked address to connect to."""
    replays: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(8))


@dataclass(slots=True)
class StreamStatus:
    """Where a node's event stream stands, for operators."""

    endpoint: str
    state: Status = Status.UNKNOWN
    connected: bool = False
    links_lost: int = 0
    messages: int = 0
    backlog: int = 0
    """Messages and batches waiting to be worked on."""
    last_message_s: float | None = None
    """Monotonic time of the last message."""
    last_seq: int | None = None
    replay_failures: int = 0
    audits: int = 0
    catch_ups: int = 0
    """Batches that an audit found missed."""
    problem: str = ""
    """What keeps the stream from being believed, in words; empty while all is well."""
    refused: str = ""
    """Why its address is not connected to; empty where it is."""
    cursor: CursorStats = field(default_factory=CursorStats)
    ingest: IngestStats | None = None

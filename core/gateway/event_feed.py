"""The live feed of everything that changes, as server-sent events.

Bounded by construction: events are kept once, in a ring, and a subscriber is a position in it.
One that reads slower than things happen is told how many events it missed and goes on with the
oldest kept one. A subscriber that comes back with Last-Event-ID gets what it missed meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime

import orjson

from core.errors import Overloaded

KEPT = 1024
"""Events in the ring."""
SUBSCRIBERS_MAX = 64
HEARTBEAT_S = 15.0
"""A comment after this long without an event, so that dead connections are noticed."""
_RETRY_MS = 2000


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """One change: its number in this process' life, what kind, and its data as JSON."""

    number: int
    kind: str
    data: bytes

    def frame(self) -> bytes:
        """The event on the wire."""
        return b"id: %d\nevent: %s\ndata: %s\n\n" % (self.number, self.kind.encode(), self.data)


class EventFeed:
    """The ring and whoever waits at its end. Owned by the event loop."""

    def __init__(self, *, kept: int = KEPT, subscribers_max: int = SUBSCRIBERS_MAX) -> None:
        self._ring: deque[FeedEvent] = deque(maxlen=kept)
        self._news = asyncio.Event()
        self._max = subscribers_max
        self._number = 0
        self._closed = False
        self.subscribers = 0

    @property
    def newest(self) -> int:
        """Number of the newest event; 0 before the first."""
        return self._number

    def publish(self, kind: str, node: str, data: Mapping[str, object], at: datetime) -> None:
        """Append an event; never waits."""
        self._number += 1
        body = {"at": at, "kind": kind, "node": node, **data}
        encoded = orjson.dumps(body, default=str, option=orjson.OPT_NON_STR_KEYS)
        self._ring.append(FeedEvent(self._number, kind, encoded))
        self._news.set()

    def close(self) -> None:
        """End every subscription after what is in the ring."""
        self._closed = True
        self._news.set()

    def subscribe(
        self, *, after: int | None = None, prefix: str = "", heartbeat_s: float = HEARTBEAT_S
    ) -> AsyncIterator[bytes]:
        """Frames from now on, or after an event's number; `prefix` keeps matching kinds only.

        Overloaded, at once, where too many read already.
        """
        if self.subscribers >= self._max:
            text = f"{self._max} clients read the event stream already"
            raise Overloaded(text, retry_after_s=5.0)
        # A number of an earlier process says nothing here: begin with what is kept.
        start = self._number if after is None else after if after <= self._number else 0
        return self._frames(start, prefix, heartbeat_s)

    async def _frames(self, seen: int, prefix: str, heartbeat_s: float) -> AsyncIterator[bytes]:
        self.subscribers += 1
        try:
            yield b"retry: %d\n: connected\n\n" % _RETRY_MS
            while True:
                lost = self._oldest() - seen - 1
                if lost > 0:
                    seen += lost
                    yield b'event: lost\ndata: {"kind":"lost","events":%d}\n\n' % lost
                found = self._next(seen)
                if found is not None:
                    seen = found.number
                    if found.kind.startswith(prefix):
                        yield found.frame()
                elif self._closed:
                    return
                elif not await self._more(heartbeat_s):
                    yield b": nothing new\n\n"
        finally:
            self.subscribers -= 1

    def _oldest(self) -> int:
        return self._ring[0].number if self._ring else self._number + 1

    def _next(self, seen: int) -> FeedEvent | None:
        """The event after number `seen`; numbers in the ring have no gaps."""
        at = seen + 1 - self._oldest()
        return self._ring[at] if 0 <= at < len(self._ring) else None

    async def _more(self, heartbeat_s: float) -> bool:
        """Wait for an event; False when nothing came in time."""
        self._news.clear()
        try:
            async with asyncio.timeout(heartbeat_s):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

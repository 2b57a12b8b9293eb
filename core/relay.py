"""From a thread of the store to the event loop: which topics other processes changed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Act = Callable[[frozenset[str]], Awaitable[None]]
log = logging.getLogger("conductor.changes")


class Relay:
    """Topics that a thread of the store tells of, carried to the event loop it was made in."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._topics: set[str] = set()

    def tell(self, topics: frozenset[str]) -> None:
        """From any thread, at any time."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._take, topics)

    @asynccontextmanager
    async def followed(self, act: Act) -> AsyncIterator[None]:
        """Call `act` with what was told, one call after another, while inside."""
        task = asyncio.create_task(self._run(act), name="changes")
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _take(self, topics: frozenset[str]) -> None:
        self._topics |= topics
        self._wake.set()

    async def _run(self, act: Act) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            topics, self._topics = frozenset(self._topics), set()
            try:
                await act(topics)
            except Exception:
                # Following must go on over one bad change; the next one may be read well.
                log.exception("changes of other processes could not be followed")

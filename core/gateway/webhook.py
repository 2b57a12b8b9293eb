"""Alerts told to an address of the operator's: one POST of JSON for each change.

The address stands in the settings file, is resolved through the guard of addresses (never a
metadata or link-local one), and redirects are not followed. Nothing waits for it: alerts go into
a bounded queue, a failed POST is tried again with growing pauses, and what is given up is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import httpx
import orjson

from core.engines.addresses import check_never, parse_url
from core.engines.guard import AddressGuard
from core.engines.probe import make_client

QUEUE_MAX = 256
TRIES = 4
TIMEOUT_S = 5.0
PAUSE_S = 1.0
"""After the first failure; doubles each time."""
log = logging.getLogger("conductor.alerts")


def check_webhook(url: str) -> None:
    """Invalid or Forbidden, naming the field, for an address that cannot be told of alerts."""
    field = "alerts.webhook_url"
    address = parse_url(url, field=field)
    if address.ip is not None:
        check_never(address.ip, field=field)


class Webhook:
    """Sends alerts while its context is open. `url` empty: nothing is sent."""

    def __init__(self, url: str, guard: AddressGuard, *, pause_s: float = PAUSE_S) -> None:
        self._url, self._guard, self._pause_s = url, guard, pause_s
        self._queue: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.sent = 0
        self.failures = 0
        """POSTs that failed, tries included."""
        self.given_up = 0
        self.last_error = ""

    async def __aenter__(self) -> Self:
        if self._url:
            check_webhook(self._url)
            self._guard.trust_host(parse_url(self._url, field="alerts.webhook_url").host)
            self._task = asyncio.create_task(self._run(), name="webhook")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    @property
    def on(self) -> bool:
        """Whether an address is set."""
        return bool(self._url)

    @property
    def waiting(self) -> int:
        """Alerts not told yet."""
        return len(self._queue)

    def put(self, alert: Mapping[str, object]) -> None:
        """Tell an alert; the oldest waiting one makes room where there is none."""
        if not self._url:
            return
        if len(self._queue) >= QUEUE_MAX:
            self._queue.popleft()
            self.given_up += 1
        self._queue.append(orjson.dumps(alert, default=str))
        self._news.set()

    async def _run(self) -> None:
        async with make_client(timeout_s=TIMEOUT_S, connections=1, guard=self._guard) as client:
            while True:
                await self._news.wait()
                self._news.clear()
                while self._queue:
                    await self._send(client, self._queue.popleft())

    async def _send(self, client: httpx.AsyncClient, body: bytes) -> None:
        for attempt in range(TRIES):
            try:
                headers = {"content-type": "application/json"}
                async with client.stream("POST", self._url, content=body, headers=headers) as a:
                    status = a.status_code
                if status < 300:
                    self.sent, self.last_error = self.sent + 1, ""
                    return
                self.last_error = f"answered {status}"
            except (httpx.HTTPError, OSError) as error:
                self.last_error = f"{type(error).__name__}: {error}"[:300]
            self.failures += 1
            await asyncio.sleep(self._pause_s * 2**attempt)
        self.given_up += 1
        log.error("an alert could not be told: %s", self.last_error)

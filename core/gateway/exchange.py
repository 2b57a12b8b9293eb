"""One HTTP exchange with a client over ASGI: read the body, notice that it left, answer."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from core.errors import BadRequest, TooLarge
from core.gateway import errors
from core.gateway.flights import Flight, Interrupt
from core.gateway.headers import check_request_head, first, safe_id
from core.gateway.limits import Limits
from core.identity.api_keys import Caller

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

ABORT = "conductor.abort"
"""Scope extension of our server: a call that drops the connection at once."""
LINGER_S = 10.0
LINGER_BYTES_MAX = 256 * 1024 * 1024
"""How long, and how much, of a body that is too large is read and thrown away."""
JSON = (b"content-type", b"application/json")


class ClientGone(Exception):
    """The client closed the connection while its body was being read."""


class Exchange:
    """A request and the answer to it. Everything sent goes through here, once."""

    __slots__ = (
        "_abort",
        "_receive",
        "_send",
        "_watch",
        "caller",
        "ended",
        "headers",
        "method",
        "path",
        "peer",
        "query",
        "request_id",
        "started",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, request_id: str) -> None:
        self.method: str = scope["method"]
        self.path = plain(scope["path"])
        self.query: bytes = scope.get("query_string", b"")
        self.headers: Headers = scope["headers"]
        self.peer: str = (scope.get("client") or ("", 0))[0]
        self.caller: Caller | None = None
        """Owner of the request's key; None where it brought none."""
        self.request_id = safe_id(first(self.headers, b"x-request-id")) or request_id
        self.started = False
        """The answer's head is out: nothing else can be answered."""
        self.ended = False
        self._abort: Callable[[], None] | None = scope.get("extensions", {}).get(ABORT)
        self._receive = receive
        self._send = send
        self._watch: asyncio.Task[None] | None = None

    # -- reading ---------------------------------------------------------------------------

    def header(self, name: bytes) -> bytes:
        """A request header by its lower-case name, b"" where absent."""
        return first(self.headers, name)

    async def body(self, limits: Limits) -> bytes:
        """The whole body. BadRequest for an ambiguous head, TooLarge, ClientGone."""
        check_request_head(self.headers)
        told = self.header(b"content-length")
        if told and int(told) > limits.body_bytes_max:
            raise _too_large(limits)
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        if not message.get("more_body"):
            return self._bounded(message.get("body", b""), limits)
        parts = bytearray(message.get("body", b""))
        while message.get("more_body"):
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts += message.get("body", b"")
            if len(parts) > limits.body_bytes_max:
                raise _too_large(limits)
        return bytes(parts)

    def _bounded(self, body: bytes, limits: Limits) -> bytes:
        if len(body) > limits.body_bytes_max:
            raise _too_large(limits)
        return body

    def watch(self, flight: Flight) -> None:
        """From now on, interrupt the flight when the client leaves."""
        self._watch = asyncio.create_task(self._wait_for_end(flight))

    def unwatch(self) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def _wait_for_end(self, flight: Flight) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                break
        if not self.ended:
            flight.interrupt(Interrupt.CLIENT_GONE)

    # -- answering -------------------------------------------------------------------------

    async def head(self, status: int, headers: Headers) -> None:
        """Send the answer's head; its body follows."""
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def part(self, data: bytes) -> None:
        """Send a piece of the body; waits while the client does not read."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Send the last piece; the exchange is over."""
        self.ended = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def answer(
        self,
        status: int,
        body: bytes,
        headers: Iterable[tuple[bytes, bytes]] = (JSON,),
        *,
        linger: bool = False,
    ) -> None:
        """A whole answer of ours. linger: the client may still be sending."""
        length = (b"content-length", b"%d" % len(body))
        name = (b"x-request-id", self.request_id.encode())
        await self.head(status, [*headers, length, name])
        if linger:
            await self.part(body)
            await self._linger()
            body = b""
        await self.end(body)

    async def _linger(self) -> None:
        """Let the client finish: one whose connection is closed while it sends sees it reset, and
        never the answer that says why."""
        left = LINGER_BYTES_MAX
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while left > 0:
                    message = await self._receive()
                    left -= len(message.get("body", b""))
                    if not message.get("more_body"):
                        return

    async def refuse(self, status: int, body: bytes, retry_after_s: float | None = None) -> None:
        """An error answer of ours, with Retry-After where it makes sense."""
        headers = [JSON]
        if retry_after_s is not None:
            headers.append((b"retry-after", errors.retry_after(retry_after_s)))
        if status in (400, 408, 413, 431):
            # What is left of such a request must not be taken for the next one.
            headers.append((b"connection", b"close"))
        await self.answer(status, body, headers, linger=status == 413)

    def cut(self) -> None:
        """Give the answer up in its middle: the client sees a broken connection."""
        self.ended = True
        if self._abort is not None:
            self._abort()

    async def fail(self, error: BaseException) -> None:
        """The answer an exception deserves, if none was begun."""
        if not self.started:
            await self.refuse(*errors.from_exception(error, request_id=self.request_id))


def plain(path: str) -> str:
    """The path without a slash at its end: `/v1/models/` means `/v1/models`."""
    return path.rstrip("/") or "/"


def integer_header(exchange: Exchange, name: bytes, *, low: int, high: int) -> int | None:
    """A whole number out of a header; BadRequest naming it where it is none or out of bounds."""
    value = exchange.header(name)
    if not value:
        return None
    try:
        number = int(value)
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        raise BadRequest(f"must be a whole number {low}..{high}", field=name.decode())
    return number


def seconds_header(exchange: Exchange, name: bytes) -> float | None:
    """Seconds out of a header in milliseconds; BadRequest where it is no positive number."""
    value = exchange.header(name)
    if not value:
        return None
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < 1e9:
        raise BadRequest("must be a positive number of milliseconds", field=name.decode())
    return number / 1000.0


def _too_large(limits: Limits) -> TooLarge:
    return TooLarge(f"the body is larger than {limits.body_bytes_max} bytes", field="body")

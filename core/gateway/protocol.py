"""uvicorn's HTTP protocol with what it leaves out: a deadline and a size for request heads, a
way for the application to drop a connection whose client does not read, and our form of errors."""

from __future__ import annotations

import asyncio
import socket

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from core.gateway import errors
from core.gateway.exchange import ABORT
from core.gateway.headers import TOTAL_BYTES_MAX
from core.gateway.limits import Limits

HEAD_BYTES_MAX = 4 * TOTAL_BYTES_MAX
"""Received before a head is complete; the exact limit is checked when it is."""


def gateway_protocol(limits: Limits) -> type[HttpToolsProtocol]:
    """The protocol class for `uvicorn.Config(http=...)`."""

    class Protocol(GatewayProtocol):
        head_timeout_s = limits.head_timeout_s

    return Protocol


class GatewayProtocol(HttpToolsProtocol):
    """One client connection.

    The deadline runs from the connection, or from the first byte of a later request on it, until
    the head is complete; a head that arrives in one piece needs no timer.
    """

    head_timeout_s = Limits().head_timeout_s

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected: its first head is due."""
        super().connection_made(transport)
        _send_at_once(transport)
        self._heading = True
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._heading = False
        self._watch_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came: maybe a head, maybe only a part of one."""
        if self._heading:
            self._head_bytes += len(data)
        super().data_received(data)
        self._watch_head()
        if self._heading and self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(431, "the request's head is too large", "header_too_large")

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._heading = True
        self.scope["extensions"] = {ABORT: self.transport.abort}  # type: ignore[dict-item]

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._heading = False
        self._head_bytes = 0
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP request."""
        self._refuse(400, msg, "invalid_request_error")

    def _should_upgrade(self) -> bool:
        """Never: no route speaks WebSocket, and a request may be answered without the upgrade."""
        return False

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing to warn of."""

    def _watch_head(self) -> None:
        if self._heading and self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout_s, self._head_late)
        elif not self._heading and self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        self._head_timer = None
        if self._heading:
            self._refuse(408, "the request's head did not arrive in time", "timeout")

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Answer a request that never became one, and close."""
        if self.transport.is_closing():
            return
        self._heading = False
        body = errors.error_body(status, message, code=code)
        head = (
            f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def _send_at_once(transport: asyncio.Transport) -> None:
    """Switch Nagle's algorithm off. asyncio does so only where it made the listening socket; on
    one that was handed over each answer, written in two pieces, would wait 40 ms for the client's
    delayed acknowledgement."""
    found = transport.get_extra_info("socket")
    if found is not None and found.family in (socket.AF_INET, socket.AF_INET6):
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

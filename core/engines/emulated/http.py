"""A lean HTTP/1.1 server: one protocol object a connection, one request at a time on it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, cast

import httptools
import orjson

BODY_MAX_BYTES = 64 << 20
BUFFER_MAX_BYTES = 16 << 20
"""A client that does not read while this much waits for it is cut off."""

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)
STREAM_END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


@dataclass(slots=True)
class HttpRequest:
    """One request; header names are lower case."""

    method: str = ""
    path: str = ""
    query: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    keep_alive: bool = True


def chunk(data: bytes) -> bytes:
    """Data as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def response(
    status: int, body: bytes = b"", *, content_type: str = "", headers: dict[str, str] | None = None
) -> bytes:
    """A whole response with a length."""
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"content-length: {len(body)}"]
    if content_type:
        lines.append(f"content-type: {content_type}")
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def json_response(status: int, value: Any, *, headers: dict[str, str] | None = None) -> bytes:
    """A JSON response."""
    body = orjson.dumps(value)
    return response(status, body, content_type="application/json", headers=headers)


Handler = Callable[["Connection", HttpRequest], None]


class Connection(asyncio.Protocol):
    """Parses requests, hands each to the handler, and takes its answer through `send`/`finish`.

    `on_lost` is called when the peer goes away before the answer ended.
    """

    def __init__(self, handler: Handler, open_connections: set[Connection]) -> None:
        self._handler = handler
        self._open = open_connections
        self._queue: deque[HttpRequest] = deque()
        self._current: HttpRequest | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._incoming = HttpRequest()
        self._closing = False
        self.on_lost: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start parsing."""
        self.transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)
        self._open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Tell the answer in progress that nobody reads it."""
        self._open.discard(self)
        self._closing = True
        lost, self.on_lost = self.on_lost, None
        if lost is not None:
            lost()

    def data_received(self, data: bytes) -> None:
        """Feed the parser."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.transport.close()

    def on_message_begin(self) -> None:
        """A new request begins."""
        self._incoming = HttpRequest()
        self._parts = []
        self._size = 0

    def on_url(self, url: bytes) -> None:
        """Request target, path and query."""
        path, _, query = url.decode("latin-1").partition("?")
        self._incoming.path += path
        self._incoming.query += query

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        key = name.decode("latin-1").lower()
        self._incoming.headers[key] = value.decode("latin-1")
        if key == "expect":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """A piece of the body; too much of it ends the connection."""
        self._size += len(data)
        if self._size > BODY_MAX_BYTES:
            self.transport.abort()
            return
        self._parts.append(data)

    def on_message_complete(self) -> None:
        """The request is complete: answer it, or queue it behind the one being answered."""
        request = self._incoming
        request.method = self._parser.get_method().decode("latin-1")
        request.keep_alive = self._parser.should_keep_alive()
        request.body = b"".join(self._parts)
        self._parts = []
        if self._current is None:
            self._begin(request)
        else:
            self._queue.append(request)

    def _begin(self, request: HttpRequest) -> None:
        self._current = request
        self._handler(self, request)

    def send(self, data: bytes) -> None:
        """Write a part of the answer."""
        if self._closing:
            return
        self.transport.write(data)
        if self.transport.get_write_buffer_size() > BUFFER_MAX_BYTES:
            self.transport.abort()

    def finish(self, data: bytes = b"") -> None:
        """Write the rest of the answer and go on with the next request."""
        if data:
            self.send(data)
        self.on_lost = None
        done, self._current = self._current, None
        if done is None or not done.keep_alive:
            self.close()
        elif self._queue and not self._closing:
            self._begin(self._queue.popleft())

    def close(self) -> None:
        """Close once everything written has left."""
        if not self._closing:
            self._closing = True
            self.transport.close()

    def abort(self) -> None:
        """Break the connection off."""
        self._closing = True
        self.transport.abort()

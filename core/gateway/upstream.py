"""Talking to engines on the data plane: one pooled aiohttp session, faults as values of ours.

An engine's connection is closed the moment its answer is not wanted any more: engines take a
closed connection for an abort, and have dropped the request within a tenth of a second.
"""

from __future__ import annotations

import io
from types import TracebackType
from typing import Self

import aiohttp

from core.engines.guard import AddressGuard, GuardedResolver
from core.errors import EngineBroken, EngineFault, EngineUnreachable
from core.gateway.limits import Limits

KEEPALIVE_S = 4.0
"""Below the engines' own five seconds, so that a pooled connection is rarely a closed one."""
READ_BUFFER_BYTES = 65_536
"""aiohttp stops reading from the engine at twice this: the bound of a stream's buffer."""
_BIG_BODY = 1 << 20
_NO_AUTO = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


def make_session(limits: Limits, guard: AddressGuard) -> aiohttp.ClientSession:
    """The session of the data plane, which connects to what the guard has checked.

    Deadlines are the flights' business, not the session's.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0,
            resolver=GuardedResolver(guard),
            use_dns_cache=False,  # the guard keeps answers
            keepalive_timeout=KEEPALIVE_S,
            enable_cleanup_closed=False,
        ),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.connect_timeout_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=_NO_AUTO,
        auto_decompress=False,
        trust_env=False,
        read_bufsize=READ_BUFFER_BYTES,
    )


class Answer:
    """An engine's answer whose head has come. Leaving the context frees the connection: back
    into the pool where the body was read to its end, closed where it was not."""

    __slots__ = ("_content", "_response", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._content = response.content
        self.status = response.status

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The raw headers, names in lower case."""
        return [(name.lower(), value) for name, value in self._response.raw_headers]

    @property
    def is_stream(self) -> bool:
        """Whether the body is a stream of server-sent events."""
        return self._response.content_type == "text/event-stream"

    async def read(self) -> bytes:
        """The next bytes as they come, b"" at the end. EngineFault where the body breaks."""
        try:
            return await self._content.readany()
        except BREAKS as error:
            raise broken(error) from error

    @property
    def content(self) -> aiohttp.StreamReader:
        """The body as aiohttp gives it, for loops that handle its exceptions (see `broken`)."""
        return self._content

    async def read_all(self, limit: int) -> tuple[bytes, bool]:
        """(body, whether that is all of it): stops past `limit` bytes."""
        parts: list[bytes] = []
        size = 0
        while data := await self.read():
            parts.append(data)
            size += len(data)
            if size > limit:
                return b"".join(parts), False
        return b"".join(parts), True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self._content.at_eof():
            self._response.release()
        else:
            self._response.close()


class Upstream:
    """Sends requests to engines."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def send(self, method: str, url: str, body: bytes, headers: dict[str, str]) -> Answer:
        """The answer's head. EngineFault where there is none; cancelling closes the connection."""
        data: bytes | io.BytesIO | None = body or None
        if len(body) > _BIG_BODY:
            data = io.BytesIO(body)  # sent in pieces, so that the loop is not held
            headers = {**headers, "content-length": str(len(body))}
        try:
            response = await self._session.request(
                method, url, data=data, headers=headers, allow_redirects=False
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise unreachable(error) from error
        return Answer(response)


class NodeGone(EngineUnreachable):
    """Nobody serves at the address any more: refused, reset, or closed without an answer.

    Such a node does no work, so moving its requests needs no retry budget.
    """


BREAKS = (aiohttp.ClientError, OSError)
"""What reading a body may raise."""


def unreachable(error: BaseException) -> EngineFault:
    """The fault behind an exception that came before the answer's head."""
    if isinstance(error, (aiohttp.ServerTimeoutError, TimeoutError)):
        return EngineUnreachable("the engine did not accept a connection in time")
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return EngineUnreachable("the node's host name could not be resolved")
    if isinstance(error, aiohttp.InvalidURL):
        return EngineUnreachable("the node's address is no URL")
    if isinstance(error, (OSError, aiohttp.ServerDisconnectedError)):
        return NodeGone("the engine refused the connection, or closed it without an answer")
    return EngineBroken(f"the engine's answer is no HTTP: {type(error).__name__}")


def broken(error: BaseException) -> EngineFault:
    """The fault behind an exception in the middle of an answer's body: nearly always a
    connection that ended too soon."""
    if isinstance(error, (OSError, aiohttp.ClientConnectionError, aiohttp.ClientPayloadError)):
        return NodeGone("the engine's connection broke in the middle of its answer")
    return EngineBroken("the engine's answer broke off")

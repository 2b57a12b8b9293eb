"""Which headers cross the proxy, both ways, and which request heads are refused. Pure.

Requests are rebuilt, not relayed: our own framing, an allow-list, one host, our request id. The
client's credential never reaches an engine; hop-by-hop headers and everything a Connection
header names stay behind, even where the allow-list would let them pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from core.errors import BadRequest

RawHeaders = Iterable[tuple[bytes, bytes]]

REQUEST_ALLOWED = frozenset(
    {
        b"accept",
        b"accept-language",
        b"content-type",
        b"traceparent",
        b"tracestate",
        b"user-agent",
        b"x-session-id",
    }
)
"""Client headers an engine may see. Framing, host, encoding and request id are our own."""

RESPONSE_ALLOWED = frozenset(
    {
        b"cache-control",
        b"content-disposition",
        b"content-language",
        b"content-type",
        b"retry-after",
    }
)
"""Engine headers a client may see; no cookies, no server banners, no framing."""

COUNT_MAX = 100
TOTAL_BYTES_MAX = 16_384
_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_LENGTH = re.compile(rb"[0-9]{1,19}")
_NAME = re.compile(rb"[!#$%&'*+.^`|~0-9A-Za-z-]+")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


class HeadTooLarge(BadRequest):
    """More header fields or bytes than a request head may have."""

    status, code = 431, "header_too_large"


def check_request_head(headers: RawHeaders) -> None:
    """Refuse a head that two parsers could read in two ways. Names must be lower case.

    Raises BadRequest (400) naming the header, or HeadTooLarge (431).
    """
    count = total = lengths = 0
    chunked = False
    for name, value in headers:
        count += 1
        total += len(name) + len(value) + 4
        if not _NAME.fullmatch(name):
            raise BadRequest("a header name has characters that are not allowed", field=_text(name))
        if _CONTROL.search(value):
            raise BadRequest("a header value has control characters", field=_text(name))
        if name == b"content-length":
            lengths += 1
            if not _LENGTH.fullmatch(value):
                raise BadRequest("must be one decimal number", field="content-length")
        elif name == b"transfer-encoding":
            if chunked or value.strip().lower() != b"chunked":
                raise BadRequest("only one `chunked` is accepted", field="transfer-encoding")
            chunked = True
    if lengths > 1 or (lengths and chunked):
        raise BadRequest("the body's length is given twice", field="content-length")
    if count > COUNT_MAX or total > TOTAL_BYTES_MAX:
        text = f"a request head may have {COUNT_MAX} fields and {TOTAL_BYTES_MAX} bytes"
        raise HeadTooLarge(text)


def request_headers(client: RawHeaders, ours: dict[str, str]) -> dict[str, str]:
    """Headers for the engine: what the allow-list passes, then `ours`, which win."""
    pairs = list(client)
    named = connection_named(pairs)
    kept: dict[str, str] = {}
    for name, value in pairs:
        if name in REQUEST_ALLOWED and name not in named:
            kept[name.decode("ascii")] = value.decode("latin-1")
    kept.update(ours)
    return kept


def response_headers(
    engine: RawHeaders, ours: Iterable[tuple[bytes, bytes]] = ()
) -> list[tuple[bytes, bytes]]:
    """Headers for the client: what the allow-list passes, then `ours`."""
    pairs = [(name.lower(), value) for name, value in engine]
    named = connection_named(pairs)
    kept = [(n, v) for n, v in pairs if n in RESPONSE_ALLOWED and n not in named]
    kept.extend(ours)
    return kept


def connection_named(pairs: RawHeaders) -> frozenset[bytes]:
    """Header names that a Connection header binds to this hop."""
    return frozenset(
        token.strip().lower()
        for name, value in pairs
        if name == b"connection"
        for token in value.split(b",")
        if token.strip()
    )


def first(headers: RawHeaders, name: bytes) -> bytes:
    """Value of the first header of that (lower-case) name, b"" without one."""
    for key, value in headers:
        if key == name:
            return value
    return b""


def safe_id(value: bytes) -> str:
    """A client's request id where it is harmless in logs, headers and ids; else ""."""
    return value.decode("ascii") if _ID.fullmatch(value) else ""


def _text(name: bytes) -> str:
    return name.decode("latin-1")[:64]

"""Fetching KV from another emulated engine: a small HTTP exchange that names blocks.

What travels is the fingerprint of each block's content, 8 bytes little-endian, as it stands in
the asked block numbers at that moment. The receiver compares it with what its prompt needs, so
a transfer of the wrong blocks shows in the text, as it would with real tensors.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence

import orjson

PATH = "/emulated/kv/"


class TransferFailed(Exception):
    """The other engine cannot be reached, is another one than named, or answered nonsense."""


def encode_fingerprints(values: Sequence[int]) -> bytes:
    """Fingerprints as the answer's body."""
    return struct.pack(f"<{len(values)}Q", *values)


def decode_fingerprints(body: bytes, expected: int) -> list[int]:
    """Fingerprints of an answer. Raises TransferFailed on a wrong length."""
    if len(body) != 8 * expected:
        raise TransferFailed(f"{len(body)} bytes instead of {8 * expected}")
    return list(struct.unpack(f"<{expected}Q", body))


async def fetch_blocks(
    host: str, port: int, request_id: str, *, engine_id: str, blocks: Sequence[int]
) -> list[int]:
    """Read blocks of a held request and end its hold. Raises TransferFailed."""
    question = orjson.dumps({"engine_id": engine_id, "blocks": list(blocks)})
    answer = await ask_peer(host, port, f"{PATH}{request_id}", question)
    return decode_fingerprints(answer, len(blocks))


async def ask_peer(host: str, port: int, path: str, body: bytes) -> bytes:
    """Post JSON to another emulated engine; its answer. Raises TransferFailed if it is not 200."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    try:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(head.encode() + body)
            answer = await reader.read(-1)
        finally:
            writer.close()
    except OSError as error:
        raise TransferFailed(f"{host}:{port}: {error}") from error
    status, _, rest = answer.partition(b"\r\n")
    if status.split(b" ")[1:2] != [b"200"]:
        raise TransferFailed(f"{host}:{port} answered {status.decode('latin-1')!r}")
    return rest.partition(b"\r\n\r\n")[2]

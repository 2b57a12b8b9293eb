"""KV-cache events as engines publish them: bytes in, typed events out, MalformedFrame otherwise.

A message is three frames (topic, sequence, payload); a replay reply carries an empty frame in
front and, in older releases, no topic. The payload is msgpack `[ts, [event, ...], rank]`. An
event is a map with a `type` (vLLM 0.24 and later, SGLang, Dynamo's mocker) or an array that
starts with its type (older vLLM). Missing tail fields take their defaults, unknown fields and
unknown event types are passed over. Publishers are not trusted: sizes and types are checked,
nothing but plain values is ever built.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from core.domain import Medium
from core.errors import MalformedFrame

PAYLOAD_BYTES_MAX = 8 << 20
EXTRA_BYTES_MAX = 1 << 20
EVENTS_MAX = 65_536
BLOCK_TOKENS_MAX = 65_536
REPLAY_END = -1
"""Sequence number of the message that ends a replay."""

EngineHash = int | bytes
"""An engine's own block hash: opaque, valid within that engine only."""

_MEDIA = {
    "gpu": Medium.GPU,
    "cpu": Medium.CPU,
    "cpu_pinned": Medium.CPU,
    "disk": Medium.DISK,
    "storage": Medium.DISK,
    "external": Medium.DISK,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Blocks an engine now holds: a run that continues `parent`, or starts a chain."""

    hashes: Sequence[EngineHash]
    parent: EngineHash | None
    tokens: np.ndarray
    """uint32, block_size a hash; empty where an engine only names blocks it published before."""
    block_size: int
    adapter: str = ""
    salt: str = ""
    """Cache salt; given with the first block of a chain only."""
    extras: Mapping[int, bytes] = field(default_factory=dict)
    """Further identity of block i of the run (multimodal ids, embedding digests), encoded."""
    medium: Medium = Medium.GPU
    group: int = 0
    kind: str = ""
    """Attention kind of the cache group, empty where not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """Blocks an engine no longer holds in `medium`."""

    hashes: Sequence[EngineHash]
    medium: Medium = Medium.GPU
    group: int = 0


@dataclass(frozen=True, slots=True)
class Cleared:
    """The engine's whole cache is empty."""


Event = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The events of one engine step; `ts` is the engine's own clock, in Unix seconds."""

    ts: float
    events: Sequence[Event]
    rank: int | None = None
    """Data-parallel rank, None where not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One message of the stream, its payload still encoded. `seq` is REPLAY_END at the end."""

    topic: bytes
    seq: int
    payload: bytes


class _StoredMap(msgspec.Struct, tag="BlockStored", tag_field="type", gc=False):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None = None
    token_ids: list[int] = []
    block_size: int = 0
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: msgspec.Raw = msgspec.Raw()
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    locality: str | None = None
    cache_salt: str | None = None


class _RemovedMap(msgspec.Struct, tag="BlockRemoved", tag_field="type", gc=False):
    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class _ClearedMap(msgspec.Struct, tag="AllBlocksCleared", tag_field="type", gc=False):
    pass


class _StoredArray(msgspec.Struct, tag="BlockStored", array_like=True, gc=False):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None = None
    token_ids: list[int] = []
    block_size: int = 0
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: msgspec.Raw = msgspec.Raw()
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    cache_salt: str | None = None


class _RemovedArray(msgspec.Struct, tag="BlockRemoved", array_like=True, gc=False):
    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class _ClearedArray(msgspec.Struct, tag="AllBlocksCleared", array_like=True, gc=False):
    pass


_Wire = _StoredMap | _RemovedMap | _ClearedMap | _StoredArray | _RemovedArray | _ClearedArray
_STORED = (_StoredMap, _StoredArray)
_REMOVED = (_RemovedMap, _RemovedArray)


class _MapBatch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[_StoredMap | _RemovedMap | _ClearedMap]
    rank: int | None = None


class _RawBatch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[msgspec.Raw]
    rank: int | None = None


class _Tag(msgspec.Struct):
    type: str


_map_batch = msgspec.msgpack.Decoder(_MapBatch).decode
_raw_batch = msgspec.msgpack.Decoder(_RawBatch).decode
_map_event = msgspec.msgpack.Decoder(_StoredMap | _RemovedMap | _ClearedMap).decode
_array_event = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray).decode
_map_tag = msgspec.msgpack.Decoder(_Tag).decode
_array_tag = msgspec.msgpack.Decoder(list[Any]).decode
_extra_keys = msgspec.msgpack.Decoder(list[list[Any] | None] | None).decode
_encode = msgspec.msgpack.Encoder().encode
_BROKEN = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError)


def parse_live(frames: Sequence[bytes]) -> Frame:
    """A message from the live socket: topic, 8 bytes of sequence, payload."""
    if len(frames) != 3:
        raise MalformedFrame(f"a message has 3 frames, not {len(frames)}")
    return _frame(frames[0], frames[1], frames[2])


def parse_replay(frames: Sequence[bytes]) -> Frame:
    """A reply from the replay socket, of either framing; its end has seq REPLAY_END."""
    if len(frames) not in (3, 4) or len(frames[0]) != 0:
        raise MalformedFrame("a replay reply has an empty frame and 2 or 3 others")
    topic = frames[1] if len(frames) == 4 else b""
    return _frame(topic, frames[-2], frames[-1])


def _frame(topic: bytes, seq: bytes, payload: bytes) -> Frame:
    if len(seq) != 8:
        raise MalformedFrame(f"a sequence number has 8 bytes, not {len(seq)}")
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise MalformedFrame(f"payload of {len(payload)} bytes is over {PAYLOAD_BYTES_MAX}")
    number = int.from_bytes(seq, "big", signed=True)
    if number < REPLAY_END:
        raise MalformedFrame(f"sequence number {number} is negative")
    return Frame(topic=topic, seq=number, payload=payload)


def decode_batch(payload: bytes) -> Batch:
    """The events of a payload; MalformedFrame where it is none."""
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise MalformedFrame(f"payload of {len(payload)} bytes is over {PAYLOAD_BYTES_MAX}")
    try:
        ts, wires, rank = _wires(payload)
        if len(wires) > EVENTS_MAX:
            raise MalformedFrame(f"{len(wires)} events in one batch, over {EVENTS_MAX}")
        events = [event for wire in wires if (event := _event(wire)) is not None]
    except _BROKEN as error:
        raise MalformedFrame(f"event batch: {error}") from None
    return Batch(ts=ts, events=events, rank=rank)


def _wires(payload: bytes) -> tuple[float, Sequence[_Wire | None], int | None]:
    """All events at once where they are maps of known types, else one by one."""
    try:
        batch = _map_batch(payload)
        return batch.ts, batch.events, batch.rank
    except msgspec.ValidationError:
        raw = _raw_batch(payload)
        return raw.ts, [_decode_event(each) for each in raw.events], raw.rank


def _decode_event(raw: msgspec.Raw) -> _Wire | None:
    """One event, map or array; None for types we do not know."""
    data = bytes(raw)
    is_map = data[0] & 0xF0 == 0x80 or data[0] in (0xDE, 0xDF)
    try:
        wire: _Wire = _map_event(data) if is_map else _array_event(data)
        return wire
    except msgspec.ValidationError:
        tag = _map_tag(data).type if is_map else _array_tag(data)[:1]
        name = tag if isinstance(tag, str) else tag[0] if tag else None
        if not isinstance(name, str) or name in ("BlockStored", "BlockRemoved", "AllBlocksCleared"):
            raise
        return None


def _event(wire: _Wire | None) -> Event | None:
    """The typed event; None for what says nothing about blocks held on the node itself."""
    if isinstance(wire, _STORED):
        return _stored(wire) if _local(wire.locality) else None
    if isinstance(wire, _REMOVED):
        if not _local(wire.locality):
            return None
        return Removed(
            hashes=wire.block_hashes, medium=_medium(wire.medium), group=wire.group_idx or 0
        )
    return Cleared() if wire is not None else None


def _local(locality: str | None) -> bool:
    return locality is None or locality.upper() != "REMOTE"


def _medium(name: str | None) -> Medium:
    """A medium we do not know is taken for the slowest."""
    return Medium.GPU if name is None else _MEDIA.get(name.lower(), Medium.DISK)


def _stored(wire: _StoredMap | _StoredArray) -> Stored:
    hashes, size = wire.block_hashes, wire.block_size
    if not 0 <= size <= BLOCK_TOKENS_MAX:
        raise MalformedFrame(f"block_size {size} is out of range")
    if wire.token_ids and len(wire.token_ids) != size * len(hashes):
        raise MalformedFrame(f"{len(wire.token_ids)} tokens for {len(hashes)} blocks of {size}")
    if len(set(hashes)) != len(hashes):
        raise MalformedFrame("one run names a block twice")
    adapter = wire.lora_name or ("" if wire.lora_id is None else f"lora-id-{wire.lora_id}")
    first = wire.parent_block_hash is None
    salt, extras = _identity(bytes(wire.extra_keys), wire.lora_name, len(hashes), first)
    return Stored(
        hashes=hashes,
        parent=wire.parent_block_hash,
        tokens=_tokens(wire.token_ids),
        block_size=size,
        adapter=adapter,
        salt=salt or (wire.cache_salt or "" if first else ""),
        extras=extras,
        medium=_medium(wire.medium),
        group=wire.group_idx or 0,
        kind=wire.kv_cache_spec_kind or "",
    )


def _tokens(ids: list[int]) -> np.ndarray:
    return np.frombuffer(array("I", ids), dtype=np.uint32) if ids else np.empty(0, np.uint32)


def _all_nil(encoded: bytes) -> bool:
    """Whether msgpack bytes are absent, nil, or an array of nils, which is nearly always so."""
    head = encoded.rstrip(b"\xc0")
    header = {0xDC: 3, 0xDD: 5}.get(head[0], 1 if head[0] & 0xF0 == 0x90 else 0) if head else 0
    return len(head) <= header


def _identity(
    encoded: bytes, lora_name: str | None, blocks: int, first: bool
) -> tuple[str, dict[int, bytes]]:
    """Salt and further identity from `extra_keys`, one entry a block.

    An entry lists, unlabelled and in this order: adapter name, (multimodal id, offset) pairs,
    cache salt (first block of a chain only), embedding digests. The first string is the adapter
    only where the event names one.
    """
    if len(encoded) > EXTRA_BYTES_MAX:
        raise MalformedFrame(f"extra_keys of {len(encoded)} bytes are over {EXTRA_BYTES_MAX}")
    if _all_nil(encoded):
        return "", {}
    entries = _extra_keys(encoded) or []
    if len(entries) > blocks:
        raise MalformedFrame(f"extra_keys for {len(entries)} of {blocks} blocks")
    salt = ""
    extras: dict[int, bytes] = {}
    for index, entry in enumerate(entries):
        rest = list(entry or ())
        if lora_name is not None and rest and rest[0] == lora_name:
            rest.pop(0)
        if first and index == 0:
            salt = next((item for item in rest if isinstance(item, str)), "")
            rest = [item for item in rest if not isinstance(item, str)]
        if rest:
            extras[index] = _encode(rest)
    return salt, extras

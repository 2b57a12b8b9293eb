"""KV-cache events as vLLM 0.32 encodes them: one msgpack array a batch, one map an event."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

NO_BATCH = b"\xff" * 8
"""Sequence number -1: the end mark of a replay."""

_SEQ = struct.Struct(">Q")


class BlockStored(
    msgspec.Struct, tag="BlockStored", tag_field="type", omit_defaults=True, gc=False
):
    """Consecutive blocks that now hold `token_ids` (block_size a hash), after `parent`."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[str] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    session_id: str | None = None


class BlockRemoved(
    msgspec.Struct, tag="BlockRemoved", tag_field="type", omit_defaults=True, gc=False
):
    """One physical copy of a block was given to something else."""

    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(
    msgspec.Struct, tag="AllBlocksCleared", tag_field="type", omit_defaults=True, gc=False
):
    """The prefix cache was reset."""


Event = BlockStored | BlockRemoved | AllBlocksCleared

_encoder = msgspec.msgpack.Encoder()


def encode_batch(events: Sequence[Event], *, at: float) -> bytes:
    """Payload frame `[ts, events, data-parallel rank]`; `at` is Unix seconds."""
    return _encoder.encode((at, events, 0))


def encode_seq(seq: int) -> bytes:
    """Sequence-number frame: 8 bytes, big-endian."""
    return _SEQ.pack(seq)


@dataclass(frozen=True, slots=True)
class Batch:
    """A published batch as it stands in the replay buffer."""

    seq: int
    payload: bytes


class EventLog:
    """Numbers batches from 0 and keeps the latest for replay, bounded in batches and bytes."""

    def __init__(self, *, steps_max: int, bytes_max: int) -> None:
        self.next_seq = 0
        self._kept: deque[Batch] = deque()
        self._bytes = 0
        self._steps_max = steps_max
        self._bytes_max = bytes_max

    def append(self, payload: bytes, *, keep: bool = True) -> Batch:
        """Take the next number; `keep=False` forgets the batch at once (a fault)."""
        batch = Batch(self.next_seq, payload)
        self.next_seq += 1
        if keep:
            self._kept.append(batch)
            self._bytes += len(payload)
            self._trim()
        return batch

    def _trim(self) -> None:
        while self._kept and (len(self._kept) > self._steps_max or self._bytes > self._bytes_max):
            self._bytes -= len(self._kept.popleft().payload)

    def since(self, start: int) -> Iterator[Batch]:
        """Kept batches numbered `start` or later, oldest first."""
        return (batch for batch in tuple(self._kept) if batch.seq >= start)

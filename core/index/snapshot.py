"""One node's part of the index as bytes, and back: so that a restart need not relearn it.

A snapshot is of one node (by id) and one run of its engine (by epoch). It carries the blocks with
their place in the chains, what the engine's hashes mean, and the mark of the last batch applied:
the event cursor goes on from that batch where the engine still knows it, and has everything
forgotten where it does not. So a snapshot can be stale without doing harm.

Both directions work in slices; the node's own events must not be applied between them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from core.domain import Medium, NodeId, Slot
from core.errors import MalformedFrame
from core.index.ingest import NodeIngest
from core.index.prefix_index import PrefixIndex

VERSION = 1
BLOCKS_A_SLICE = 4_096
_Result = TypeVar("_Result")


class Run(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Blocks that follow one another; `start` is the key before them, or their chain's root."""

    start: int
    from_root: bool
    keys: list[int]


class Held(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What the engine's hashes mean in one medium, and which have further copies."""

    medium: Medium
    hashes: list[int | bytes]
    keys: list[int]
    copies: list[tuple[int | bytes, int]]


class NodeSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A node's blocks. `applied` and `digest` are what EventCursor.start resumes from."""

    version: int
    node: str
    epoch: str
    model: str
    block_size: int
    applied: int
    digest: int
    runs: list[Run]
    held: list[Held]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Whose snapshot it is, and of what moment."""

    node: NodeId
    epoch: str
    applied: int
    digest: int


def dump_slices(
    index: PrefixIndex, slot: Slot, ingest: NodeIngest, mark: Mark
) -> Generator[None, None, bytes]:
    """Yields between slices; the snapshot is the generator's value."""
    runs: list[Run] = []
    blocks = 0
    for parent, from_root, keys in index.runs(slot):
        runs.append(Run(parent, from_root, keys))
        blocks += len(keys)
        if blocks >= BLOCKS_A_SLICE:
            blocks = 0
            yield
    held = []
    for medium, keys_by_hash, copies in ingest.tables():
        held.append(
            Held(medium, list(keys_by_hash), list(keys_by_hash.values()), list(copies.items()))
        )
        yield
    snapshot = NodeSnapshot(
        version=VERSION,
        node=mark.node,
        epoch=mark.epoch,
        model=ingest.model,
        block_size=ingest.block_size,
        applied=mark.applied,
        digest=mark.digest,
        runs=runs,
        held=held,
    )
    return msgspec.msgpack.encode(snapshot)


def dump(index: PrefixIndex, slot: Slot, ingest: NodeIngest, mark: Mark) -> bytes:
    """The snapshot in one go."""
    return drain(dump_slices(index, slot, ingest, mark))


def load(data: bytes) -> NodeSnapshot:
    """The snapshot; MalformedFrame where the bytes are none, or of another version."""
    try:
        snapshot: NodeSnapshot = msgspec.msgpack.decode(data, type=NodeSnapshot)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise MalformedFrame(f"index snapshot: {error}") from None
    if snapshot.version != VERSION:
        raise MalformedFrame(f"index snapshot of version {snapshot.version}, not {VERSION}")
    if any(len(held.hashes) != len(held.keys) for held in snapshot.held):
        raise MalformedFrame("index snapshot: as many hashes as keys expected")
    return snapshot


def restore_slices(
    snapshot: NodeSnapshot, index: PrefixIndex, slot: Slot, ingest: NodeIngest
) -> Generator[None, None, bool]:
    """Fill an empty node; its value is False, with nothing done, where the snapshot is not its.

    Epoch and node id are the caller's to compare; model and block size are compared here.
    """
    if (snapshot.model, snapshot.block_size) != (ingest.model, ingest.block_size):
        return False
    on_gpu = {key for held in snapshot.held if held.medium is Medium.GPU for key in held.keys}
    for run in snapshot.runs:
        parent = None if run.from_root else run.start
        index.store(slot, run.keys, parent=parent, root=run.start if run.from_root else 0)
        yield
    for held in snapshot.held:
        if held.medium is not Medium.GPU:
            for key in held.keys:
                index.store(slot, (key,), medium=held.medium)
            index.remove(slot, [key for key in held.keys if key not in on_gpu])
        ingest.restore(held.medium, dict(zip(held.hashes, held.keys, strict=True)), held.copies)
        yield
    return True


def restore(snapshot: NodeSnapshot, index: PrefixIndex, slot: Slot, ingest: NodeIngest) -> bool:
    """As `restore_slices`, in one go."""
    return drain(restore_slices(snapshot, index, slot, ingest))


def drain(slices: Generator[None, None, _Result]) -> _Result:
    """Run sliced work to its end without a pause."""
    iterator: Iterator[None] = slices
    while True:
        try:
            next(iterator)
        except StopIteration as end:
            result: _Result = end.value
            return result

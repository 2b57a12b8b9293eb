"""From an engine's events to the index: whose hash is which of our keys, and how often held.

Engine hashes are opaque handles: they differ between engines, versions and processes, so blocks
are keyed again from their tokens and each node keeps its own map from engine hash to key. What
was observed of engines decides the rest:

- vLLM may fill several physical copies of one block and announces each filling and each
  eviction; the block is gone with its last copy. Copies come from decoding or recomputing, so
  they continue a parent. A run that starts a chain and is known already is a re-announcement
  ("full" report) and adds nothing; taking a true copy for one only loses credit.
- Removals come tails first, one hash an event; consecutive ones are applied together.
- Engines with several cache groups publish each of them; only full attention decides.
- A run whose parent is unknown waits, bounded in blocks and in batches, for the parent.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from core.domain import Medium, Slot
from core.hashing import chain, root_key
from core.index.events import Batch, Cleared, EngineHash, Event, Removed, Stored
from core.index.prefix_index import PrefixIndex

BLOCKS_MAX = 4_194_304
ORPHAN_BLOCKS_MAX = 16_384
ORPHAN_BATCHES_MAX = 1_000
_ROOTS_MAX = 4_096
_PARTIAL = ("sliding", "chunked", "mamba", "linear", "cross", "encoder")
"""Kinds of cache group that hold only part of a prefix, by what their names contain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestStats:
    """What one node's event stream amounted to so far."""

    blocks: int
    """Engine hashes known now, over all media."""
    copies: int
    """Physical copies beyond the first."""
    orphan_blocks: int
    orphans_dropped: int
    unknown_removed: int
    """Removals of hashes never seen: events from before we listened."""
    refused: int
    """Blocks beyond the node's bound."""
    ignored: int
    """Events of other ranks, cache groups or block sizes."""


class NodeIngest:
    """Applies one node's batches to the index, in slices.

    model: base model name, part of every key. rank: data-parallel rank of the node; batches of
    other ranks are ignored. counts_copies: whether the engine announces physical copies (vLLM
    does, SGLang announces each block once).
    """

    def __init__(
        self,
        index: PrefixIndex,
        slot: Slot,
        *,
        model: str,
        block_size: int,
        rank: int | None = None,
        counts_copies: bool = True,
        blocks_max: int = BLOCKS_MAX,
    ) -> None:
        self._index = index
        self._slot = slot
        self.model = model
        self.block_size = block_size
        self.block_size_seen: int | None = None
        """A block size that its events carry and the node was not registered with."""
        self._rank = rank
        self._counts_copies = counts_copies
        self._blocks_max = blocks_max
        self._keys: dict[Medium, dict[EngineHash, int]] = {medium: {} for medium in Medium}
        self._copies: dict[Medium, dict[EngineHash, int]] = {medium: {} for medium in Medium}
        self._roots: dict[tuple[str, str], int] = {}
        self._kinds: dict[int, str] = {}
        self._orphans = _Orphans()
        self._work: deque[Event] = deque()
        self._batch: Batch | None = None
        self._done_blocks = 0
        self._tail: int | None = None
        self._unknown_removed = self._refused = self._ignored = 0

    def apply(self, batch: Batch, limit: int) -> bool:
        """Apply about `limit` blocks of the batch; True when done, else call again with it."""
        if self._batch is not batch:
            self._begin(batch)
        left = max(limit, 1)
        while self._work and left > 0:
            left -= self._step(left)
        if self._work:
            return False
        self._batch = None
        return True

    def forget(self) -> None:
        """All of the node's blocks vanish, and with them what its hashes meant."""
        self._reset()
        self._work.clear()
        self._batch = None
        self._index.forget(self._slot)

    def key_of(self, block: EngineHash) -> int | None:
        """Our key of an engine's block, None where it is not held."""
        for table in self._keys.values():
            key = table.get(block)
            if key is not None:
                return key
        return None

    def tables(
        self,
    ) -> Iterator[tuple[Medium, Mapping[EngineHash, int], Mapping[EngineHash, int]]]:
        """By medium: key of each engine hash, and copies beyond the first; empty ones left out."""
        for medium, table in self._keys.items():
            if table:
                yield medium, table, self._copies[medium]

    def restore(
        self,
        medium: Medium,
        keys: Mapping[EngineHash, int],
        copies: Iterable[tuple[EngineHash, int]],
    ) -> None:
        """Take over what `tables` gave; the blocks themselves are stored by the caller."""
        self._keys[medium].update(keys)
        self._copies[medium].update(copies)

    def stats(self) -> IngestStats:
        """Sizes and counters."""
        return IngestStats(
            blocks=sum(map(len, self._keys.values())),
            copies=sum(sum(copies.values()) for copies in self._copies.values()),
            orphan_blocks=self._orphans.blocks,
            orphans_dropped=self._orphans.dropped,
            unknown_removed=self._unknown_removed,
            refused=self._refused,
            ignored=self._ignored,
        )

    # -- one batch, in steps -------------------------------------------------------------------

    def _begin(self, batch: Batch) -> None:
        if self._work:
            raise ValueError("the batch before is not applied to its end")
        self._batch = batch
        self._done_blocks = 0
        self._orphans.age()
        if batch.rank is not None and self._rank is not None and batch.rank != self._rank:
            self._ignored += len(batch.events)
            return
        self._work.extend(batch.events)

    def _step(self, left: int) -> int:
        """Work on the first waiting event; returns the blocks it cost, at least 1."""
        event = self._work[0]
        if isinstance(event, Stored):
            return self._store(event, left)
        if isinstance(event, Removed):
            return self._remove(event, left)
        self._work.popleft()
        if isinstance(event, Cleared):
            self._reset()
            self._index.clear(self._slot)
        return 1

    def _finish(self, event: Event) -> None:
        self._work.popleft()
        self._done_blocks = 0
        if isinstance(event, Stored):
            for child in self._orphans.resolved(event.hashes):
                self._work.insert(0, child)

    def _reset(self) -> None:
        for table in (*self._keys.values(), *self._copies.values()):
            table.clear()
        self._orphans.clear()

    # -- stored --------------------------------------------------------------------------------

    def _store(self, event: Stored, left: int) -> int:
        if not event.hashes or not self._decides(event.group, event.kind):
            return self._ignore()
        if not event.tokens.size:
            return self._place(event)
        if event.block_size != self.block_size:
            self.block_size_seen = event.block_size
            return self._ignore()
        start = self._done_blocks
        parent = self._tail if start else None
        if not start and event.parent is not None:
            parent = self.key_of(event.parent)
            if parent is None:
                self._work.popleft()
                self._orphans.add(event)
                return 1
        stop = min(start + left, len(event.hashes))
        if sum(map(len, self._keys.values())) + stop - start > self._blocks_max:
            self._refused += len(event.hashes) - start
            self._work.popleft()
            self._done_blocks = 0
            return 1
        self._store_part(event, start, stop, parent)
        if stop == len(event.hashes):
            self._finish(event)
        return stop - start

    def _store_part(self, event: Stored, start: int, stop: int, parent: int | None) -> None:
        size = self.block_size
        root = self._root(event.adapter, event.salt) if parent is None else 0
        extras = {i - start: extra for i, extra in event.extras.items() if i >= start}
        tokens = event.tokens[start * size : stop * size]
        keys = chain(tokens, size, root if parent is None else parent, extras=extras)
        hashes = event.hashes[start:stop] if stop - start < len(event.hashes) else event.hashes
        self._enter(event.medium, hashes, keys, copies=event.parent is not None)
        self._index.store(self._slot, keys, medium=event.medium, parent=parent, root=root)
        if self._index.on_tokens is not None and not extras:
            self._index.on_tokens(tokens, keys, size, parent=parent, root=root)
        self._done_blocks = stop
        self._tail = keys[-1]

    def _enter(
        self, medium: Medium, hashes: Sequence[EngineHash], keys: Sequence[int], *, copies: bool
    ) -> None:
        """Learn what `hashes` mean; known ones count as further copies where `copies`."""
        table = self._keys[medium]
        if table.keys().isdisjoint(hashes):
            table.update(zip(hashes, keys, strict=True))
            return
        counts = self._copies[medium]
        for block, key in zip(hashes, keys, strict=True):
            known = table.get(block)
            if known == key:
                if copies and self._counts_copies:
                    counts[block] = counts.get(block, 0) + 1
                continue
            table[block] = key
            if known is not None:
                counts.pop(block, None)
                self._index.remove(self._slot, (known,), medium=medium)

    def _place(self, event: Stored) -> int:
        """Blocks named without tokens (copies to another medium): those the node holds count."""
        table = self._keys[event.medium]
        for block in event.hashes:
            key = self.key_of(block)
            if key is not None and self._index.holds(self._slot, key):
                table[block] = key
                self._index.store(self._slot, (key,), medium=event.medium)
        self._finish(event)
        return len(event.hashes)

    def _root(self, adapter: str, salt: str) -> int:
        root = self._roots.get((adapter, salt))
        if root is None:
            root = root_key(self.model, adapter=adapter, salt=salt, block_size=self.block_size)
            if len(self._roots) >= _ROOTS_MAX:
                self._roots.clear()
            self._roots[adapter, salt] = root
        return root

    # -- removed -------------------------------------------------------------------------------

    def _remove(self, event: Removed, left: int) -> int:
        """Apply this removal and those of the same medium and group that follow it."""
        medium, group = event.medium, event.group
        blocks: list[EngineHash] = []
        while self._work and len(blocks) < left:
            following = self._work[0]
            if not isinstance(following, Removed):
                break
            if following.medium is not medium or following.group != group:
                break
            room = left - len(blocks)
            blocks.extend(following.hashes[:room])
            self._work.popleft()
            if len(following.hashes) > room:
                self._work.appendleft(replace(following, hashes=following.hashes[room:]))
        if self._decides(group, ""):
            self._index.remove(self._slot, self._let_go(medium, blocks), medium=medium)
        else:
            self._ignored += 1
        return max(len(blocks), 1)

    def _let_go(self, medium: Medium, blocks: Sequence[EngineHash]) -> list[int]:
        """Keys of those blocks whose last copy has gone."""
        table, counts = self._keys[medium], self._copies[medium]
        keys: list[int] = []
        for block in blocks:
            if counts and block in counts:
                counts[block] -= 1
                if not counts[block]:
                    del counts[block]
                continue
            key = table.pop(block, None)
            if key is not None:
                keys.append(key)
            elif not self._orphans.cut(block):
                self._unknown_removed += 1
        return keys

    # -- what counts ---------------------------------------------------------------------------

    def _decides(self, group: int, kind: str) -> bool:
        """Whether a cache group decides on prefix hits: the first with full attention."""
        if kind and len(self._kinds) < 64:
            self._kinds.setdefault(group, kind)
        return group == min((g for g in self._kinds if self._whole(g)), default=0) and (
            self._whole(group) or group not in self._kinds
        )

    def _whole(self, group: int) -> bool:
        kind = self._kinds.get(group, "")
        return bool(kind) and not any(part in kind.lower() for part in _PARTIAL)

    def _ignore(self) -> int:
        self._ignored += 1
        self._work.popleft()
        return 1


class _Orphans:
    """Runs waiting for their parent, oldest first; bounded in blocks and in batches."""

    def __init__(self) -> None:
        self.blocks = 0
        self.dropped = 0
        self._batch = 0
        self._waiting: OrderedDict[EngineHash, tuple[int, list[Stored]]] = OrderedDict()
        self._parent_of: dict[EngineHash, EngineHash] = {}

    def add(self, event: Stored) -> None:
        """Keep a run until its parent is known."""
        parent = event.parent
        if parent is None or len(event.hashes) > ORPHAN_BLOCKS_MAX:
            self.dropped += len(event.hashes)
            return
        while self.blocks + len(event.hashes) > ORPHAN_BLOCKS_MAX:
            self._drop_oldest()
        self._waiting.setdefault(parent, (self._batch, []))[1].append(event)
        self._parent_of.update(dict.fromkeys(event.hashes, parent))
        self.blocks += len(event.hashes)

    def resolved(self, hashes: Sequence[EngineHash]) -> list[Stored]:
        """Runs that waited for any of `hashes`, which are known now."""
        found: list[Stored] = []
        if self._waiting:
            for parent in self._waiting.keys() & set(hashes):
                found.extend(self._take(parent))
        return found

    def cut(self, block: EngineHash) -> bool:
        """A waiting block was removed: its run ends before it. False where none waited."""
        parent = self._parent_of.get(block)
        if parent is None:
            return False
        for event in self._take(parent):
            hashes = list(event.hashes)
            keep = hashes.index(block) if block in hashes else len(hashes)
            if keep:
                tokens = event.tokens[: keep * event.block_size]
                self.add(replace(event, hashes=hashes[:keep], tokens=tokens))
        return True

    def age(self) -> None:
        """A batch has passed; what waited too long is dropped."""
        self._batch += 1
        while self._waiting:
            since, _ = next(iter(self._waiting.values()))
            if self._batch - since <= ORPHAN_BATCHES_MAX:
                return
            self._drop_oldest()

    def clear(self) -> None:
        """Nothing waits any more."""
        self._waiting.clear()
        self._parent_of.clear()
        self.blocks = 0

    def _drop_oldest(self) -> None:
        self.dropped += sum(len(event.hashes) for event in self._take(next(iter(self._waiting))))

    def _take(self, parent: EngineHash) -> list[Stored]:
        _, events = self._waiting.pop(parent)
        for event in events:
            self.blocks -= len(event.hashes)
            for block in event.hashes:
                self._parent_of.pop(block, None)
        return events

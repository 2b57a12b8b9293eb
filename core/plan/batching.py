"""Dynamic batching: pending requests grouped by model and shared cold prefix (S2 4.4.4, spec 10).

Theory. Requests that arrive together and share a long prefix nobody holds yet would each compute
it, wherever they go. Two pieces prevent that:

- `form_batches` lets requests wait a little under load and groups them: by model, then by the
  first `shared_tokens_min` tokens of what no node holds, then sorted so that the most important
  and shortest goes first. The first of a batch leads: it carries the cold prefix.
- `ColdPrefixBoard` remembers where leaders went until their prefill is due. Requests with the
  same prefix, of the same batch or later, follow to that node instead of computing it again. Only
  when another node would be done sooner even from scratch may the prefix be computed once more,
  on at most `copies_max` nodes at a time.

Both are pure: time is an argument, and the caller dispatches.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from core.domain import RequestId, Slot
from core.tunables import Batching

Floats = npt.NDArray[np.float64]
ENTRIES_MAX = 4096
"""Cold prefixes remembered at once; the soonest due is dropped first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A request that waits to be placed."""

    id: RequestId
    model: str
    prompt_tokens: int
    keys: Sequence[int]
    """Chained keys of its whole blocks, for one block size (empty: not tokenized)."""
    block_size: int
    reachable_tokens: int
    """Best match over all nodes: beyond it the prompt is cold."""
    arrived_s: float
    adapter: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Requests to place one after the other; the first leads."""

    model: str
    adapter: str
    group: int | None
    """Key of the shared cold prefix's last grouping block; None for requests that share none."""
    depth_blocks: int
    """Blocks up to and including that one; 0 without a group."""
    requests: tuple[Pending, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Formed:
    """Outcome of one look at the pending requests."""

    batches: tuple[Batch, ...]
    """To dispatch now, those with the longest-waiting request first."""
    waiting: tuple[Pending, ...]
    due_s: float
    """When to look again; inf when nobody waits."""


def form_batches(pending: Sequence[Pending], now: float, *, rules: Batching, load: float) -> Formed:
    """Group what is due. A model's requests are due together: when `size_max` of them wait, when
    the oldest has waited `wait_max_ms`, or at once while the mean load is below `load_min`.

    Every pending request ends in exactly one batch or in `waiting`.
    """
    patience_s = rules.wait_max_ms / 1000.0 if rules.enabled and load >= rules.load_min else 0.0
    batches: list[Batch] = []
    waiting: list[Pending] = []
    due_s = math.inf
    by_model: dict[tuple[str, str], list[Pending]] = {}
    for request in pending:
        by_model.setdefault((request.model, request.adapter), []).append(request)
    for (model, adapter), requests in by_model.items():
        oldest_s = min(r.arrived_s for r in requests)
        if len(requests) < rules.size_max and now < oldest_s + patience_s:
            waiting += requests
            due_s = min(due_s, oldest_s + patience_s)
            continue
        batches += _grouped(model, adapter, requests, rules)
    batches.sort(key=lambda b: min(r.arrived_s for r in b.requests))
    return Formed(batches=tuple(batches), waiting=tuple(waiting), due_s=due_s)


def cold_depth(request: Pending, shared_tokens_min: int) -> int:
    """Blocks down to which two requests must agree to be worth grouping; 0: none.

    The first `shared_tokens_min` tokens beyond what is held somewhere, in whole blocks.
    """
    held = request.reachable_tokens // request.block_size
    depth = held + math.ceil(shared_tokens_min / request.block_size)
    return depth if depth <= len(request.keys) else 0


def _grouped(
    model: str, adapter: str, requests: Sequence[Pending], rules: Batching
) -> Iterable[Batch]:
    groups: dict[tuple[int, int], list[Pending]] = {}
    alone: list[Pending] = []
    for request in requests:
        depth = cold_depth(request, rules.shared_tokens_min)
        if depth:
            groups.setdefault((request.keys[depth - 1], depth), []).append(request)
        else:
            alone.append(request)
    for (key, depth), members in groups.items():
        if len(members) == 1:
            alone += members
            continue
        for part in _parts(members, rules.size_max):
            yield Batch(model=model, adapter=adapter, group=key, depth_blocks=depth, requests=part)
    for part in _parts(alone, rules.size_max):
        yield Batch(model=model, adapter=adapter, group=None, depth_blocks=0, requests=part)


def _parts(requests: list[Pending], size_max: int) -> Iterable[tuple[Pending, ...]]:
    """Most important first, then shortest (its prefix is there soonest), then oldest."""
    ranked = sorted(requests, key=lambda r: (-r.priority, r.prompt_tokens, r.arrived_s, r.id))
    for begin in range(0, len(ranked), size_max):
        yield tuple(ranked[begin : begin + size_max])


@dataclass(slots=True, kw_only=True)
class ColdPrefix:
    """A prefix under computation, and where."""

    key: int
    depth_blocks: int
    tokens: int
    copies: dict[Slot, float] = field(default_factory=dict)
    """Slot -> when its leader's prefill is due, seconds."""


class ColdPrefixBoard:
    """Where cold prefixes are being computed. An entry ends when its last leader is due: from
    then on the index shows the holders and ordinary scheduling takes over.
    """

    def __init__(self, rules: Batching) -> None:
        self._rules = rules
        self._entries: dict[int, ColdPrefix] = {}
        self._depths: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def configure(self, rules: Batching) -> None:
        """New rules for the next placement on."""
        self._rules = rules

    def find(self, keys: Sequence[int], now: float) -> ColdPrefix | None:
        """The longest prefix of these keys that is being computed somewhere."""
        for depth in sorted(self._depths, reverse=True):
            found = self._entries.get(keys[depth - 1]) if depth <= len(keys) else None
            if found is not None and self._live(found, now):
                return found
        return None

    def follow(
        self,
        cold: ColdPrefix,
        *,
        queue_s: Floats,
        warm_s: Floats,
        cold_s: Floats,
        allowed: Sequence[bool] | npt.NDArray[np.bool_],
    ) -> Slot | None:
        """Where a request that shares the prefix goes; None: let it lead a further copy.

        By slot: queue_s until the node could start it (leaders included), warm_s and cold_s its
        prefill with and without the shared prefix, allowed the nodes that may serve it. A node
        that computes the prefix but may not serve the request is passed over.
        """
        there = [slot for slot in cold.copies if allowed[slot]]
        if not there:
            return None
        best = min(there, key=lambda slot: (float(queue_s[slot] + warm_s[slot]), slot))
        if len(cold.copies) >= self._rules.copies_max:
            return best
        others = np.array(allowed, dtype=np.bool_)
        others[there] = False
        if not others.any():
            return best
        from_scratch = float((queue_s + cold_s)[others].min())
        return None if from_scratch < float(queue_s[best] + warm_s[best]) else best

    def led(
        self, keys: Sequence[int], depth_blocks: int, *, block_size: int, slot: Slot, due_s: float
    ) -> None:
        """A request was placed that computes the first `depth_blocks` blocks by `due_s`."""
        key = keys[depth_blocks - 1]
        found = self._entries.get(key)
        if found is None:
            self._make_room()
            found = ColdPrefix(key=key, depth_blocks=depth_blocks, tokens=depth_blocks * block_size)
            self._entries[key] = found
            self._depths[depth_blocks] += 1
        found.copies[slot] = max(due_s, found.copies.get(slot, -math.inf))

    def failed(self, slot: Slot) -> None:
        """A node failed or lost its cache: nothing is coming from it."""
        for found in list(self._entries.values()):
            if found.copies.pop(slot, None) is not None and not found.copies:
                self._drop(found)

    def sweep(self, now: float) -> None:
        """Drop entries that are due; call it now and then."""
        for found in list(self._entries.values()):
            self._live(found, now)

    def entries(self) -> Mapping[int, ColdPrefix]:
        """All entries by key, to read."""
        return self._entries

    def _live(self, found: ColdPrefix, now: float) -> bool:
        if now < max(found.copies.values()):
            return True
        self._drop(found)
        return False

    def _make_room(self) -> None:
        if len(self._entries) >= ENTRIES_MAX:
            self._drop(min(self._entries.values(), key=lambda e: (max(e.copies.values()), e.key)))

    def _drop(self, found: ColdPrefix) -> None:
        if self._entries.pop(found.key, None) is not None:
            self._depths[found.depth_blocks] -= 1
            if not self._depths[found.depth_blocks]:
                del self._depths[found.depth_blocks]

"""A trace made ready to be replayed: keys, scaled arrivals, sessions, in parallel lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from core.domain import Request, RequestId
from core.hashing import root_key, trace_keys
from core.simulation.scenario import MODEL
from core.simulation.sessions import think_seconds, with_sessions
from core.simulation.traces import Trace


@dataclass(frozen=True, slots=True)
class Workload:
    """Parallel lists over requests in order of arrival; made once, shared by many runs.

    keys: keys of whole blocks, each of which names the prefix that ends there. children[i]:
    later turns of request i with their think times in seconds.
    """

    name: str
    block_tokens: int
    arrival_s: list[float]
    prompt_tokens: list[int]
    output_tokens: list[int]
    keys: list[list[int]]
    session: list[str]
    tenant: list[str]
    priority: list[int]
    first_turn: list[bool]
    children: list[list[tuple[int, float]]]
    _made: dict[bool, list[Request]] = field(default_factory=dict)

    def requests(self, *, prefill_only: bool) -> list[Request]:
        """The requests as the scheduler sees them; values, so runs share them."""
        made = self._made.get(prefill_only)
        if made is None:
            made = [self._request(i, prefill_only) for i in range(len(self))]
            self._made[prefill_only] = made
        return made

    def _request(self, i: int, prefill_only: bool) -> Request:
        return Request(
            id=RequestId(str(i)),
            model=MODEL,
            prompt_tokens=self.prompt_tokens[i],
            keys={self.block_tokens: self.keys[i]},
            output_tokens_expected=0 if prefill_only else self.output_tokens[i],
            session=self.session[i],
            tenant=self.tenant[i],
            priority=self.priority[i],
        )

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def span_s(self) -> float:
        """From the first arrival to the last, at load 1."""
        return self.arrival_s[-1] - self.arrival_s[0] if self.arrival_s else 0.0


def prepare(trace: Trace) -> Workload:
    """Name the blocks of the trace's prompts and link its sessions."""
    linked = with_sessions(trace)
    size = linked.block_tokens
    root = root_key(MODEL, block_size=size)
    requests = linked.requests
    children: list[list[tuple[int, float]]] = [[] for _ in requests]
    for i, r in enumerate(requests):
        if r.parent >= 0:
            children[r.parent].append((i, think_seconds(linked, i)))
    return Workload(
        name=linked.name,
        block_tokens=size,
        arrival_s=[r.arrival_s for r in requests],
        prompt_tokens=[r.prompt_tokens for r in requests],
        output_tokens=[r.output_tokens for r in requests],
        keys=numbered(trace_keys(r.hash_ids[: r.prompt_tokens // size], root) for r in requests),
        session=[r.session for r in requests],
        tenant=[r.tenant for r in requests],
        priority=[r.priority for r in requests],
        first_turn=[r.parent < 0 for r in requests],
        children=children,
    )


def numbered(chains: Iterable[Sequence[int]]) -> list[list[int]]:
    """The chains with every key replaced by its place (from 1) in order of first appearance.

    Equal keys stay equal and nothing else of a key matters. Blocks of one prompt then lie side
    by side in every table that lists them, as neighbours are hashed next to each other.
    """
    places: dict[int, int] = {}
    return [[places.setdefault(key, len(places) + 1) for key in chain] for chain in chains]

"""The one interface of all prefill policies, and the registry that names them.

A policy is a pure function over arrays of candidates. It returns one total per candidate and
every named term that went into it, so that a decision can be explained. It never picks: the
best total, and a seeded draw among equals, is `core.policy.pick`'s work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from core.errors import NotFound
from core.tunables import Tunables

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(slots=True, kw_only=True)
class Candidates:
    """What a policy may look at: k nodes that passed every hard constraint, as columns.

    All arrays have shape (k,) and are read-only to policies. Tokens are prompt tokens, times
    are seconds from now.
    """

    prompt_tokens: int
    """L."""
    match_tokens: Ints
    """M(n): leading prompt tokens held by n, 0 <= M <= L."""
    reachable_tokens: int
    """best_match: the longest match on any live node of the model, candidate or not."""
    queued_tokens: Floats
    """Q(n): uncached prefill tokens queued or running on n, from the ledger."""
    batch: Floats
    """B(n): requests in n's running batch plus waiting."""
    load: Floats
    """load(n) in 0..1 (see core.fleet.load)."""
    queue_s: Floats
    """T_queue(n): predicted wait until n could start this prompt."""
    prefill_s: Floats
    """T_prefill(L, M(n)) on n."""
    fetch: Bools
    """Whether n would fetch the missing blocks from the best holder (F Alg. 1's rule)."""
    prefix_tokens: Ints
    """Tokens cached when the prefill starts: best_match where `fetch`, else M(n)."""
    fetched_prefill_s: Floats
    """T_prefill(L, prefix_tokens(n)) on n; equals prefill_s where not `fetch`."""
    transfer_s: Floats
    """T_transfer(n): exposed time to fetch the missing blocks; 0 where not `fetch`."""
    waiting: Floats
    """Requests waiting on n."""
    queue_max: Floats
    compute: Floats
    """Relative compute speed in 0..1 (1 = the fleet's fastest)."""
    network: Floats
    """Closeness in 0..1 to the best holder of the prompt (1 = same node)."""
    resident: Bools
    """Whether n holds the request's model or adapter in memory already."""
    last_picked: Ints
    """Sequence number of the last decision for n; -1 never."""
    mean_queue_s: float
    """W: mean T_queue over the live prefill fleet now."""
    mean_prefill_s: float
    """S: running mean of a request's prefill time over the fleet."""
    priority_weight: float = 1.0
    """Tenant / SLO class weight; multiplies P in `multiplicative` (S3 5.2)."""
    session_hash: Ints | None = None
    """Rendezvous rank of each node for the request's session; None without a session."""
    decode_load: Floats | None = None
    kv_usage: Floats | None = None
    """0..1 of n's KV capacity in use by live requests."""
    inflight_tokens: Floats | None = None
    """Prompt tokens of requests in flight on n, cached or not."""

    @property
    def size(self) -> int:
        """k."""
        return len(self.match_tokens)


@dataclass(slots=True)
class Scores:
    """Totals to compare, the named terms behind them, and whether the policy wants fetching."""

    total: Floats
    terms: Mapping[str, Floats] = field(default_factory=dict)
    uses_fetch: bool = False
    """True where totals already cost fetching (prefix_tokens, transfer_s)."""


Totals = Floats | list[float]
"""One total a candidate; a list where there are few."""


class FewColumns(Protocol):
    """Lists by candidate row, for fleets too small for arrays to pay: seconds, with fetching."""

    queues: list[float]
    transfers: list[float]
    prefills: list[float]


class Policy(Protocol):
    """`name` as operators write it, `sense` of the comparison, `source` of the formula."""

    name: str
    sense: Literal["min", "max"]
    source: str

    def score(self, c: Candidates, t: Tunables) -> Scores:
        """Score every candidate. Pure: changes nothing, needs nothing else."""
        ...


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy made of a function; what the `policy` decorator registers."""

    name: str
    sense: Literal["min", "max"]
    source: str
    function: Callable[[Candidates, Tunables], Scores]
    needs: frozenset[str] = frozenset()
    """Costly columns the policy reads: "network", "session"; others find them neutral."""
    few: Callable[[FewColumns], list[float]] | None = None
    """The same totals from lists, where the policy is called often enough to be worth it."""
    leaves_out: str = ""
    """For policies named after a peer: what of the peer's behaviour is not reproduced."""

    def score(self, c: Candidates, t: Tunables) -> Scores:
        """Score every candidate."""
        return self.function(c, t)

    @property
    def doc(self) -> str:
        """The formula in words: the function's docstring."""
        return self.function.__doc__ or ""


_registry: dict[str, NamedPolicy] = {}


def policy(
    name: str,
    *,
    sense: Literal["min", "max"],
    source: str,
    needs: tuple[str, ...] = (),
    few: Callable[[FewColumns], list[float]] | None = None,
    leaves_out: str = "",
) -> Callable[[Callable[[Candidates, Tunables], Scores]], NamedPolicy]:
    """Register a scoring function under `name`; a name is taken once."""

    def register(function: Callable[[Candidates, Tunables], Scores]) -> NamedPolicy:
        if name in _registry:
            raise ValueError(f"policy {name!r} is registered twice")
        _registry[name] = NamedPolicy(
            name, sense, source, function, frozenset(needs), few, leaves_out
        )
        return _registry[name]

    return register


def get_policy(name: str) -> NamedPolicy:
    """The policy of that name; NotFound lists the known ones."""
    try:
        return _registry[name]
    except KeyError:
        known = ", ".join(policy_names())
        raise NotFound(f"unknown policy {name!r}; known: {known}", field="policy") from None


def policy_names() -> list[str]:
    """Registered names, sorted."""
    return sorted(_registry)

"""Random fleets for the property tests, and each policy once more as a plain loop.

The twins work on lists of nodes, one at a time, in pure Python: slow, and easy to check against
the documents.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from core.policy import Candidates
from core.tunables import Tunables

C0, C1, C2 = 0.01, 1e-4, 2e-9
KV_S_PER_TOKEN = 3e-6
HORIZON_S = 30.0


@dataclass
class Node:
    match: int
    queued: float
    running: int
    waiting: int
    kv: float
    inflight: float
    compute: float
    network: float
    resident: bool
    last_picked: int
    session: int
    queue_max: int = 100
    batch_max: int = 64

    @property
    def batch(self) -> int:
        return self.running + self.waiting

    @property
    def queue_s(self) -> float:
        return self.queued * C1

    @property
    def load(self) -> float:
        return min(max(self.queue_s / HORIZON_S, self.batch / self.batch_max, self.kv), 1.0)


@dataclass
class Case:
    length: int
    nodes: list[Node]
    mean_queue_s: float
    mean_prefill_s: float
    priority_weight: float
    has_session: bool
    fetching: bool = False
    reachable: int = 0

    @property
    def best(self) -> int:
        return max(self.reachable, *(n.match for n in self.nodes))


def prefill_s(length: int, prefix: int) -> float:
    return C0 + C1 * (length - prefix) + C2 * (length**2 - prefix**2)


def fetches(case: Case, n: Node) -> bool:
    return case.fetching and case.best > 1.3 * n.match


def prefix(case: Case, n: Node) -> int:
    return case.best if fetches(case, n) else n.match


def transfer_s(case: Case, n: Node) -> float:
    return (case.best - n.match) * KV_S_PER_TOKEN if fetches(case, n) else 0.0


def columns(case: Case) -> Candidates:
    """The case as the columns that policies read."""

    def floats(get: Callable[[Node], float]) -> np.ndarray:
        return np.array([get(n) for n in case.nodes], np.float64)

    def ints(get: Callable[[Node], int]) -> np.ndarray:
        return np.array([get(n) for n in case.nodes], np.int64)

    made = Candidates(
        prompt_tokens=case.length,
        match_tokens=ints(lambda n: n.match),
        reachable_tokens=case.best,
        queued_tokens=floats(lambda n: n.queued),
        batch=floats(lambda n: n.batch),
        load=floats(lambda n: n.load),
        queue_s=floats(lambda n: n.queue_s),
        prefill_s=floats(lambda n: prefill_s(case.length, n.match)),
        fetch=np.array([fetches(case, n) for n in case.nodes]),
        prefix_tokens=ints(lambda n: prefix(case, n)),
        fetched_prefill_s=floats(lambda n: prefill_s(case.length, prefix(case, n))),
        transfer_s=floats(lambda n: transfer_s(case, n)),
        waiting=floats(lambda n: n.waiting),
        queue_max=floats(lambda n: n.queue_max),
        compute=floats(lambda n: n.compute),
        network=floats(lambda n: n.network),
        resident=np.array([n.resident for n in case.nodes]),
        last_picked=ints(lambda n: n.last_picked),
        mean_queue_s=case.mean_queue_s,
        mean_prefill_s=case.mean_prefill_s,
        priority_weight=case.priority_weight,
        session_hash=ints(lambda n: n.session) if case.has_session else None,
        kv_usage=floats(lambda n: n.kv),
        inflight_tokens=floats(lambda n: n.inflight),
    )
    for value in (getattr(made, name) for name in Candidates.__slots__):
        if isinstance(value, np.ndarray):
            value.setflags(write=False)  # policies must not write into their inputs
    return made


@st.composite
def cases(draw: st.DrawFn, *, fetching: bool = False, nodes_min: int = 1) -> Case:
    """Fleets of 1 to 6 nodes; small numbers, so that ties and zeros are common."""
    length = draw(st.sampled_from([0, 1, 16, 1000, 100_000]))
    node = st.builds(
        Node,
        match=st.integers(0, length),
        queued=st.sampled_from([0.0, 16.0, 999.5, 400_000.0]),
        running=st.integers(0, 60),
        waiting=st.integers(0, 40),
        kv=st.sampled_from([0.0, 0.25, 0.9, 1.0]),
        inflight=st.sampled_from([0.0, 500.0, 300_000.0, 6e6]),
        compute=st.sampled_from([0.5, 1.0]),
        network=st.sampled_from([0.0, 0.5, 1.0]),
        resident=st.booleans(),
        last_picked=st.integers(-1, 5),
        session=st.integers(0, 2**62),
    )
    return Case(
        length=length,
        nodes=draw(st.lists(node, min_size=nodes_min, max_size=6)),
        mean_queue_s=draw(st.sampled_from([0.0, 0.5, 40.0])),
        mean_prefill_s=draw(st.sampled_from([0.0, 0.5, 3.0])),
        priority_weight=draw(st.sampled_from([0.5, 1.0, 4.0])),
        has_session=draw(st.booleans()),
        fetching=fetching,
    )


Twin = Callable[[Case, Node, Tunables], float]
TWINS: dict[str, Twin] = {}


def twin(name: str) -> Callable[[Twin], Twin]:
    def keep(f: Twin) -> Twin:
        TWINS[name] = f
        return f

    return keep


def share(case: Case, n: Node) -> float:
    return n.match / case.length if case.length else 0.0


@twin("linear")
def _linear(case: Case, n: Node, t: Tunables) -> float:
    return t.linear.alpha * share(case, n) + t.linear.beta * (1 - n.load)


@twin("weighted")
def _weighted(case: Case, n: Node, t: Tunables) -> float:
    w = t.weighted
    score = w.load * (1 - n.load) + w.queue * (1 - n.waiting / n.queue_max)
    score += w.compute * n.compute + w.network * n.network
    return score + (w.model if n.resident else 0.0)


@twin("multiplicative")
def _multiplicative(case: Case, n: Node, t: Tunables) -> float:
    m = t.multiplicative
    p = max(case.length - n.match, 0) + (n.queued if m.count_queued else 0.0)
    if m.log_tokens:
        p = math.log(1 + p)
    p *= case.priority_weight * (1 + m.network_weight * (1 - n.network))
    return p * max(n.batch, 1) + 1e-6 * n.batch


@twin("min_ttft")
def _min_ttft(case: Case, n: Node, t: Tunables) -> float:
    return n.queue_s + transfer_s(case, n) + prefill_s(case.length, prefix(case, n))


@twin("priced_ttft")
def _priced_ttft(case: Case, n: Node, t: Tunables) -> float:
    behind = case.mean_queue_s / case.mean_prefill_s if case.mean_prefill_s else 0.0
    work = transfer_s(case, n) + prefill_s(case.length, prefix(case, n))
    return n.queue_s + (1 + behind) * work


@twin("size_aware")
def _size_aware(case: Case, n: Node, t: Tunables) -> float:
    work = transfer_s(case, n) + prefill_s(case.length, prefix(case, n))
    square = 3.0 * case.mean_prefill_s**2
    factor = case.mean_queue_s / square if square else 0.0
    return n.queue_s + work + factor * ((n.queue_s + work) ** 2 - n.queue_s**2)


@twin("least_prefill_work")
def _least_prefill_work(case: Case, n: Node, t: Tunables) -> float:
    return n.queued + max(case.length - n.match, 0)


@twin("least_loaded")
def _least_loaded(case: Case, n: Node, t: Tunables) -> float:
    return max(n.load, n.queue_s / t.load.horizon_s)


@twin("round_robin")
def _round_robin(case: Case, n: Node, t: Tunables) -> float:
    return n.last_picked


@twin("random")
def _random(case: Case, n: Node, t: Tunables) -> float:
    return 0.0


@twin("session_affinity")
def _session_affinity(case: Case, n: Node, t: Tunables) -> float:
    return float(n.session) if case.has_session else 1 / (1 + _least_loaded(case, n, t))


def _dynamo_parts(case: Case, n: Node, t: Tunables) -> tuple[float, float]:
    credit = float(n.match)
    if t.dynamo.credit_decay and case.length:
        least = min(m.queued for m in case.nodes)
        credit /= 1 + t.dynamo.credit_decay * (n.queued - least) / case.length
    prefill = max(n.queued + case.length - credit, 0) / t.dynamo.block_tokens
    return prefill, (n.inflight + case.length) / t.dynamo.block_tokens


@twin("dynamo_linear")
def _dynamo_linear(case: Case, n: Node, t: Tunables) -> float:
    prefill, decode = _dynamo_parts(case, n, t)
    return t.dynamo.prefill_load_scale * prefill + decode


@twin("dynamo_lmetric")
def _dynamo_lmetric(case: Case, n: Node, t: Tunables) -> float:
    prefill, decode = _dynamo_parts(case, n, t)
    return prefill * (decode + 1)


@twin("llmd_weighted")
def _llmd_weighted(case: Case, n: Node, t: Tunables) -> float:
    waits = [m.waiting for m in case.nodes]
    high, low = max(waits), min(waits)
    queue = (high - n.waiting) / (high - low) if high > low else 1.0
    w = t.llmd_weighted
    return w.queue * queue + w.kv * (1 - n.kv) + w.prefix * share(case, n)


@twin("llmd_default_2026")
def _llmd_default_2026(case: Case, n: Node, t: Tunables) -> float:
    g = t.llmd_default_2026
    holders = [m for m in case.nodes if share(case, m) >= g.prefix_share_min]
    others = [m for m in case.nodes if share(case, m) < g.prefix_share_min]
    sticky = 0.0
    if holders and others and share(case, n) >= g.prefix_share_min:
        best = min(m.inflight for m in holders) / g.tokens_per_s
        other = min(m.inflight for m in others) / g.tokens_per_s
        sticky = float(best <= other + g.penalty_s)
    return sticky + 1 - min(n.inflight / g.token_load_max, 1)


@twin("pstack_loadaware")
def _pstack_loadaware(case: Case, n: Node, t: Tunables) -> float:
    mean = sum(m.batch for m in case.nodes) / len(case.nodes)
    return share(case, n) - t.pstack_loadaware.beta * (n.batch - mean) / max(1, mean)


@twin("smg_cache_aware")
def _smg_cache_aware(case: Case, n: Node, t: Tunables) -> float:
    g = t.smg_cache_aware
    counts = [m.batch for m in case.nodes]
    high, low = max(counts), min(counts)
    if high - low > g.spread_max and high > g.ratio_max * low:
        return n.batch
    if max(share(case, m) for m in case.nodes) > g.match_share_min:
        return case.length - n.match
    return n.batch


@twin("vllm_least_loaded")
def _vllm_least_loaded(case: Case, n: Node, t: Tunables) -> float:
    return 4 * n.waiting + n.running

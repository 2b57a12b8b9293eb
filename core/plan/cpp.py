"""Chunked pipeline parallelism: which nodes share one long prefill, and how (spec 6, F 3.3).

Theory. A group of X nodes splits the model's layers and passes the prompt through in chunks, so
that several chunks are computed at once (`core.plan.pipeline` has the recurrence). A stage may
begin when its member has drained its queue and fetched its layers of the cached prefix. Chunks
cost the same, so later ones are shorter (attention grows); none is longer than `chunk_tokens`.

A group is not free for others: several nodes leave the flow at once, and a member that has
drained its queue stands idle until chunks arrive while nothing else runs on it. Plans and the
single node are compared by

    TTFT * (1 + NEARNESS * distance) + others_weight * (others' delay)

where `core.plan.crowding` says how long others wait for the time each node is reserved, idle
time included. Members may not become free more than `slack_s` apart. Distance is 0 within a
rack, 1 within a zone, 2 beyond.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from core.domain import Place
from core.plan.cpp_plan import CppPlan, CppStage
from core.plan.crowding import Span, Traffic, others_delay_s
from core.plan.pipeline import (
    Coefficients,
    Floats,
    Ints,
    chunk_times,
    equal_cost_chunks,
    finish_times,
    layer_shares,
    whole_s,
)
from core.tunables import Cpp

CHUNK_TOKENS_MIN = 512
"""Shorter chunks do not fill a GPU, which the cost model does not show."""
CHUNKS_MAX = 256
CHUNK_TOLERANCE = 0.02
"""Share of the TTFT that the bubble may take before more chunks are worth it."""
NEARNESS = 0.05
"""What each step of distance has to gain."""

__all__ = ["CppModel", "CppNode", "CppPlan", "CppStage", "LinkRow", "plan", "wanted"]
NO_TRAFFIC = Traffic()
LinkRow = Callable[[int], tuple[Floats, Floats]]
"""Source slot -> (latency_s, s_per_byte) to every slot; inf latency without a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CppNode:
    """A node that could be a member."""

    slot: int
    prefill: Coefficients
    queue_s: float
    """Predicted time until it could start."""
    match_tokens: int = 0
    """Leading prompt tokens it holds."""
    place: Place = Place()


@dataclass(frozen=True, slots=True, kw_only=True)
class CppModel:
    """What of the model a plan needs."""

    layers: int
    kv_bytes_per_token: float
    """All layers together."""
    hidden_bytes_per_token: float
    """One layer's output, which stages hand over: width times bytes per value."""


def wanted(uncached_tokens: int, single_ttft_s: float, ttft_slo_s: float, rules: Cpp) -> str:
    """Why a prompt asks for a group, empty where it does not."""
    if single_ttft_s > ttft_slo_s:
        return "ttft_slo"
    return "long_prompt" if uncached_tokens >= rules.uncached_tokens_min else ""


def plan(
    nodes: Sequence[CppNode],
    *,
    uncached_tokens: int,
    prefix_tokens: int,
    source: int,
    model: CppModel,
    links: LinkRow,
    single_queue_s: float,
    single_ttft_s: float,
    ttft_slo_s: float,
    rules: Cpp,
    traffic: Traffic = NO_TRAFFIC,
) -> CppPlan | None:
    """The best group for a prompt, or None where none is wanted, possible or better than one node.

    `prefix_tokens` cached tokens are on the slot `source`; `nodes` are the candidates that passed
    every constraint; single_ttft_s is the prediction for the best of them alone, which would
    start after single_queue_s. A plan's TTFT is at least `gain_min` below that.
    """
    reason = wanted(uncached_tokens, single_ttft_s, ttft_slo_s, rules)
    if not reason or len(nodes) < 2 or uncached_tokens < 2:
        return None
    task = _Task(
        reason=reason,
        uncached=uncached_tokens,
        prefix=prefix_tokens,
        source=source,
        model=model,
        links=links,
        single_ttft_s=single_ttft_s,
        single_span=(single_queue_s, single_ttft_s),
        rules=rules,
        traffic=traffic,
        fleet=len(nodes),
        backlog_s=sum(node.queue_s for node in nodes),
    )
    limit_s = single_ttft_s * (1.0 - rules.gain_min)
    best, best_cost = None, task.cost(single_ttft_s, [task.single_span], 0)
    for floor, group in _groups(task, nodes):
        if floor >= best_cost:
            break
        found = _arranged(task, group)
        if found is not None and found.ttft_s <= limit_s and found.cost < best_cost:
            best, best_cost = found, found.cost
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    reason: str
    uncached: int
    prefix: int
    source: int
    model: CppModel
    links: LinkRow
    single_ttft_s: float
    single_span: Span
    rules: Cpp
    traffic: Traffic
    fleet: int
    backlog_s: float

    def others_s(self, spans: Sequence[Span]) -> float:
        return others_delay_s(
            spans, nodes=self.fleet, backlog_s=self.backlog_s, traffic=self.traffic
        )

    def cost(self, ttft_s: float, spans: Sequence[Span], distance: int) -> float:
        delay_s = self.others_s(spans)
        return ttft_s * (1.0 + NEARNESS * distance) + self.rules.others_weight * delay_s


@dataclass(frozen=True, slots=True)
class _Group:
    members: tuple[CppNode, ...]
    shares: tuple[int, ...]
    distance: int
    c1: float
    c2: float
    """Mean cost of the members, by which chunks are cut."""


def _groups(task: _Task, nodes: Sequence[CppNode]) -> list[tuple[float, _Group]]:
    """Groups worth timing with a floor of their cost, cheapest floor first.

    Of each rack, each zone and the whole fleet, the X members that would finish their part
    soonest, in the order in which they become free.
    """
    found: dict[frozenset[int], tuple[float, _Group]] = {}
    rules = task.rules
    alone = {n.slot: whole_s(n.prefill, task.uncached, task.prefix) for n in nodes}
    for distance in range(3):
        pools: dict[tuple[str, ...], list[CppNode]] = {}
        for node in nodes:
            pools.setdefault(_area(node.place, distance), []).append(node)
        for pool in pools.values():
            for size in range(2, min(rules.group_max, len(pool), task.model.layers) + 1):
                pool.sort(key=lambda n: (n.queue_s + alone[n.slot] / size, n.slot))
                members = tuple(sorted(pool[:size], key=lambda n: (n.queue_s, n.slot)))
                slots = frozenset(n.slot for n in members)
                near_in_time = members[-1].queue_s - members[0].queue_s <= rules.slack_s
                if near_in_time and slots not in found:
                    found[slots] = _sketched(task, members, distance, alone)
    return sorted(found.values(), key=lambda item: item[0])


def _area(place: Place, distance: int) -> tuple[str, ...]:
    """Nodes of equal area are within that distance; unknown levels count as one."""
    return ((place.zone, place.rack), (place.zone,), ())[distance]


def _sketched(
    task: _Task, members: tuple[CppNode, ...], distance: int, alone: dict[int, float]
) -> tuple[float, _Group]:
    """The group, and a floor of its cost: each member's queue and work, no bubble, no transfer."""
    layers, size = task.model.layers, len(members)
    shares = layer_shares([1.0 / max(alone[n.slot], 1e-12) for n in members], layers)
    c1, c2 = (sum(n.prefill[i] for n in members) / size for i in (1, 2))
    spans = [
        (n.queue_s, n.queue_s + alone[n.slot] * share / layers)
        for n, share in zip(members, shares, strict=True)
    ]
    floor = task.cost(max(end for _, end in spans), spans, distance)
    return floor, _Group(members, tuple(shares), distance, c1, c2)


def _arranged(task: _Task, group: _Group) -> CppPlan | None:
    """The group's plan; None where a member cannot be reached."""
    return _timed(task, group, max(_useful_chunks(task, group), _fewest_chunks(task, group)))


def _useful_chunks(task: _Task, group: _Group) -> int:
    """How many chunks pay: with W the whole work, K chunks on X stages take about

        queue + W / X + (X - 1) W / (X K) + c0 (K + X - 1) / X

    so beyond sqrt((X - 1) W / c0) their overhead wins, and beyond the point where the bubble (the
    third term) is CHUNK_TOLERANCE of the rest there is little left to gain.
    """
    size = len(group.members)
    work_s = whole_s((0.0, group.c1, group.c2), task.uncached, task.prefix)
    rest_s = max(node.queue_s for node in group.members) + work_s / size
    useful = (size - 1) * work_s / (size * CHUNK_TOLERANCE * max(rest_s, 1e-12))
    overhead_s = sum(node.prefill[0] for node in group.members) / size
    if overhead_s > 0:
        useful = min(useful, math.sqrt((size - 1) * work_s / overhead_s))
    most = max(min(task.uncached // CHUNK_TOKENS_MIN, CHUNKS_MAX), 1)
    return min(max(math.ceil(useful), 1), most)


def _fewest_chunks(task: _Task, group: _Group) -> int:
    """The least number of equal-cost chunks of which none is too long."""
    longest = task.rules.chunk_tokens
    count = math.ceil(task.uncached / longest)
    while count < task.uncached and _chunks(task, group, count).max() > longest:
        count += 1
    return count


def _chunks(task: _Task, group: _Group, count: int) -> Ints:
    return equal_cost_chunks(task.uncached, task.prefix, count, c1=group.c1, c2=group.c2)


def _timed(task: _Task, group: _Group, count: int) -> CppPlan | None:
    """The group's plan with `count` chunks; None where a member cannot be reached."""
    chunks, layers = _chunks(task, group, count), task.model.layers
    times = [
        chunk_times(node.prefill, share / layers, task.prefix, chunks)
        for node, share in zip(group.members, group.shares, strict=True)
    ]
    handoffs = [np.zeros(count)]
    for a, b in pairwise(group.members):
        latency, per_byte = task.links(a.slot)
        nbytes = chunks * task.model.hidden_bytes_per_token
        handoffs.append(latency[b.slot] + nbytes * per_byte[b.slot])
    missing = [_missing(task, node) for node in group.members]
    ready = _ready(task, group, missing)
    finish = finish_times(times, ready, handoffs)
    if not math.isfinite(finish[-1][-1]):
        return None
    stages = tuple(
        CppStage(
            slot=node.slot,
            layers=group.shares[s],
            queue_s=node.queue_s,
            start_s=max(float(finish[s][0] - times[s][0]), ready[s]),
            end_s=float(finish[s][-1]),
            work_s=float(times[s].sum()),
            fetch_tokens=missing[s],
        )
        for s, node in enumerate(group.members)
    )
    return _priced(task, group, stages, tuple(int(n) for n in chunks))


def _missing(task: _Task, node: CppNode) -> int:
    return 0 if node.slot == task.source else max(task.prefix - node.match_tokens, 0)


def _ready(task: _Task, group: _Group, missing: Sequence[int]) -> list[float]:
    """When each member can begin; the source sends to one member after the other."""
    if not any(missing):
        return [node.queue_s for node in group.members]
    latency, per_byte = task.links(task.source)
    sent_s, ready = 0.0, []
    for node, share, tokens in zip(group.members, group.shares, missing, strict=True):
        if tokens:
            nbytes = tokens * task.model.kv_bytes_per_token * share / task.model.layers
            sent_s += float(latency[node.slot] + nbytes * per_byte[node.slot])
        ready.append(max(node.queue_s, sent_s if tokens else 0.0))
    return ready


def _priced(
    task: _Task, group: _Group, stages: tuple[CppStage, ...], chunks: tuple[int, ...]
) -> CppPlan:
    """The plan with its bytes, and what sequence parallelism would move."""
    model, size = task.model, len(stages)
    home = max(range(size), key=lambda s: (group.members[s].match_tokens, stages[s].layers, -s))
    kv_layer_bytes = model.kv_bytes_per_token / model.layers
    activations = task.uncached * model.hidden_bytes_per_token
    spans = [(stage.queue_s, stage.end_s) for stage in stages]
    ttft_s = stages[-1].end_s
    return CppPlan(
        reason=task.reason,
        stages=stages,
        chunks=chunks,
        prefix_tokens=task.prefix,
        source=task.source,
        home=stages[home].slot,
        ttft_s=ttft_s,
        single_ttft_s=task.single_ttft_s,
        others_delay_s=task.others_s(spans) - task.others_s([task.single_span]),
        cost=task.cost(ttft_s, spans, group.distance),
        distance=group.distance,
        handoff_bytes=activations * (size - 1),
        prefix_bytes=sum(s.fetch_tokens * s.layers for s in stages) * kv_layer_bytes,
        gather_bytes=task.uncached * (model.layers - stages[home].layers) * kv_layer_bytes,
        sp_allreduces=2 * model.layers,
        sp_bytes=2.0 * model.layers * 2.0 * (size - 1) * activations,
    )

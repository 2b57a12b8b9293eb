"""The window of recorded requests, played in the simulator under two configurations.

The fleet is today's in number and roles, on the median node's cost and capacity; caches start
empty in both runs. So compare the two sides; neither is a forecast of absolute figures.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Any

from core.control.window import Seen
from core.domain import NodeSpec
from core.errors import BadRequest
from core.fleet.state import FleetState
from core.simulation.runner import run_scenario
from core.simulation.scenario import Scenario
from core.simulation.workload import Workload
from core.tunables import Tunables, diff

LEAST = 20
"""Fewer requests say nothing."""
_CACHE_UNKNOWN_TOKENS = 3_000_000
_OWN = frozenset({"policy", "guard", "shadow", "breaker", "trust"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetShape:
    """What the simulator needs to know of the fleet."""

    prefill: int
    decode: int
    both: int
    profile: str
    cache_tokens: int
    batch_max: int
    can_fetch: bool
    prefill_cost: tuple[float, float, float]
    tbt_cost: tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """Summaries of the two runs (see `core.simulation`)."""

    requests: int
    span_s: float
    live: dict[str, Any]
    proposed: dict[str, Any]
    notes: tuple[str, ...]


def fleet_shape(fleet: FleetState) -> FleetShape:
    """The live fleet, simplified; BadRequest without a node."""
    found = list(fleet.slots())
    if not found:
        raise BadRequest("replay: no node is registered", field="replay")
    roles = Counter(spec.role.value for _, spec in found)
    slots = [slot for slot, _ in found]

    def middle(*names: str) -> tuple[float, float, float]:
        a, b, c = (float(median(float(getattr(fleet, n)[s]) for s in slots)) for n in names)
        return a, b, c

    return FleetShape(
        prefill=roles["prefill"],
        decode=roles["decode"],
        both=roles["both"],
        profile=_commonest(spec for _, spec in found),
        cache_tokens=_cache_tokens([spec for _, spec in found]),
        batch_max=int(median(spec.batch_max for _, spec in found)),
        can_fetch=fleet.any_can_fetch,
        prefill_cost=middle("c0", "c1", "c2"),
        tbt_cost=middle("d0", "d1", "d2"),
    )


def _commonest(specs: Any) -> str:
    (name, _), *_ = Counter(spec.profile for spec in specs).most_common(1)
    return str(name)


def _cache_tokens(specs: Sequence[NodeSpec]) -> int:
    known = [s.kv_capacity_tokens for s in specs if s.kv_capacity_tokens]
    return int(median(known)) if known else _CACHE_UNKNOWN_TOKENS


def workload(seen: Sequence[Seen]) -> Workload:
    """The window as a simulated workload; BadRequest where it is too small to say anything."""
    sizes = Counter(s.block_tokens for s in seen if s.block_tokens)
    if len(seen) < LEAST or not sizes:
        text = f"replay: {len(seen)} recorded requests with keys, needs {LEAST}"
        raise BadRequest(text, field="replay")
    size = sizes.most_common(1)[0][0]
    kept = [s for s in seen if s.block_tokens == size]
    return Workload(
        name="recorded",
        block_tokens=size,
        arrival_s=[s.at_s for s in kept],
        prompt_tokens=[s.prompt_tokens for s in kept],
        output_tokens=[s.output_tokens for s in kept],
        keys=[list(s.keys) for s in kept],
        session=[s.session for s in kept],
        tenant=[s.tenant for s in kept],
        priority=[s.priority for s in kept],
        first_turn=[True] * len(kept),
        children=[[] for _ in kept],
    )


def scenario(shape: FleetShape, t: Tunables) -> Scenario:
    """The fleet under one configuration."""
    changed = {path: new for path, (_, new) in diff(Tunables(), t).items()}
    params = {p: v for p, v in changed.items() if p.split(".")[0] not in _OWN}
    return Scenario(
        prefill=shape.prefill,
        decode=shape.decode,
        both=shape.both,
        profile=shape.profile,
        cache_tokens=shape.cache_tokens,
        batch_max=shape.batch_max,
        policy=t.policy,
        params={**params, "admission.mode": t.admission.mode},
        fetch=t.fetch.enabled and shape.can_fetch,
        cpp=t.cpp.enabled,
        migration=t.migration.enabled,
        hotspot=t.hotspot.enabled,
        batching=t.batching.enabled,
        prefill_fit=shape.prefill_cost,
        tbt_fit=shape.tbt_cost,
    )


def replay(seen: Sequence[Seen], shape: FleetShape, live: Tunables, proposed: Tunables) -> Replayed:
    """Both runs, in a process of its own that yields to the service. Blocks: call it from a
    thread."""
    load = workload(seen)
    both = [scenario(shape, live), scenario(shape, proposed)]
    # Spawned, not forked: a fork copies the locks of the service's threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=os.nice, initargs=(10,)) as pool:
        mine, theirs = pool.map(_summary, both, [load, load])
    return Replayed(
        requests=len(load),
        span_s=load.span_s,
        live=mine,
        proposed=theirs,
        notes=(
            "caches start empty in both runs",
            "every node has the median cost and capacity of the fleet",
        ),
    )


def _summary(run: Scenario, load: Workload) -> dict[str, Any]:
    return run_scenario(run, load).summary()

"""Assembles what a prefill policy sees: the columns of the candidates, fetching included.

A node fetches the blocks it lacks from the best holder where F Algorithm 1 says so
(best_match > balancing_threshold * M) and where that is faster than computing them (S2's reuse
benefit is positive).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from core.domain import Request
from core.fleet import load as loads
from core.fleet.state import FleetState
from core.plan.transfer import Topology, exposed_seconds
from core.policy.base import Candidates
from core.tunables import Tunables

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Rows = Any
"""Index of the candidate rows: an int array, or slice(None) for all."""


@dataclass(slots=True)
class FleetLoad:
    """Load columns over all slots at one moment; shared by prefill and decode choice."""

    wait_s: Floats
    batch: Floats
    kv_share: Floats
    load: Floats


def fleet_load(fleet: FleetState, t: Tunables, now: float) -> FleetLoad:
    """Read the load signals once for a decision."""
    wait = loads.queue_s(fleet, now)
    believed = None
    if fleet.telemetry_seen:
        believed = loads.fresh(fleet, now, t.load.stale_after_s)
    batch = loads.batch(fleet, believed)
    kv = loads.kv_share(fleet, believed)
    horizon = t.load.horizon_s
    return FleetLoad(wait, batch, kv, loads.load(fleet, wait, batch, kv, horizon_s=horizon))


@dataclass(slots=True)
class FetchPlan:
    """Where missing blocks would come from, by candidate row."""

    source: int
    """Slot of the best holder."""
    fetch: Bools
    prefix: Ints
    prefill_s: Floats
    transfer_s: Floats


def plan_fetch(
    fleet: FleetState,
    topology: Topology,
    t: Tunables,
    request: Request,
    match: Ints,
    rows: Rows,
    *,
    reachable: int,
    recompute_s: Floats,
    now: float,
) -> FetchPlan | None:
    """F Alg. 1's rule for every candidate; None where nobody would fetch."""
    own = match[rows]
    wants = fleet.can_fetch[rows] & (own * t.fetch.balancing_threshold < reachable)
    if not wants.any():
        return None
    source = _best_holder(fleet, match, reachable)
    latency, per_byte = topology.row(source)
    length = request.prompt_tokens
    prefill_s = _prefill_s(fleet, rows, length, reachable)
    moved = (reachable - own) * fleet.kv_bytes[source]
    waiting_s = max(float(fleet.egress_until_s[source]) - now, 0.0)
    raw = waiting_s + latency[rows] + moved * per_byte[rows]
    transfer_s = exposed_seconds(raw, prefill_s, int(fleet.layers[source]))
    fetch = wants & (transfer_s + prefill_s < recompute_s)
    if not fetch.any():
        return None
    return FetchPlan(
        source,
        fetch,
        np.where(fetch, reachable, own),
        np.where(fetch, prefill_s, recompute_s),
        np.where(fetch, transfer_s, 0.0),
    )


def build_candidates(
    fleet: FleetState,
    topology: Topology,
    t: Tunables,
    request: Request,
    now: float,
    *,
    match: Ints,
    rows: Rows,
    busy: FleetLoad,
    mean_prefill_s: float,
    needs: frozenset[str],
) -> tuple[Candidates, FetchPlan | None]:
    """Columns of the candidates `rows` for one request, and the fetch plan behind them."""
    own = match[rows]
    reachable = int(match.max(initial=0))
    recompute_s = _prefill_s(fleet, rows, request.prompt_tokens, own)
    plan = None
    if reachable and t.fetch.enabled:
        plan = plan_fetch(
            fleet,
            topology,
            t,
            request,
            match,
            rows,
            reachable=reachable,
            recompute_s=recompute_s,
            now=now,
        )
    k = len(own)
    wait = busy.wait_s[rows]
    made = Candidates(
        prompt_tokens=request.prompt_tokens,
        match_tokens=own,
        reachable_tokens=reachable,
        queued_tokens=fleet.queued_tokens[rows],
        batch=busy.batch[rows],
        load=busy.load[rows],
        queue_s=wait,
        prefill_s=recompute_s,
        fetch=plan.fetch if plan else _constant(k, "no"),
        prefix_tokens=plan.prefix if plan else own,
        fetched_prefill_s=plan.prefill_s if plan else recompute_s,
        transfer_s=plan.transfer_s if plan else _constant(k, "zero"),
        waiting=fleet.prefilling[rows],
        queue_max=fleet.queue_max[rows],
        compute=fleet.compute[rows],
        network=_constant(k, "one"),
        resident=_constant(k, "yes"),
        last_picked=fleet.last_picked[rows],
        mean_queue_s=float(np.add.reduce(wait)) / k if k else 0.0,
        mean_prefill_s=mean_prefill_s,
        kv_usage=busy.kv_share[rows],
        inflight_tokens=fleet.prompt_tokens[rows],
    )
    if "network" in needs and reachable:
        made.network = _closeness(fleet, topology, match, reachable, rows)
    if "session" in needs and request.session:
        made.session_hash = _rendezvous(fleet, request.session, rows)
    return made, plan


def _prefill_s(fleet: FleetState, rows: Rows, length: int, prefix: Ints | int) -> Floats:
    if length == 0:
        return np.zeros(len(fleet.c0[rows]))
    out: Floats = fleet.c0[rows] + (length - prefix) * (
        fleet.c1[rows] + fleet.c2[rows] * (length + prefix)
    )
    return out


def _best_holder(fleet: FleetState, match: Ints, reachable: int) -> int:
    """The holder of the longest match whose sender is free first."""
    holders = np.flatnonzero(match == reachable)
    return int(holders[fleet.egress_until_s[holders].argmin()])


def _closeness(
    fleet: FleetState, topology: Topology, match: Ints, reachable: int, rows: Rows
) -> Floats:
    """1 on the best holder itself, else its fastest link's time over this one's, in 0..1."""
    source = _best_holder(fleet, match, reachable)
    _, per_byte = topology.row(source)
    local = per_byte[rows]
    others = local[local > 0]
    fastest = float(others.min()) if len(others) else 1.0
    near: Floats = np.where(local > 0, fastest / np.where(local > 0, local, 1.0), 1.0)
    return near


def _rendezvous(fleet: FleetState, session: str, rows: Rows) -> Ints:
    """Rank of each node for a session: stable when other nodes come and go."""
    slots = np.arange(fleet.capacity)[rows]
    names = (fleet.node_at(int(slot)) for slot in slots)
    ranks = [xxhash.xxh3_64_intdigest(f"{session}\0{name}") >> 1 for name in names]
    return np.array(ranks, np.int64)


@functools.cache
def _constant(k: int, kind: str) -> Any:
    """A shared read-only column of length k."""
    value, dtype = {
        "zero": (0.0, np.float64),
        "one": (1.0, np.float64),
        "no": (False, np.bool_),
        "yes": (True, np.bool_),
    }[kind]
    column = np.full(k, value, dtype)
    column.setflags(write=False)
    return column

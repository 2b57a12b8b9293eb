"""Assembles what a prefill policy sees: the columns of the candidates, fetching included.

A node fetches the blocks it lacks from the best holder where F Algorithm 1 says so
(best_match > balancing_threshold * M) and where that is faster than computing them (S2's reuse
benefit is positive).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from core.domain import Request, Slot
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
SENDERS_MAX = 4
"""So many of the best holders are asked whether they reach a node that wants to fetch."""


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """Load of every slot at one moment; for those who watch the fleet."""

    wait_s: Floats
    batch: Floats
    kv_share: Floats
    load: Floats


def fleet_load(fleet: FleetState, t: Tunables, now: float) -> FleetLoad:
    """The signals of core.fleet.load over all slots."""
    believed = loads.fresh(fleet, now, t.load.stale_after_s) if fleet.telemetry_seen else None
    wait, batch = loads.queue_s(fleet, now), loads.batch(fleet, believed)
    kv, horizon = loads.kv_share(fleet, believed), t.load.horizon_s
    busy = loads.load(wait, batch, kv, batch_max=fleet.batch_max, horizon_s=horizon)
    return FleetLoad(wait, batch, kv, busy)


class Chosen(msgspec.Struct, frozen=True):
    """Figures of one candidate: tokens, seconds, and the slot it fetches from, if it does."""

    slot: Slot
    match_tokens: int
    prefix_tokens: int
    queue_s: float
    transfer_s: float
    prefill_s: float
    source: int | None


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
    source = _sender(fleet, topology, match, reachable, rows, wants)
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


class Column:
    """A column of candidates that is computed when it is first asked for."""

    __slots__ = ("_compute", "_name")

    def __init__(self, name: str, compute: Callable[[Any], Any]) -> None:
        self._name, self._compute = name, compute

    def __get__(self, c: Any, owner: type) -> Any:
        """Compute it; from then on the instance's own attribute answers."""
        value = c.__dict__[self._name] = self._compute(c)
        return value


class LiveCandidates(Candidates):
    """Candidates read from the fleet at `now`; a column is computed when it is first asked for.

    rows: slots of the candidates, or slice(None) for all. needs: the costly columns ("network",
    "session") that the policy reads; without them those columns stay neutral.
    """

    _all_match: Any
    """M by slot: an array, or a list where slots are few."""
    believed: Bools | None
    """By slot: whose own gauges may still be believed; None where no node ever told any."""

    def __init__(
        self,
        fleet: FleetState,
        topology: Topology,
        t: Tunables,
        request: Request,
        now: float,
        match: Ints,
        rows: Rows,
        mean_prefill_s: float,
        needs: frozenset[str],
    ) -> None:
        self._fleet, self._topology, self._t = fleet, topology, t
        self._request, self._now = request, now
        self._all_match, self._rows, self._needs = match, rows, needs
        self.prompt_tokens = request.prompt_tokens
        own = self.match_tokens = match[rows]
        self.reachable_tokens = int(np.maximum.reduce(match))
        self.queue_s = loads.queue_s(fleet, now)[rows]
        recompute_s = self.prefill_s = _prefill_s(fleet, rows, self.prompt_tokens, own)
        self.mean_prefill_s = mean_prefill_s
        self.priority_weight = 1.0
        plan = self.fetch_plan = self._plan_fetch(recompute_s)
        k = len(own)
        self.fetch = plan.fetch if plan else _constant(k, "no")
        self.prefix_tokens = plan.prefix if plan else own
        self.fetched_prefill_s = plan.prefill_s if plan else recompute_s
        self.transfer_s = plan.transfer_s if plan else _constant(k, "zero")

    def at(self, row: int) -> Chosen:
        """One candidate's figures."""
        plan = self.fetch_plan
        slot = row if isinstance(self._rows, slice) else int(self._rows[row])
        return Chosen(
            Slot(slot),
            int(self.match_tokens[row]),
            int(self.prefix_tokens[row]),
            float(self.queue_s[row]),
            float(self.transfer_s[row]),
            float(self.fetched_prefill_s[row]),
            plan.source if plan is not None and plan.fetch[row] else None,
        )

    def _plan_fetch(self, recompute_s: Floats) -> FetchPlan | None:
        if not self.reachable_tokens or not self._t.fetch.enabled or not self._fleet.any_can_fetch:
            return None
        return plan_fetch(
            self._fleet,
            self._topology,
            self._t,
            self._request,
            self._all_match,
            self._rows,
            reachable=self.reachable_tokens,
            recompute_s=recompute_s,
            now=self._now,
        )


@functools.cache
def _constant(k: int, kind: str) -> Any:
    """A shared read-only column of length k."""
    value, dtype = {
        "zero": (0.0, np.float64),
        "one": (1.0, np.float64),
        "no": (False, np.bool_),
        "yes": (True, np.bool_),
    }[kind]
    column: npt.NDArray[Any] = np.full(k, value, dtype)
    column.setflags(write=False)
    return column


def _mean_queue_s(c: LiveCandidates) -> float:
    return float(np.add.reduce(c.queue_s)) / max(c.size, 1)


def _believed(c: LiveCandidates) -> Any:
    if not c._fleet.telemetry_seen:
        return None
    return loads.fresh(c._fleet, c._now, c._t.load.stale_after_s)


def _load(c: LiveCandidates) -> Floats:
    kv, most = c.kv_usage, c._fleet.batch_max[c._rows]
    assert kv is not None
    return loads.load(c.queue_s, c.batch, kv, batch_max=most, horizon_s=c._t.load.horizon_s)


def _network(c: LiveCandidates) -> Floats:
    if "network" not in c._needs or not c.reachable_tokens:
        return _constant(c.size, "one")  # type: ignore[no-any-return]
    held = np.asarray(c._all_match)
    return _closeness(c._fleet, c._topology, held, c.reachable_tokens, c._rows)


def _session_hash(c: LiveCandidates) -> Ints | None:
    session = c._request.session
    if "session" not in c._needs or not session:
        return None
    return _rendezvous(c._fleet, session, c._rows)


_LAZY: dict[str, Callable[[LiveCandidates], Any]] = {
    "queued_tokens": lambda c: c._fleet.queued_tokens[c._rows],
    "batch": lambda c: loads.batch(c._fleet, c.believed)[c._rows],
    "kv_usage": lambda c: loads.kv_share(c._fleet, c.believed)[c._rows],
    "load": _load,
    "waiting": lambda c: c._fleet.prefilling[c._rows],
    "queue_max": lambda c: c._fleet.queue_max[c._rows],
    "compute": lambda c: c._fleet.compute[c._rows],
    "network": _network,
    "resident": lambda c: _constant(c.size, "yes"),
    "last_picked": lambda c: c._fleet.last_picked[c._rows],
    "mean_queue_s": _mean_queue_s,
    "session_hash": _session_hash,
    "decode_load": lambda _: None,
    "inflight_tokens": lambda c: c._fleet.prompt_tokens[c._rows],
    "believed": _believed,
}
for _name, _compute in _LAZY.items():
    setattr(LiveCandidates, _name, Column(_name, _compute))


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


def _sender(
    fleet: FleetState, topology: Topology, match: Ints, reachable: int, rows: Rows, wants: Bools
) -> int:
    """The best holder, or among the first few of equals one that reaches a node that wants."""
    holders = np.flatnonzero(match == reachable)
    if len(holders) == 1:
        return int(holders[0])
    order = fleet.egress_until_s[holders].argsort(kind="stable")
    ranked = holders[order[:SENDERS_MAX]].tolist()
    for slot in ranked:
        if (topology.row(slot)[0][rows] < np.inf)[wants].any():
            return int(slot)
    return int(ranked[0])


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
    ranks = [xxhash.xxh3_64_intdigest(f"{session}\0{name}".encode()) >> 1 for name in names]
    return np.array(ranks, np.int64)

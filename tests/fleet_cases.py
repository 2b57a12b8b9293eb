"""Small fleets, chains of blocks and requests for tests of what decides."""

from __future__ import annotations

import random
from typing import Any

from core.conductor import Conductor
from core.domain import (
    Decision,
    EventEndpoints,
    Health,
    LinkKind,
    NodeId,
    NodeSpec,
    Outcome,
    OutcomeKind,
    Prediction,
    Rejection,
    Request,
    RequestId,
    Role,
    Slot,
)
from core.fleet.state import FleetState, NodeCost
from core.fleet.trust import Signal
from core.hashing import root_key, trace_keys
from core.plan.case import NO_TABLE
from core.plan.transfer import Link, Topology
from core.tunables import Tunables

MODEL = "m"
BLOCK = 16
EVENTS = EventEndpoints(live="tcp://127.0.0.1:1")
COST = NodeCost(prefill=(0.0, 1e-3, 0.0), tbt=(0.01, 0.0, 0.0), kv_bytes_per_token=1e5, layers=10)
"""A millisecond a new token, 10 ms between tokens."""


def spec(name: str, **more: Any) -> NodeSpec:
    """A node of MODEL with events, all links and a transfer group."""
    fields: dict[str, Any] = {
        "url": f"http://{name}",
        "models": (MODEL,),
        "block_size": BLOCK,
        "kv_capacity_tokens": 1_000_000,
        "context_tokens_max": 200_000,
        "events": EVENTS,
        "kv_transfer": "nixl",
        "links": (LinkKind.IB_NDR, LinkKind.TCP),
    }
    return NodeSpec(id=NodeId(name), **(fields | more))


def conductor(
    *specs: NodeSpec,
    changes: dict[str, Any] | None = None,
    seed: int = 0,
    learn: bool = True,
    explain: bool = True,
    costs: dict[str, tuple[float, float, float]] | None = None,
    uniform: Link | None = None,
) -> Conductor:
    """A conductor whose nodes are healthy at time 0 and whose event streams are complete.

    costs: prefill coefficients by node, instead of the profile's.
    """
    made = Conductor(
        tunables=Tunables().changed(changes or {}),
        rng=random.Random(seed),
        topology=None if uniform is None else Topology(uniform=uniform),
        learn=learn,
        explain=explain,
    )
    for one in specs:
        join(made, one)
    for node, cost in (costs or {}).items():
        made.fleet.set_cost(NodeId(node), cost)
    return made


def join(c: Conductor, one: NodeSpec, now: float = 0.0) -> Slot:
    """Register a node and report it well."""
    slot = c.register(one, now)
    c.set_health(one.id, Health.HEALTHY, now)
    if one.events is not None:
        c.cache_signal(one.id, Signal.COMPLETE, now)
    return slot


def chain(
    blocks: int, *, model: str = MODEL, adapter: str = "", salt: str = "", block: int = BLOCK,
    first: int = 1,
) -> list[int]:  # fmt: skip
    """Keys of a prompt of so many blocks; `first` tells prompts apart."""
    root = root_key(model, adapter=adapter, salt=salt, block_size=block)
    return trace_keys([first * 1_000_000 + i for i in range(blocks)], root)


def request(
    blocks: int = 64, *, tokens: int | None = None, first: int = 1, block: int = BLOCK, **more: Any
) -> Request:
    """A request of so many whole blocks of MODEL, or of `tokens` of which those are the blocks."""
    named = {"model": MODEL, "adapter": ""} | {
        k: more[k] for k in ("model", "adapter") if k in more
    }
    keys = {block: chain(blocks, block=block, first=first, **named)}
    fields: dict[str, Any] = {
        "id": RequestId("r"),
        "model": MODEL,
        "prompt_tokens": blocks * block if tokens is None else tokens,
        "keys": keys,
    }
    return Request(**(fields | more))


def give(c: Conductor, node: str, keys: list[int]) -> None:
    """The node reports that it holds these blocks from the root."""
    c.index.store(c.fleet.slot(NodeId(node)), keys)


def decided(c: Conductor, r: Request, now: float = 0.0) -> Decision:
    """The decision of a request that must be placed."""
    found = c.decide(r, now)
    assert isinstance(found, Decision), found.message
    return found


def refused(c: Conductor, r: Request, now: float = 0.0) -> Rejection:
    """The rejection of a request that must be refused."""
    found = c.decide(r, now)
    assert isinstance(found, Rejection), found.prefill
    return found


def outcome(kind: OutcomeKind = OutcomeKind.OK, **more: Any) -> Outcome:
    return Outcome(kind=kind, **more)


def fleet(*specs: NodeSpec, cost: NodeCost = COST) -> FleetState:
    """A bare fleet of healthy nodes with literal costs."""
    made = FleetState()
    for one in specs:
        made.add(one, cost)
        made.set_health(one.id, Health.HEALTHY, 0.0)
    return made


def decision(
    state: FleetState,
    prefill: str,
    decode: str | None = None,
    *,
    prompt: int = 1000,
    output: int = 100,
    cached: int = 0,
    prefill_s: float = 1.0,
    transfer_s: float = 0.0,
    handover_s: float = 0.0,
    queue_s: float = 0.0,
    tbt_s: float = 0.01,
    **more: Any,
) -> Decision:
    """A decision as the conductor would make it, from literals."""
    asked = {k: more.pop(k) for k in ("priority", "tenant", "tbt_slo_s") if k in more}
    one = state.slot(NodeId(prefill))
    other = one if decode is None else state.slot(NodeId(decode))
    return Decision(
        id="d",
        request=Request(
            id=RequestId("r"),
            model=MODEL,
            prompt_tokens=prompt,
            output_tokens_expected=output,
            **asked,
        ),
        now_s=0.0,
        policy="min_ttft",
        revision=1,
        prefill=NodeId(prefill),
        prefill_slot=one,
        prefill_generation=int(state.generation[one]),
        decode=NodeId(decode or prefill),
        decode_slot=other,
        decode_generation=int(state.generation[other]),
        match_tokens=cached,
        reachable_tokens=cached,
        prefix_tokens=cached,
        fetch_from=more.pop("fetch_from", None),
        fetch_tokens=0,
        predicted=Prediction(
            queue_s=queue_s,
            transfer_s=transfer_s + handover_s,
            prefill_s=prefill_s,
            tbt_s=tbt_s,
            handover_s=handover_s,
        ),
        candidates=NO_TABLE,
        excluded={},
        **more,
    )


__all__ = [
    "BLOCK", "COST", "EVENTS", "MODEL", "Role", "chain", "conductor", "decided", "decision",
    "fleet", "give", "join", "outcome", "refused", "request", "spec",
]  # fmt: skip

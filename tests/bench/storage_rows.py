"""Records as a conductor writes them, in any number, for the storage benchmarks.

Templates come from real decisions over eight nodes; ids, times, requests, nodes, tenants and
what came of them vary by a seeded generator.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec
import numpy as np

from core import (
    Conductor,
    Decision,
    Health,
    NodeId,
    NodeSpec,
    Request,
    RequestId,
    chain,
    root_key,
    seeded,
)
from core.audit import decision_record
from core.domain import Slot
from core.ports import DecisionRecord, OutcomeRecord

T0 = datetime(2026, 3, 1, tzinfo=UTC)
_BLOCK = 16
_TEMPLATES = 64


def templates(seed: int = 1, *, nodes: int = 8) -> list[DecisionRecord]:
    """Distinct decisions of a small fleet under load, each with every node as a candidate."""
    rng = random.Random(seed)
    conductor = Conductor(rng=seeded(seed))
    for i in range(nodes):
        conductor.register(_spec(i), 0.0)
        conductor.set_health(NodeId(f"prefill-{i}"), Health.HEALTHY, 0.0)
    root = root_key("demo-7b", block_size=_BLOCK)
    made = []
    for number in range(_TEMPLATES):
        length = rng.randrange(2_000, 16_000)
        tokens = np.random.default_rng(number).integers(0, 100_000, length, dtype=np.uint32)
        keys = chain(tokens, _BLOCK, root)
        for slot in range(nodes):
            conductor.index.record_route(Slot(slot), keys[: rng.randrange(len(keys))], 0.0)
        request = Request(
            id=RequestId("r"), model="demo-7b", prompt_tokens=length, keys={_BLOCK: keys}
        )
        decision = conductor.decide(request, now := 1.0 + number / 64)
        if isinstance(decision, Decision):
            conductor.begin(decision, now)
        made.append(decision_record(decision, T0))
    return made


def _spec(i: int) -> NodeSpec:
    return NodeSpec(
        id=NodeId(f"prefill-{i}"),
        url="http://127.0.0.1:1",
        models=("demo-7b",),
        block_size=_BLOCK,
        kv_capacity_tokens=3_000_000,
    )


def decisions(
    count: int, *, first: int = 0, per_s: float = 200.0, nodes: int = 16, seed: int = 2
) -> Iterator[DecisionRecord]:
    """`count` placed decisions, `per_s` apart evenly, from number `first` on."""
    rng = random.Random(seed + first)
    shapes = [msgspec.structs.asdict(record) for record in templates()]
    for number in range(first, first + count):
        at = T0 + timedelta(seconds=number / per_s)
        node = f"prefill-{int(rng.betavariate(1, 2) * nodes)}"
        fields = shapes[rng.randrange(len(shapes))] | {
            "id": decision_id(number, per_s=per_s),
            "at": at,
            "request_id": f"chatcmpl-{number:016x}",
            "prefill_node": node,
            "decode_node": node if rng.random() < 0.8 else f"prefill-{rng.randrange(nodes)}",
            "policy": "linear" if rng.random() < 0.05 else "min_ttft",
            "revision": 1 + number // 50_000,
            "tenant": f"tenant-{int(rng.paretovariate(1.2)) % 50}",
        }
        yield DecisionRecord(**fields)


def outcomes(made: Iterator[DecisionRecord], *, seed: int = 3) -> Iterator[OutcomeRecord]:
    """The outcome of each: 1 % failed, 2 % over the limit."""
    rng = random.Random(seed)
    for d in made:
        yield OutcomeRecord(
            decision_id=d.id,
            decided_at=d.at,
            finished_at=d.at + timedelta(seconds=rng.expovariate(0.2)),
            kind="ok" if rng.random() > 0.01 else rng.choice(["timeout", "engine_error"]),
            ttft_s=round(rng.expovariate(2.0), 6),
            tbt_s=round(rng.expovariate(40.0), 6),
            tpot_s=0.018765,
            e2e_s=round(rng.expovariate(0.2), 6),
            prompt_tokens=d.prompt_tokens,
            cached_tokens=d.match_tokens,
            output_tokens=rng.randrange(1, 500),
            slo_missed="ttft" if rng.random() < 0.02 else "",
            prefill_node=d.prefill_node,
        )


def decision_id(number: int, *, per_s: float = 200.0) -> str:
    """24 hex digits that sort by time, as the service gives them."""
    millis = int(T0.timestamp() * 1000 + number / per_s * 1000)
    return f"{millis:012x}{number & 0xFFFF:04x}{(number * 2654435761) & 0xFFFFFFFF:08x}"

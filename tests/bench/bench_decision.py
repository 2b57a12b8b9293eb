"""Decision latency by fleet size and prompt length, beside a plain walk over every node.

    python -m tests.bench.bench_decision

Blocks of 16 tokens. Timed from keys (match, constraints, terms, pick, decode choice, the
explained decision) and from tokens (hashing too). The baseline scores the same fleet with a
dictionary of sets and one Python loop a node, in the same run and interleaved.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np

from core import Conductor, Health, NodeId, NodeSpec, Request, RequestId, chain, root_key, seeded
from core.domain import Slot
from core.index.naive import NaiveIndex

BLOCK = 16
PROMPTS = 40
ROUNDS = 5


def fleet(nodes: int) -> Conductor:
    conductor = Conductor(rng=seeded(1))
    for i in range(nodes):
        spec = NodeSpec(
            id=NodeId(f"n{i}"),
            url="http://127.0.0.1:1",
            models=("m",),
            block_size=BLOCK,
            kv_capacity_tokens=3_000_000,
            profile="llama3-70b-8xa800",
        )
        conductor.register(spec, 0.0)
        conductor.set_health(spec.id, Health.HEALTHY, 0.0)
    return conductor


def naive_choice(index: NaiveIndex, keys: list[int], length: int, queue: list[float]) -> int:
    row = index.match({BLOCK: keys})
    best, chosen = float("inf"), -1
    for node, wait in enumerate(queue):
        matched = int(row[node])
        cost = wait + (length - matched) * (1e-4 + 1e-9 * (length + matched))
        if cost < best:
            best, chosen = cost, node
    return chosen


def case(nodes: int, length: int) -> dict[str, list[float]]:
    rng = random.Random(nodes + length)
    conductor, naive = fleet(nodes), NaiveIndex()
    naive.grow(nodes)
    for slot in range(nodes):
        naive.add_node(Slot(slot), block_size=BLOCK)
    generator = np.random.default_rng(3)
    root = root_key("m", block_size=BLOCK)
    prompts = [generator.integers(0, 150_000, length, dtype=np.uint32) for _ in range(PROMPTS)]
    chains = [chain(p, BLOCK, root) for p in prompts]
    for keys in chains:
        for slot in rng.sample(range(nodes), min(nodes, 8)):
            held = keys[: rng.randrange(len(keys)) + 1]
            conductor.index.record_route(Slot(slot), held, 0.0)
            naive.store(Slot(slot), held)
    queue = [rng.random() for _ in range(nodes)]
    made = [request(length, keys) for keys in chains]
    timed: dict[str, Callable[[int], object]] = {
        "conductor, from keys": lambda i: conductor.decide(made[i], 1.0),
        "conductor, from tokens": lambda i: conductor.decide(
            request(length, chain(prompts[i], BLOCK, root)), 1.0
        ),
        "walk over every node": lambda i: naive_choice(naive, chains[i], length, queue),
    }
    out: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(ROUNDS):
        for name, call in timed.items():
            for i in range(PROMPTS):
                began = time.perf_counter()
                call(i)
                out[name].append((time.perf_counter() - began) * 1e6)
    return out


def request(length: int, keys: list[int]) -> Request:
    return Request(id=RequestId("r"), model="m", prompt_tokens=length, keys={BLOCK: keys})


def main() -> None:
    print("decision latency in us, blocks of 16 tokens (baseline: walk over every node)")
    print(f"{'nodes':>6} {'tokens':>7}  {'':24} {'p50':>9} {'p99':>9} {'vs baseline p50':>16}")
    for nodes in (16, 256, 1024):
        for length in (8192, 131_072):
            found = case(nodes, length)
            base = float(np.median(found["walk over every node"]))
            for name, values in found.items():
                p50, p99 = np.percentile(values, (50, 99))
                ratio = f"{base / p50:.1f}x faster" if name.startswith("conductor") else "1"
                print(f"{nodes:6} {length:7}  {name:24} {p50:9.1f} {p99:9.1f} {ratio:>16}")


if __name__ == "__main__":
    main()

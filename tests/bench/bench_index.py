"""Speed of the index beside its naive twin, in one run: python -m tests.bench.bench_index

Prompts are like conversations: a few system prompts that every node holds, then turns that a few
nodes hold up to some depth. Every figure is of this process on this machine; CPU time is what a
busy machine distorts least, so ratios are of CPU time. Answers are compared before timing.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from core.domain import Slot
from core.hashing import chain, root_key, trace_keys
from core.index.events import decode_batch
from core.index.ingest import NodeIngest
from core.index.naive import NaiveIndex
from core.index.prefix_index import PrefixIndex

BLOCK = 16
ROOT = root_key("bench", block_size=BLOCK)


@dataclass
class Fleet:
    """Prompts as token arrays and keys, and who holds how much of each."""

    tokens: list[np.ndarray]
    keys: list[list[int]]
    holdings: list[tuple[int, int, int]]
    """(node, prompt, blocks)"""


def fleet(nodes: int, prompt_tokens: int, prompts: int, seed: int = 1) -> Fleet:
    """Prompts of which the first eighth is one of 4 system prompts."""
    rng = np.random.default_rng(seed)
    common = prompt_tokens // 8
    systems = rng.integers(0, 150_000, (4, common), dtype=np.uint32)
    tokens = [
        np.concatenate(
            [systems[i % 4], rng.integers(0, 150_000, prompt_tokens - common, dtype=np.uint32)]
        )
        for i in range(prompts)
    ]
    keys = [chain(each, BLOCK, ROOT) for each in tokens]
    pick = random.Random(seed)
    holdings = [(node, i, common // BLOCK) for node in range(nodes) for i in range(4)]
    for i, each in enumerate(keys):
        for node in pick.sample(range(nodes), min(nodes, 5)):
            holdings.append((node, i, pick.randrange(common // BLOCK, len(each) + 1)))
    return Fleet(tokens, keys, holdings)


def fill(index: PrefixIndex | NaiveIndex, nodes: int, world: Fleet) -> None:
    """Store the holdings."""
    for node in range(nodes):
        index.add_node(Slot(node), block_size=BLOCK)
    for node, prompt, blocks in world.holdings:
        index.store(Slot(node), world.keys[prompt][:blocks], root=ROOT)


def measure(call: Callable[[int], object], count: int, rounds: int) -> tuple[float, float, float]:
    """(p50, p99, CPU of the best round a call), in microseconds."""
    clock, laps, best = time.perf_counter_ns, [], float("inf")
    for _ in range(rounds):
        began = time.process_time()
        for i in range(count):
            start = clock()
            call(i)
            laps.append(clock() - start)
        best = min(best, (time.process_time() - began) / count)
    laps.sort()
    return laps[len(laps) // 2] / 1e3, laps[int(len(laps) * 0.99)] / 1e3, best * 1e6


def show(name: str, ours: tuple[float, float, float], twin: tuple[float, float, float]) -> None:
    """One line of the table."""
    print(
        f"{name:42s}{ours[0]:10.1f}{ours[1]:10.1f}{ours[2]:10.1f}{twin[2]:12.1f}"
        f"{twin[2] / ours[2]:10.1f}"
    )


def bench_match(nodes: int, prompt_tokens: int, rounds: int) -> None:
    """Match from keys, and hash plus match from a token array."""
    prompts = 200 if prompt_tokens < 20_000 else 40
    world = fleet(nodes, prompt_tokens, prompts)
    index, twin = PrefixIndex(), NaiveIndex()
    fill(index, nodes, world)
    fill(twin, nodes, world)
    queries = [{BLOCK: keys} for keys in world.keys]
    for query in queries[:3]:
        assert index.match(query).tolist() == twin.match(query).tolist()
    gc.collect()
    gc.freeze()
    few = 2 if nodes * prompt_tokens > 3_000_000 else 8
    slow = measure(lambda i: twin.match(queries[i]), few, 1)
    label = f"{nodes} nodes, {prompt_tokens // 1000}k tokens"
    show(f"match, {label}", measure(lambda i: index.match(queries[i]), prompts, rounds), slow)

    def from_tokens(i: int) -> object:
        return index.match({BLOCK: chain(world.tokens[i], BLOCK, ROOT)})

    show(f"hash + match, {label}", measure(from_tokens, prompts, rounds), slow)
    gc.unfreeze()


def bench_small(rounds: int) -> None:
    """What a virtual-time simulation asks for: 8 nodes, 24 blocks, very often."""
    rng = random.Random(3)
    keys = [
        trace_keys([i % 5, *(rng.getrandbits(40) for _ in range(23))], ROOT) for i in range(300)
    ]
    index, twin = PrefixIndex(), NaiveIndex()
    for each in (index, twin):
        pick = random.Random(4)
        for node in range(8):
            each.add_node(Slot(node), block_size=BLOCK)
        for chained in keys:
            for node in pick.sample(range(8), 2):
                each.store(Slot(node), chained[: pick.randrange(1, 25)], root=ROOT)
    queries = [{BLOCK: chained} for chained in keys]
    show(
        "match, 8 nodes, 24 blocks",
        measure(lambda i: index.match(queries[i]), 300, 10 * rounds),
        measure(lambda i: twin.match(queries[i]), 300, rounds),
    )
    _, _, cpu = measure(lambda i: index.touch(keys[i], BLOCK, float(i)), 300, 10 * rounds)
    print(f"{'touch, 24 blocks':42s}{'':20s}{cpu:10.1f}")


def rate(call: Callable[[], object], blocks: int, rounds: int) -> float:
    """Million blocks per CPU second, of the best round."""
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        call()
        best = min(best, time.process_time() - began)
    return blocks / best / 1e6


def bench_apply(runs: int = 400, length: int = 500) -> None:
    """Stores of new and of known blocks, removals tails first."""
    rng = random.Random(5)
    keys = [trace_keys([rng.getrandbits(60) for _ in range(length)], ROOT) for _ in range(runs)]
    total = runs * length
    names = ("store, new", "store, known", "remove, shared", "remove, last", "remove, one by one")
    rows: dict[str, list[float]] = {name: [] for name in names}
    for make in (PrefixIndex, NaiveIndex):
        index = make()
        for node in range(3):
            index.add_node(Slot(node), block_size=BLOCK)

        def each(act: Callable[[list[int]], object]) -> Callable[[], None]:
            def run() -> None:
                for chained in keys:
                    act(chained)

            return run

        def one_by_one(chained: list[int], index: PrefixIndex | NaiveIndex = index) -> None:
            for key in reversed(chained):
                index.remove(Slot(2), (key,))

        acts = (
            lambda k, index=index: index.store(Slot(0), k, root=ROOT),
            lambda k, index=index: index.store(Slot(1), k, root=ROOT),
            lambda k, index=index: index.remove(Slot(1), k[::-1]),
            lambda k, index=index: index.remove(Slot(0), k[::-1]),
            one_by_one,
        )
        for name, act in zip(names, acts, strict=True):
            if name == "remove, one by one":
                each(lambda k, index=index: index.store(Slot(2), k, root=ROOT))()
            rows[name].append(rate(each(act), total, 1))
    print(f"\n{'million blocks per CPU second':42s}{'index':>10s}{'naive':>10s}{'ratio':>10s}")
    for name, (ours, twin) in rows.items():
        print(f"{name:42s}{ours:10.2f}{twin:10.2f}{ours / twin:10.2f}")


def bench_events(batches: int = 300, blocks: int = 64) -> None:
    """From a payload to the index: decode, key anew from tokens, apply."""
    rng = np.random.default_rng(6)
    payloads = []
    for i in range(batches):
        tokens = rng.integers(0, 150_000, blocks * BLOCK, dtype=np.uint32).tolist()
        event = {
            "type": "BlockStored",
            "block_hashes": [int(x) for x in rng.integers(0, 2**64, blocks, dtype=np.uint64)],
            "parent_block_hash": None,
            "token_ids": tokens,
            "block_size": BLOCK,
            "medium": "GPU",
        }
        payloads.append(msgspec.msgpack.encode([float(i), [event], 0]))

    def decode_all() -> None:
        for payload in payloads:
            decode_batch(payload)

    def apply_all() -> None:
        index = PrefixIndex()
        index.add_node(Slot(0), block_size=BLOCK)
        ingest = NodeIngest(index, Slot(0), model="bench", block_size=BLOCK)
        for payload in payloads:
            ingest.apply(decode_batch(payload), 1 << 20)

    print(f"\n{'million blocks per CPU second':42s}")
    print(f"{'events, decode only':42s}{rate(decode_all, batches * blocks, 3):10.2f}")
    print(f"{'events, decode + key + apply':42s}{rate(apply_all, batches * blocks, 3):10.2f}")


def bench_memory(blocks: int = 1_000_000) -> None:
    """Resident bytes an entry; run in a process that has not freed much before."""
    index = PrefixIndex()
    for node in range(2):
        index.add_node(Slot(node), block_size=BLOCK)
    gc.collect()
    before = _resident()
    rng = np.random.default_rng(7)
    for _ in range(blocks // 500):
        ids: Sequence[int] = rng.integers(0, 2**63, 500).tolist()
        index.store(Slot(0), trace_keys(ids, ROOT), root=ROOT)
    grown = _resident() - before
    estimate = index.stats().memory_bytes
    print(
        f"\nmemory: {grown / blocks:.0f} bytes a block resident, {estimate / blocks:.0f} estimated"
    )


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * 4096


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", default="16,256,1024", help="fleet sizes")
    parser.add_argument("--tokens", default="8000,128000", help="prompt lengths")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    bench_memory()
    heads = "".join(f"{head:>10s}" for head in ("p50", "p99", "CPU"))
    print(f"\n{'microseconds':42s}{heads}{'naive CPU':>12s}{'ratio':>10s}")
    bench_small(args.rounds)
    for tokens in map(int, args.tokens.split(",")):
        for nodes in map(int, args.nodes.split(",")):
            bench_match(nodes, tokens, args.rounds)
    bench_apply()
    bench_events()


if __name__ == "__main__":
    main()

"""Many emulated engines in one process, their caches announced through their event sockets.

    python -m tests.bench.engine_host --nodes 256 --blocks 1000000 --out fleet.json

Engines are the product's own; only the process is shared, since 256 interpreters would not fit
beside what is measured. Blocks are announced as `BlockStored` events and kept for replay, so that
the service learns them as it learns those of any engine it meets. Prompts are conversations: a
few system prompts that many nodes hold, then turns of which some have alternatives.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import uvloop

from core.clock import SystemClock
from core.domain import Role
from core.engines.emulated.config import EngineConfig
from core.engines.emulated.costs import costs_of
from core.engines.emulated.engine import Engine
from core.engines.emulated.events import BlockStored, encode_batch
from core.engines.emulated.http import Connection
from core.engines.emulated.routes import Router
from core.engines.emulated.server import describe, write_state

MODEL = "demo"
BLOCK = 16
RACK_NODES = 16
SYSTEMS, SYSTEM_BLOCKS = 12, 64
TURN_BLOCKS = (2, 24)
TURNS_MAX = 8
BRANCH_CHANCE = 0.15
EVENTS_A_BATCH = 64
ROLES = (Role.PREFILL, Role.DECODE, Role.BOTH, Role.BOTH)


class Prompts:
    """Draws chains of blocks; a system prompt is the same on every node that holds it."""

    def __init__(self, seed: int) -> None:
        self._tokens = np.random.default_rng(seed)
        self._systems = [self.run(SYSTEM_BLOCKS, None) for _ in range(SYSTEMS)]

    def system(self, rng: random.Random) -> BlockStored:
        """One of the shared beginnings, the first more often than the last."""
        return self._systems[min(int(rng.paretovariate(0.8)) - 1, SYSTEMS - 1)]

    def run(self, blocks: int, parent: int | None) -> BlockStored:
        """New consecutive blocks behind `parent`."""
        return BlockStored(
            block_hashes=self._tokens.integers(1, 2**63, blocks).tolist(),
            parent_block_hash=parent,
            token_ids=self._tokens.integers(0, 150_000, blocks * BLOCK).tolist(),
            block_size=BLOCK, lora_id=None, medium="GPU", lora_name=None,
        )  # fmt: skip


def cache(prompts: Prompts, blocks: int, rng: random.Random) -> Iterator[BlockStored]:
    """What one node holds: conversations until `blocks` of its own are there."""
    held: set[int] = set()
    while blocks > 0:
        system = prompts.system(rng)
        if system.block_hashes[0] not in held:
            held.add(system.block_hashes[0])
            yield system
        ends = [system.block_hashes[-1]]
        for _ in range(rng.randint(1, TURNS_MAX)):
            parent = rng.choice(ends) if rng.random() < BRANCH_CHANCE else ends[-1]
            turn = prompts.run(min(rng.randint(*TURN_BLOCKS), max(blocks, 1)), parent)
            blocks -= len(turn.block_hashes)
            ends.append(turn.block_hashes[-1])
            yield turn


def announce(engine: Engine, stored: Iterator[BlockStored], at: float) -> None:
    """Put events into the engine's log, a bounded number a batch."""
    pending: list[BlockStored] = []
    for event in stored:
        pending.append(event)
        if len(pending) == EVENTS_A_BATCH:
            engine.events.append(encode_batch(pending, at=at))
            pending = []
    if pending:
        engine.events.append(encode_batch(pending, at=at))


async def host(nodes: int, blocks: int, out: Path, *, profile: str, seed: int) -> None:
    """Serve until SIGTERM; `out` names every engine once all listen."""
    loop, clock, stop = asyncio.get_running_loop(), SystemClock(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    prompts, rng, told = Prompts(seed), random.Random(seed), []
    for number in range(nodes):
        engine = Engine(_config(number, nodes, profile), loop, clock=clock)
        router = Router(engine)
        connections: set[Connection] = set()
        server = await loop.create_server(_protocol(router, connections), "127.0.0.1", 0)
        engine.http_port = server.sockets[0].getsockname()[1]
        announce(engine, cache(prompts, blocks // nodes, rng), clock.wall().timestamp())
        told.append(describe(engine) | {"rack": f"rack-{number // RACK_NODES:02}"})
    gc.freeze()
    write_state(out, {"engines": told})
    await stop.wait()


def _protocol(router: Router, connections: set[Connection]) -> type[Connection]:
    return lambda: Connection(router.handle, connections)  # type: ignore[return-value]


def _config(number: int, nodes: int, profile: str) -> EngineConfig:
    # A fleet of one kind would leave decode nodes without prefill ones in the first rows.
    role = ROLES[number % len(ROLES)] if nodes > 1 else Role.BOTH
    return EngineConfig(
        name=f"node-{number:03}", model=MODEL, role=role, block_size=BLOCK, kv_tokens=200_000,
        profile=profile, costs=costs_of(profile), seed=number,
    )  # fmt: skip


def main() -> None:
    """Parse the command line and serve."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--nodes", type=int, required=True)
    p.add_argument("--blocks", type=int, default=0)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--profile", default="tiny-emulated")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    uvloop.run(host(a.nodes, a.blocks, a.out, profile=a.profile, seed=a.seed))


if __name__ == "__main__":
    main()

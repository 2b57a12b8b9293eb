"""A flood of requests that share a prefix nobody holds, before emulated engines that take time."""

import asyncio

import pytest
from gateway_world import Engine, engines, gateway, until

from core.tunables import Tunables

SHARED = 6_144
REQUESTS = 64
NODES = 4


@pytest.fixture(scope="module")
def four():
    slow = ("--profile", "generic-7b-1gpu", "--time-scale", "2", "--step-tokens-max", "2048")
    with engines(*(Engine(f"n{i}", *slow) for i in range(NODES))) as made:
        yield made


async def flood(w, four, start: int) -> list[str]:
    """Nodes that served 64 requests with one new prefix, all there before a step was computed."""
    shared = list(range(start, start + SHARED))

    async def one(i: int) -> str:
        answer = await w.complete([*shared, *([i + 1] * 40)], max_tokens=2)
        assert answer.status == 200
        return answer.headers["x-conductor-node"]

    service = w.service
    await stand_still(w, four, "engine")
    tasks = [asyncio.create_task(one(i)) for i in range(REQUESTS)]
    try:
        await until(
            lambda: len(service.conductor.ledger.open) + len(service.waiting.queue) == REQUESTS
        )
    finally:
        await stand_still(w, four, "")
    return await asyncio.gather(*tasks)


async def stand_still(w, four, how: str) -> None:
    """Let the engines compute nothing, or go on."""
    for engine in four:
        async with w.client.post(f"{engine.url}/emulated/faults", json={"hang": how}) as answer:
            assert answer.status == 200


async def computed(w, engine) -> int:
    async with w.client.get(f"{engine.url}/emulated/state") as answer:
        return (await answer.json())["computed_tokens"]


@pytest.mark.parametrize("mode", ["off", "queue"])
async def test_a_flood_with_one_cold_prefix_is_prefilled_on_two_nodes_at_most(four, mode):
    specs = [e.spec(profile="generic-7b-1gpu", speed=2.0, kv_transfer="") for e in four]
    tunables = Tunables().changed({"admission.mode": mode, "admission.room_s": 0.2})
    async with gateway(*specs, tunables=tunables) as w:
        before = [await computed(w, e) for e in four]
        nodes = await flood(w, four, 10_000 if mode == "off" else 20_000)
        did = [await computed(w, e) - b for e, b in zip(four, before, strict=True)]
        whole = [n for n in did if n >= SHARED]
        assert 1 <= len(whole) <= 2 and len(set(nodes)) <= 2
        # Nothing was computed beyond the copies and each request's own end.
        assert sum(did) <= len(whole) * SHARED + REQUESTS * (40 + 2 * 32)
        counters = w.service.counters
        arrived = counters["coming.arrived_tokens"]
        assert arrived >= 0.9 * counters["coming.expected_tokens"]
        assert arrived > 0 or mode == "queue"
        await w.settled()
        assert not len(w.service.conductor.coming) or w.service.conductor.coming._done

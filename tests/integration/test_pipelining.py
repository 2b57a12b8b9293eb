"""Pipeline groups planned and carried out by a running scheduler on emulated engines."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from gateway_world import Engine, engines, gateway, until

from core.domain import Health, NodeId
from core.tunables import Tunables

LONG = 24_000
SLOW = ("--profile", "generic-7b-1gpu", "--time-scale", "4", "--step-tokens-max", "2048")
CPP = {
    "cpp.enabled": True,
    "cpp.uncached_tokens_min": 8_000,
    "cpp.others_weight": 0.0,
    "cpp.gain_min": 0.05,
    "cpp.group_max": 3,
    "admission.mode": "off",
}


@pytest.fixture(scope="module")
def trio():
    with engines(*(Engine(name, *SLOW) for name in "abc")) as made:
        yield made


@asynccontextmanager
async def world(trio, *, group="g", **changes):
    specs = [
        e.spec(profile="generic-7b-1gpu", speed=4.0, pipeline_group=group, kv_transfer="")
        for e in trio
    ]
    async with gateway(*specs, tunables=Tunables().changed({**CPP, **changes})) as w:
        yield w


def prompt(start: int, tokens: int = LONG) -> list[int]:
    return [start + i % 5000 for i in range(tokens)]


async def computed(w, trio) -> list[int]:
    out = []
    for engine in trio:
        async with w.client.get(f"{engine.url}/emulated/state") as answer:
            out.append((await answer.json())["computed_tokens"])
    return out


def last_decision(w):
    w.service.recorder.drain()
    return w.sink.decisions[-1]


async def test_a_long_prompt_is_computed_by_the_declared_group(trio):
    async with world(trio) as w:
        before = await computed(w, trio)
        ids = prompt(10_000)
        answer = await w.complete(ids, max_tokens=3)
        assert answer.status == 200
        text = (await answer.json())["choices"][0]["text"]
        did = [b - a for a, b in zip(before, await computed(w, trio), strict=True)]
        members = [n for n in did if n]
        assert len(members) >= 2 and set(members) == {LONG}
        assert w.service.pipelines.totals["started"] == 1
        await w.settled()
        found = last_decision(w)
        assert "pipeline" in found.notes and "bubble" in found.notes
        assert not w.service.conductor.ledger.holds
        # The same text as from one engine, which holds the prompt now.
        again = await w.complete(ids, max_tokens=3)
        assert (await again.json())["choices"][0]["text"] == text
        assert again.headers["x-conductor-node"] == found.prefill_node
        assert int(again.headers["x-conductor-cached-tokens"]) >= LONG - 64
        assert w.service.pipelines.totals["started"] == 1
        await w.settled()


async def test_streams_come_from_the_last_stage(trio):
    async with world(trio) as w:
        answer = await w.complete(prompt(20_000), max_tokens=3, stream=True)
        body = await answer.read()
        assert body.endswith(b"data: [DONE]\n\n") and body.count(b'"text"') == 3
        assert w.service.pipelines.totals["started"] == 1
        await w.settled()


async def set_faults(w, engine, **faults) -> None:
    async with w.client.post(f"{engine.url}/emulated/faults", json=faults) as answer:
        assert answer.status == 200, await answer.text()


async def test_a_partners_failure_falls_back_to_one_node_once(trio):
    async with world(trio) as w:
        await set_faults(w, trio[0], error_rate=1.0)
        try:
            answer = await w.complete(prompt(30_000), max_tokens=2)
        finally:
            await set_faults(w, trio[0], error_rate=0.0)
        assert answer.status == 200
        assert answer.headers["x-conductor-node"] != "a"
        assert w.service.pipelines.totals == {"started": 1, "fallbacks": 1}
        await w.settled()
        assert not w.service.conductor.ledger.holds
        failed, served = w.sink.outcomes
        assert (failed.kind, failed.failed_node, served.kind) == ("engine_error", "a", "ok")


async def test_a_partner_that_dies_while_it_computes_ends_the_group_only(trio):
    async with world(trio) as w:
        task = asyncio.create_task(w.complete(prompt(35_000), max_tokens=2))
        await until(lambda: bool(w.service.conductor.ledger.holds))
        await set_faults(w, trio[1], hang="server")
        try:
            answer = await task
        finally:
            await set_faults(w, trio[1], hang="")
        assert answer.status == 200 and answer.headers["x-conductor-node"] != "b"
        assert w.service.pipelines.totals == {"started": 1, "fallbacks": 1}
        await until(lambda: w.service.conductor.fleet.health(NodeId("b")) is Health.HEALTHY)


async def test_without_declared_groups_the_plan_is_advice(trio):
    async with world(trio, group="") as w:
        answer = await w.complete(prompt(40_000), max_tokens=2)
        assert answer.status == 200
        await w.settled()
        assert "pipeline advice" in last_decision(w).notes
        assert w.service.pipelines.totals == {"advised": 1}


async def test_short_prompts_are_left_alone(trio):
    async with world(trio) as w:
        answer = await w.complete(prompt(50_000, 500), max_tokens=2)
        assert answer.status == 200
        await w.settled()
        assert "pipeline" not in last_decision(w).notes


async def test_a_group_serves_what_one_node_would_be_too_late_for(trio):
    async with world(trio, **{"admission.mode": "reject"}) as w:
        ids = prompt(60_000)
        fleet = w.service.conductor.fleet
        c0, c1, c2 = (float(column[0]) for column in (fleet.c0, fleet.c1, fleet.c2))
        alone_s = c0 + c1 * LONG + c2 * LONG**2
        headers = {"x-conductor-ttft-slo-ms": str(800 * alone_s)}
        answer = await w.post("/v1/completions", {"prompt": ids, "max_tokens": 2}, headers=headers)
        assert answer.status == 200
        assert w.service.pipelines.totals["started"] == 1
        await w.settled()
    async with world(trio, group="", **{"admission.mode": "reject"}) as w:
        answer = await w.post(
            "/v1/completions", {"prompt": prompt(70_000), "max_tokens": 2}, headers=headers
        )
        assert answer.status == 429
        assert "pipeline advice" in (await answer.json())["error"]["message"]

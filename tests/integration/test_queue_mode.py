"""Queue mode before emulated engines: turns, bands, fairness, deadlines, bounds."""

import asyncio
import dataclasses
from contextlib import asynccontextmanager

import aiohttp
import pytest
from gateway_world import PATIENT, Engine, engines, gateway, until

from core import wire
from core.tunables import Tunables

QUEUE = {
    "admission.mode": "queue",
    "admission.room_s": 0.001,
    "batching.coming": False,
    "admission.early_rejection": False,
}


@pytest.fixture(scope="module")
def pair():
    with engines(Engine("a"), Engine("b")) as made:
        yield made


@asynccontextmanager
async def world(pair, *, limits=PATIENT, **changes):
    tunables = Tunables().changed({**QUEUE, **changes})
    async with gateway(*(e.spec() for e in pair), tunables=tunables, limits=limits) as w:
        yield w


def block(w):
    """Make every node look busy; call the result to free them."""
    ledger, clock = w.service.conductor.ledger, w.service.clock
    holds = [
        ledger.hold(slot, 600.0, tokens=10.0, now=clock.now())
        for slot, _ in w.service.conductor.fleet.slots()
    ]

    def free() -> None:
        for hold in holds:
            ledger.release(hold, clock.now())
        w.service.waiting.stir()

    return free


async def ask(w, n: int, *, tenant="", priority=0, slo_s=50.0, tokens=64):
    headers = {
        "x-conductor-tenant": tenant,
        "x-conductor-priority": str(priority),
        "x-conductor-ttft-slo-ms": str(slo_s * 1000),
    }
    return await w.complete([n + 1] * tokens, headers=headers, max_tokens=1)


def start(w, *many, **more):
    return [asyncio.create_task(ask(w, n, **more)) for n in many]


async def queued(w, count: int) -> None:
    await until(lambda: len(w.service.waiting.queue) == count)


async def test_requests_wait_for_room_and_are_all_served(pair):
    async with world(pair) as w:
        free = block(w)
        tasks = start(w, *range(20))
        await queued(w, 20)
        assert not w.service.conductor.ledger.open
        free()
        answers = await asyncio.gather(*tasks)
        assert [a.status for a in answers] == [200] * 20
        waiting = w.service.waiting
        assert waiting.totals["served"] == 20 and waiting.waits.count == 20
        assert len(waiting.queue) == 0 and waiting.queue.nbytes == 0
        await w.settled()
        assert any("waited" in d.notes for d in w.sink.decisions)


async def test_an_idle_fleet_serves_at_once_without_queueing(pair):
    async with world(pair) as w:
        assert (await ask(w, 1)).status == 200
        assert w.service.waiting.totals["queued"] == 0


async def test_higher_bands_go_first_and_tenants_take_turns(pair):
    async with world(pair[:1]) as w:
        free = block(w)
        tasks = start(w, *range(6), tenant="busy")
        await queued(w, 6)
        tasks += start(w, *range(10, 13), tenant="small")
        await queued(w, 9)
        tasks += start(w, 20, tenant="busy", priority=5)
        await queued(w, 10)
        free()
        await asyncio.gather(*tasks)
        await w.settled()
        order = [(d.priority, d.tenant) for d in w.sink.decisions]
        assert order[0] == (5, "busy")
        assert {tenant for _, tenant in order[1:7]} == {"busy", "small"}
        assert [t for _, t in order[1:7]].count("small") == 3


async def test_who_cannot_be_served_in_time_hears_so_before_the_deadline(pair):
    async with world(pair) as w:
        free = block(w)
        answer = await ask(w, 1, slo_s=0.6)
        assert answer.status == 429 and int(answer.headers["retry-after"]) >= 1
        error = (await answer.json())["error"]
        assert error["code"] == "queue_timeout"
        assert w.service.waiting.totals["expired"] == 1
        free()
        await w.settled()
        assert [d.code for d in w.sink.decisions] == ["queue_timeout"]
        # It counts against the objective, and is no decision that took no time.
        judged = w.service.monitoring._short.window(w.service.clock.now(), 300.0)
        assert (judged.total, judged.bad, judged.errors) == (1, 1, 0)
        assert (w.service.live.total.rejected, w.service.live.total.decide.count) == (1, 0)


async def test_time_that_runs_out_during_a_turn_is_not_forgotten(pair):
    """The turn comes too soon (the decode nodes are full), and the timer has fired meanwhile."""
    async with world(pair) as w:
        free, room = block(w), w.service.waiting
        call = asyncio.create_task(ask(w, 1))
        await queued(w, 1)
        (waiting,) = room.queue
        full = room._refuse(waiting.what.request, "no_candidates", "full")
        room._take_turn = lambda _: full
        assert room.queue.discard(waiting)
        room._turn = waiting.what
        room._time_is_up(waiting)
        waiting.what.turn.set_result("")
        answer = await asyncio.wait_for(call, 10)
        assert answer.status == 429
        assert (await answer.json())["error"]["code"] == "queue_timeout"
        assert room.totals["expired"] == 1 and not len(room.queue)
        free()
        await w.settled()


async def test_a_full_queue_refuses_and_gives_way_to_a_higher_class(pair):
    limits = dataclasses.replace(PATIENT, queue_max=3)
    async with world(pair, limits=limits) as w:
        free = block(w)
        tasks = start(w, 0, 1, 2)
        await queued(w, 3)
        refused = await ask(w, 3)
        assert refused.status == 429 and "retry-after" in refused.headers
        assert (await refused.json())["error"]["code"] == "queue_full"
        tasks += start(w, 4, priority=1)
        await until(lambda: w.service.waiting.totals["displaced"] == 1)
        free()
        statuses = sorted([a.status for a in await asyncio.gather(*tasks)])
        assert statuses == [200, 200, 200, 429]
        await w.settled()


async def test_the_bytes_that_wait_are_bounded(pair):
    limits = dataclasses.replace(PATIENT, queue_bytes_max=2_000)
    async with world(pair, limits=limits) as w:
        free = block(w)
        tasks = start(w, 0, 1, 2, 3, tokens=200)
        await until(lambda: w.service.waiting.totals["full"] >= 1)
        assert w.service.waiting.queue.nbytes <= 2_000
        free()
        assert {a.status for a in await asyncio.gather(*tasks)} == {200, 429}


async def test_a_client_that_leaves_gives_its_place_up(pair):
    async with world(pair) as w:
        free = block(w)
        timeout = aiohttp.ClientTimeout(total=0.3)
        async with aiohttp.ClientSession(timeout=timeout) as impatient:
            with pytest.raises(TimeoutError):
                await impatient.post(
                    f"{w.url}/v1/completions",
                    json={"model": "tiny", "prompt": [5] * 64, "max_tokens": 1},
                )
        await queued(w, 0)
        free()
        assert (await ask(w, 2)).status == 200
        await w.settled()


async def test_no_node_at_all_is_told_at_once(pair):
    async with world(pair) as w:
        free = block(w)
        tasks = start(w, 0)
        await queued(w, 1)
        for _, spec in list(w.service.conductor.fleet.slots()):
            w.service.conductor.drain(spec.id, True, w.service.clock.now())
        (answer,) = await asyncio.gather(*tasks)
        assert answer.status == 503 and "retry-after" in answer.headers
        free()


async def test_a_scheduler_elsewhere_is_told_to_ask_again_and_passes_nobody_by(pair):
    async with world(pair) as w:
        free = block(w)
        (waiting,) = start(w, 1)
        await queued(w, 1)
        body = {"prompt": [7] * 64, "reserve": True}
        refused = await w.post("/v1/schedule", body)
        assert refused.status == 429 and int(refused.headers["retry-after"]) >= 1
        assert (await refused.json())["error"]["code"] == "no_room"
        free()
        assert (await waiting).status == 200
        granted = await w.post("/v1/schedule", body)
        assert granted.status == 200
        name = (await granted.json())["decision_id"]
        assert (await w.post(f"/v1/schedule/{name}/abort", {})).status == 200
        await w.settled()


async def test_a_request_whose_node_died_is_first_in_line(pair):
    async with world(pair) as w:
        served = asyncio.create_task(stuck(w, pair))
        await until(lambda: len(w.service.conductor.ledger.open) == 1)
        (reserved,) = w.service.conductor.ledger.open.values()
        free = block(w)
        others = start(w, 2, 3, 4)
        await queued(w, 3)
        assert w.service.flights.node_died(reserved.decision.prefill) == 1
        await queued(w, 4)
        await hang(w, pair, "")
        free()
        answers = await asyncio.gather(served, *others)
        assert {a.status for a in answers} == {200}
        await w.settled()
        first, again, *rest = w.sink.decisions
        assert (again.request_id, again.attempt) == (first.request_id, 1)
        assert [d.attempt for d in rest] == [0, 0, 0]


async def stuck(w, pair):
    """A request that its engine keeps."""
    await hang(w, pair, "engine")
    return await ask(w, 1)


async def hang(w, pair, how):
    for engine in pair:
        async with w.client.post(f"{engine.url}/emulated/faults", json={"hang": how}) as answer:
            assert answer.status == 200


async def test_requests_that_come_together_are_grouped_shortest_first(pair):
    """Two groups of a model, each with a prefix of its own that nobody holds."""
    changes = {"admission.mode": "off", "batching.enabled": True, "batching.load_min": 0.0}
    changes |= {"batching.shared_tokens_min": 128, "batching.coming": True}
    async with world(pair, **changes, **{"batching.size_max": 8}) as w:

        async def one(group, tail):
            prompt = [*range(1000 * group, 1000 * group + 256), *([tail] * tail)]
            return await w.complete(prompt, max_tokens=1)

        conductor = w.service.conductor
        conductor.apply(conductor.tunables.changed({"batching.wait_max_ms": 10_000.0}), 2)
        made = [(g, tail) for tail in (160, 32, 96, 64) for g in (1, 2)]
        answers = await asyncio.gather(*(one(g, tail) for g, tail in made))
        assert {a.status for a in answers} == {200}
        await w.settled()
        lengths = [d.prompt_tokens - 256 for d in w.sink.decisions]
        assert lengths == [32, 64, 96, 160] * 2
        totals = w.service.collector.totals
        assert (totals["requests"], totals["groups"]) == (8, 2)
        # One that stays alone goes when its time is up.
        conductor.apply(conductor.tunables.changed({"batching.wait_max_ms": 20.0}), 3)
        assert (await one(3, 32)).status == 200 and not len(w.service.collector)
        assert totals["ungrouped"] == 1


async def test_switching_the_mode_lets_everybody_go(pair):
    async with world(pair) as w:
        free = block(w)
        tasks = start(w, *range(5))
        await queued(w, 5)
        conductor = w.service.conductor
        conductor.apply(conductor.tunables.changed({"admission.mode": "off"}), 2)
        assert {a.status for a in await asyncio.gather(*tasks)} == {200}
        free()
        await w.settled()


async def test_metrics_tell_who_waits(pair):
    async with world(pair) as w:
        free = block(w)
        tasks = start(w, 0, 1)
        await queued(w, 2)
        async with w.client.get(f"{w.url}/metrics") as answer:
            text = await answer.text()
        assert "conductor_queue_waiting 2.0" in text
        assert 'conductor_queue_total{fate="queued"} 2.0' in text
        async with w.client.get(f"{w.url}/admin/v1/queue") as answer:
            found = wire.QueueView.model_validate_json(await answer.read())
        assert (found.mode, found.waiting) == ("queue", 2) and found.oldest_s >= 0
        assert [(g.tenant, g.priority, g.waiting) for g in found.groups] == [("", 0, 2)]
        free()
        await asyncio.gather(*tasks)

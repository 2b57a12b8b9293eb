"""Hot prefixes copied between emulated engines by a running scheduler."""

import itertools
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from gateway_world import Engine, engines, gateway, until

from core import wire
from core.domain import Slot
from core.tunables import Tunables

BLOCK = 32
LENGTH = 20 * BLOCK
fresh = itertools.count(1)
EAGER = {
    "migration.enabled": True,
    "migration.rate_min_per_s": 0.01,
    "migration.load_ratio": 1.0,
    "migration.scan_s": 600.0,  # looks are made by hand
    "migration.min_tokens": 64,
    "policy": "min_ttft",
}


@pytest.fixture(scope="module")
def trio():
    with engines(Engine("a"), Engine("b"), Engine("c")) as made:
        yield made


@asynccontextmanager
async def world(specs, **changes):
    tunables = Tunables().changed({**EAGER, **changes})
    async with gateway(*specs, tunables=tunables) as w:
        yield w


async def warmed(w, times: int = 6) -> int:
    """Send prompts with a new prefix, all to one node; the key of the prefix's last block."""
    start = 1000 * next(fresh)
    for n in range(times):
        answer = await w.complete([*range(start, start + LENGTH), 7, n], max_tokens=2)
        assert answer.status == 200
    service = w.service
    hot = lambda: service.conductor.index.hot(service.clock.now(), 5)  # noqa: E731
    await until(lambda: bool(hot()) and hot()[0].holders != ())
    top = hot()[0]
    assert top.tokens == LENGTH
    return top.key


def holder(w, key) -> Slot:
    (slot,) = w.service.conductor.index.holders(key)
    return slot


def load_up(w, slot: Slot, *, seconds: float = 20.0):
    """Make a node look busy, as long prompts would."""
    now = w.service.clock.now()
    return w.service.conductor.ledger.hold(slot, seconds, tokens=1000, now=now)


async def listing(w) -> wire.MigrationList:
    async with w.client.get(f"{w.url}/admin/v1/migrations") as answer:
        assert answer.status == 200
        return wire.MigrationList.model_validate_json(await answer.read())


async def copyable(w, key: int) -> bool | None:
    async with w.client.get(f"{w.url}/admin/v1/cache/prefixes/{key:016x}") as answer:
        return wire.PrefixView.model_validate_json(await answer.read()).copyable


async def post(w, path: str, body: dict, *, status: int):
    async with w.client.post(f"{w.url}/admin/v1{path}", json=body) as answer:
        text = await answer.read()
        assert answer.status == status, text
        kind = wire.MigrationView if status < 400 else wire.ErrorBody
        return kind.model_validate_json(text)


async def test_a_hot_prefix_on_a_busy_node_is_copied_and_the_index_shows_it(trio):
    async with world([e.spec() for e in trio]) as w:
        key = await warmed(w)
        slot = holder(w, key)
        hold = load_up(w, slot)
        w.service.moves.look(w.service.clock.now())
        assert len(w.service.moves.live) == 1
        await until(lambda: not w.service.moves.live)
        await until(lambda: len(w.service.conductor.index.holders(key)) == 2)
        w.service.conductor.ledger.release(hold, w.service.clock.now())
        found = await listing(w)
        (move,) = found.ended
        assert found.mode == "on" and move.state == "done" and move.how == "hand_over"
        assert move.prefix == f"{key:016x}" and move.benefit_s > 0
        assert move.moved_tokens == move.tokens and move.moved_bytes > 0
        assert move.computed_tokens == 0 and move.target_holds_tokens == move.tokens
        assert found.totals.done == 1 and found.prompts_known == 6
        await w.settled()


async def test_it_looks_by_itself_as_often_as_the_tunable_says(trio):
    async with world([e.spec() for e in trio], **{"migration.scan_s": 0.1}) as w:
        key = await warmed(w)
        hold = load_up(w, holder(w, key))
        await until(lambda: len(w.service.conductor.index.holders(key)) == 2)
        w.service.conductor.ledger.release(hold, w.service.clock.now())
        (job,) = [s for s in w.service.jobs.states() if s.name == "migration"]
        assert job.runs > 0 and not job.failures
        await until(lambda: not w.service.moves.live)
        assert (await listing(w)).looked_ago_s is not None


async def test_nodes_without_a_connector_are_warmed_up(trio):
    async with world([e.spec(kv_transfer="") for e in trio]) as w:
        key = await warmed(w)
        hold = load_up(w, holder(w, key))
        w.service.moves.look(w.service.clock.now())
        await until(lambda: not w.service.moves.live)
        await until(lambda: len(w.service.conductor.index.holders(key)) == 2)
        w.service.conductor.ledger.release(hold, w.service.clock.now())
        (move,) = (await listing(w)).ended
        assert (move.how, move.state, move.moved_tokens) == ("warm_up", "done", 0)
        assert move.computed_tokens == move.tokens
        await w.settled()


async def test_a_dry_run_shows_plans_and_starts_none(trio):
    async with world([e.spec() for e in trio], **{"migration.dry_run": True}) as w:
        key = await warmed(w)
        hold = load_up(w, holder(w, key))
        for _ in range(3):
            w.service.moves.look(w.service.clock.now())
        found = await listing(w)
        assert found.mode == "dry_run" and found.running == found.ended == []
        assert {(m.prefix, m.dry_run) for m in found.planned} == {(f"{key:016x}", True)}
        assert len(w.service.conductor.index.holders(key)) == 1
        w.service.conductor.ledger.release(hold, w.service.clock.now())


async def test_off_remembers_no_prompts_and_says_so(trio):
    async with world([e.spec() for e in trio], **{"migration.enabled": False}) as w:
        key = await warmed(w)
        w.service.moves.look(w.service.clock.now())
        found = await listing(w)
        assert found.mode == "off" and found.prompts_known == 0 and found.planned == []
        asked = {"prefix": f"{key:016x}", "target": "b", "reason": "launch"}
        error = await post(w, "/migrations", asked, status=404)
        assert "migration.enabled" in error.error.message and error.error.param == "prefix"
        assert await copyable(w, key) is False


async def test_an_operator_copies_a_prefix_to_a_node(trio):
    async with world([e.spec() for e in trio]) as w:
        key = await warmed(w)
        fleet = w.service.conductor.fleet
        others = [spec.id for s, spec in fleet.slots() if s != holder(w, key)]
        assert await copyable(w, key) is True
        asked = {"prefix": f"{key:016x}", "target": others[0], "reason": "launch tonight"}
        made = await post(w, "/migrations", asked, status=202)
        assert made.manual and made.reason == "launch tonight" and made.author
        await until(lambda: not w.service.moves.live)
        await until(lambda: len(w.service.conductor.index.holders(key)) == 2)
        error = await post(w, "/migrations", asked, status=409)
        assert "holds this prefix" in error.error.message
        await post(w, "/migrations", asked | {"target": "nobody"}, status=404)
        await post(w, "/migrations", asked | {"prefix": "xyz"}, status=422)
        unknown = asked | {"prefix": "0" * 16, "target": others[1]}
        error = await post(w, "/migrations", unknown, status=404)
        assert "not known" in error.error.message
        w.service.recorder.drain()
        told = [(kind, node) for kind, node, _ in w.sink.events if kind.startswith("migration")]
        assert told == [(f"migration.{s}", others[0]) for s in ("planned", "running", "done")]


async def test_a_running_copy_can_be_cancelled_once_and_its_pair_is_not_started_twice(trio):
    async with world([e.spec() for e in trio]) as w:
        key = await warmed(w)
        fleet = w.service.conductor.fleet
        target = next(e for e in trio if fleet.slot(e.name) != holder(w, key))
        await _hang(w, target, "engine")
        try:
            asked = {"prefix": f"{key:016x}", "target": target.name, "reason": "launch"}
            made = await post(w, "/migrations", asked, status=202)
            await until(lambda: w.service.moves.live[made.id].state == "running")
            again = await post(w, "/migrations", asked, status=409)
            assert "on its way" in again.error.message
            assert fleet.queued_tokens[fleet.slot(target.name)] > 0
            ended = await post(w, f"/migrations/{made.id}/cancel", {"reason": "no"}, status=200)
            assert ended.state == "cancelled"
            await post(w, f"/migrations/{made.id}/cancel", {"reason": "no"}, status=404)
            await until(lambda: not fleet.queued_tokens.any())
        finally:
            await _hang(w, target, "")
        assert (await listing(w)).totals.cancelled == 1


async def test_a_target_that_fails_backs_off(trio):
    async with world([e.spec() for e in trio[:2]]) as w:
        key = await warmed(w)
        fleet = w.service.conductor.fleet
        target = next(e for e in trio[:2] if fleet.slot(e.name) != holder(w, key))
        await w.client.post(f"{target.url}/emulated/faults", json={"error_rate": 1.0})
        hold = load_up(w, holder(w, key))
        try:
            w.service.moves.look(w.service.clock.now())
            await until(lambda: not w.service.moves.live)
        finally:
            await w.client.post(f"{target.url}/emulated/faults", json={"error_rate": 0.0})
        (move,) = (await listing(w)).ended
        assert move.state == "failed" and "500" in move.error
        w.service.moves.look(w.service.clock.now())
        assert not w.service.moves.live
        assert (await listing(w)).held_back == {"backoff": 1}
        w.service.conductor.ledger.release(hold, w.service.clock.now())


async def test_lmcache_copies_between_its_instances_and_the_target_takes_it_in(trio):
    asked = []

    async def move(request):
        asked.append(await request.json())
        return web.json_response({"event_id": "e1", "num_tokens": len(asked[-1]["tokens"])})

    async with controller(move) as url:
        store = {"kv_store": "lmcache", "kv_store_url": url}
        specs = [e.spec(**store, kv_store_instance=f"i-{e.name}") for e in trio]
        async with world(specs) as w:
            key = await warmed(w)
            slot = holder(w, key)
            hold = load_up(w, slot)
            w.service.moves.look(w.service.clock.now())
            await until(lambda: not w.service.moves.live)
            w.service.conductor.ledger.release(hold, w.service.clock.now())
            (done,) = (await listing(w)).ended
            assert (done.how, done.state) == ("lmcache", "done")
            source = w.service.conductor.fleet.node_at(slot)
            (body,) = asked
            assert body["old_position"] == [f"i-{source}", "LocalCPUBackend"]
            assert body["new_position"] == [f"i-{done.target}", "LocalCPUBackend"]
            assert body["copy"] is True and len(body["tokens"]) == LENGTH
            await until(lambda: len(w.service.conductor.index.holders(key)) == 2)


async def test_a_replica_is_forgotten_when_its_prefix_cools(trio):
    async with world([e.spec() for e in trio]) as w:
        key = await warmed(w)
        hold = load_up(w, holder(w, key))
        w.service.moves.look(w.service.clock.now())
        await until(lambda: not w.service.moves.live)
        w.service.conductor.ledger.release(hold, w.service.clock.now())
        assert w.service.moves.planner.replicas
        later = w.service.clock.now() + 3600
        w.service.moves.look(later)
        w.service.moves.look(later + 120)
        assert not w.service.moves.planner.replicas
        assert (await listing(w)).totals.forgotten == 1


@asynccontextmanager
async def controller(move):
    """LMCache's controller as far as its HTTP side matters here."""
    app = web.Application()
    app.router.add_post("/move", move)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _hang(w, engine, how) -> None:
    async with w.client.post(f"{engine.url}/emulated/faults", json={"hang": how}) as answer:
        assert answer.status == 200, await answer.text()

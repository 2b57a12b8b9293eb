"""Supervised nodes against emulated engines: joining, dying, stopping, lying, leaving."""

import asyncio
import os
import signal
import threading
from contextlib import asynccontextmanager

import numpy as np
import pytest
from aiohttp import web

from core.conductor import Conductor
from core.domain import EngineKind, Health, NodeId, NodeSpec, Outcome, OutcomeKind, Request, Trust
from core.engines.emulated import tokenizer
from core.engines.health import HealthRules
from core.engines.parity import Parity
from core.engines.supervisor import FleetSupervisor
from core.engines.watch import WatchRules
from core.errors import Conflict, NotFound
from core.hashing import chain, root_key, token_array
from core.prompt import LocalTokenizer
from tests.integration.engine_fleet import EmulatedEngine, emulated, free_port
from tests.integration.engine_wire import until

NODE = NodeId("n")
QUICK = WatchRules(
    health=HealthRules(interval_s=0.3, timeout_s=0.5), scrape_interval_s=0.1, hurry_s=0.1
)
PROMPT = list(range(1, 1000))


def keys(ids: list[int]) -> dict[int, list[int]]:
    return {32: chain(token_array(ids), 32, root_key("tiny", block_size=32))}


class Watched:
    """A conductor whose fleet is supervised."""

    def __init__(self, fleet: FleetSupervisor, conductor: Conductor) -> None:
        self.fleet = fleet
        self.conductor = conductor

    async def add(self, engine: EmulatedEngine, node: str = NODE, **options) -> None:
        spec = NodeSpec(id=NodeId(node), url=engine.url, engine=EngineKind.EMULATED)
        await self.fleet.add(spec, **options)

    def health(self, node: str = NODE) -> Health:
        return self.conductor.fleet.health(NodeId(node))

    def match(self, ids: list[int] = PROMPT) -> int:
        return int(self.conductor.match(keys(ids))[self.conductor.fleet.slot(NODE)])

    @property
    def trust(self) -> Trust:
        return self.conductor.trust.trust(self.conductor.fleet.slot(NODE))

    async def healthy(self, node: str = NODE) -> None:
        await until(lambda: self.health(node) is Health.HEALTHY, what=f"{node} healthy")

    async def serve(self, engine: EmulatedEngine, ids: list[int]) -> tuple[int, int]:
        """One request scheduled, sent and finished: (predicted match, reported cached)."""
        now = asyncio.get_running_loop().time()
        request = Request(id="r", model="tiny", prompt_tokens=len(ids), keys=keys(ids))
        decided = self.conductor.schedule(request, now)
        assert isinstance(decided, tuple), decided
        decision, reservation = decided
        usage = (await engine.complete(ids))["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        outcome = Outcome(kind=OutcomeKind.OK, cached_tokens=cached, prompt_tokens=len(ids))
        reservation.finish(outcome, asyncio.get_running_loop().time())
        return decision.match_tokens, cached


@asynccontextmanager
async def watching(**options):
    conductor = Conductor()
    async with FleetSupervisor(conductor, rules=QUICK, **options) as fleet:
        yield Watched(fleet, conductor)


async def test_a_url_is_enough():
    async with emulated("--kv-tokens", "50000", "--adapter", "lora-a") as engine, watching() as w:
        await w.add(engine)
        await w.healthy()
        spec = w.conductor.fleet.spec(NODE)
        assert (spec.models, dict(spec.adapters)) == (("tiny",), {"lora-a": "tiny"})
        assert (spec.block_size, spec.context_tokens_max) == (32, 49952)
        assert 49_000 < spec.kv_capacity_tokens <= 50_000
        assert spec.events is not None and spec.events.live == engine.state["events"]
        await until(lambda: w.trust is Trust.EXACT, what="a complete stream")
        slot = w.conductor.fleet.slot(NODE)
        await until(lambda: np.isfinite(w.conductor.fleet.telemetry_at_s[slot]), what="telemetry")
        status = w.fleet.status(NODE)
        assert status.discovered and status.version == "0.32.0" and status.warnings() == ()


async def test_what_the_engine_caches_is_what_it_reports():
    async with emulated() as engine, watching() as w:
        await w.add(engine)
        await until(lambda: w.trust is Trust.EXACT, what="a complete stream")
        assert await w.serve(engine, PROMPT) == (0, 0)
        await until(lambda: w.match() == 992)
        assert await w.serve(engine, PROMPT[:500] + [7] * 100) == (480, 480)


async def test_lost_events_are_repaired():
    async with emulated() as engine, watching() as w:
        await w.add(engine)
        await until(lambda: w.trust is Trust.EXACT, what="a complete stream")
        await engine.fault(lose_events=3)
        for start in range(0, 5000, 1000):
            await engine.complete([start + i for i in range(1000)])
        await until(lambda: w.match(list(range(1000))) == 992, what="the lost ones")
        assert w.match([4000 + i for i in range(1000)]) == 992
        assert w.trust is Trust.EXACT


async def test_a_killed_engine_is_dead_at_once_and_its_cache_earns_nothing_after():
    async with emulated() as engine, watching() as w:
        await w.add(engine)
        await w.healthy()
        await engine.complete(PROMPT)
        await until(lambda: w.match() == 992)
        engine.signal(signal.SIGKILL)
        await until(lambda: w.health() is Health.DEAD, within_s=2, what="death")
        assert w.match() == 0
        await engine.end()
        await engine.start()
        await w.healthy()
        await until(lambda: w.trust is Trust.EXACT, what="a complete stream")
        assert w.match() == 0
        assert await w.serve(engine, PROMPT) == (0, 0)
        await until(lambda: w.match() == 992)
        assert w.fleet.status(NODE).restarts == 1


async def test_a_restart_is_noticed_without_any_event_stream():
    async with emulated("--events-port", "0") as engine, watching() as w:
        await w.add(engine, discover_events=False)
        await w.healthy()
        assert w.conductor.fleet.spec(NODE).events is None
        await w.serve(engine, PROMPT)
        assert w.trust is Trust.APPROXIMATE
        assert w.match() == 992
        await engine.end(signal.SIGKILL)
        await engine.start()
        await until(lambda: w.fleet.status(NODE).restarts == 1, what="the restart")
        await w.healthy()
        assert w.match() == 0


async def test_a_process_that_changed_between_two_probes_is_noticed():
    """The port is taken over so fast that no probe is ever refused."""
    pages = {
        "/health": "",
        "/v1/models": '{"data": [{"id": "tiny", "max_model_len": 4096}]}',
        "/metrics": "process_start_time_seconds 1\n",
    }

    async def answer(request: web.Request) -> web.Response:
        text = pages.get(request.path)
        return web.Response(text=text) if text is not None else web.Response(status=404)

    async with served(answer) as url, watching() as w:
        await w.fleet.add(NodeSpec(id=NODE, url=url, block_size=32))
        await w.healthy()
        request = Request(id="r", model="tiny", prompt_tokens=999, keys=keys(PROMPT))
        w.conductor.schedule(request, 0.0)[1].finish(Outcome(kind=OutcomeKind.OK), 1.0)
        assert w.match() == 992
        pages["/metrics"] = "process_start_time_seconds 2\n"
        await until(lambda: w.match() == 0, what="the forgetting")
        assert w.health() is Health.HEALTHY
        assert w.fleet.status(NODE).restarts == 1


async def test_a_stopped_process_dies_and_comes_back_with_its_cache():
    async with emulated() as engine, watching() as w:
        await w.add(engine)
        await w.healthy()
        await engine.complete(PROMPT)
        await until(lambda: w.match() == 992)
        engine.signal(signal.SIGSTOP)
        await until(lambda: w.health() is Health.DEAD, what="death by silence")
        engine.signal(signal.SIGCONT)
        await w.healthy()
        assert w.match() == 992
        assert w.fleet.status(NODE).restarts == 0


def test_a_stopped_process_is_dead_within_ten_seconds_by_default():
    rules = HealthRules()
    longest = rules.interval_s * (1 + rules.jitter)
    assert rules.down_after * longest + rules.timeout_s < 10.0


async def test_a_lying_engine_loses_its_credit_until_relearned():
    async with emulated() as engine, watching() as w:
        await w.add(engine)
        await until(lambda: w.trust is Trust.EXACT, what="a complete stream")
        prompts = [[n * 1000 + i for i in range(320)] for n in range(25)]
        for ids in prompts:
            await engine.complete(ids)
        await until(lambda: w.match(prompts[-1]) == 320)
        await engine.fault(silent_clear=True)
        served = [await w.serve(engine, ids) for ids in prompts]
        assert sum(predicted - cached > 32 for predicted, cached in served) >= 19, "it lied"
        assert w.trust is Trust.DEGRADED
        assert w.match(prompts[0]) == 0, "no credit while in doubt"
        stream = w.fleet.status(NODE).stream
        await until(lambda: stream.cursor.replays >= 2, what="relearning")


async def test_tokens_that_differ_are_reported_loudly():
    verdicts: list[Parity] = []

    def ours(model: str, prompt: object) -> list[int]:
        return [1, 2, 3]

    async with emulated() as engine:
        hook = {"tokenizer": ours, "on_parity": lambda node, parity: verdicts.append(parity)}
        async with watching(**hook) as w:
            await w.add(engine)
            await w.healthy()
            assert len(verdicts) == 1 and len(verdicts[0].mismatches) == 4
            assert "tokens of tiny differ: text prompt" in w.fleet.notes[NODE][0]
            assert any(e.after == "token_mismatch" for e in w.conductor.take_events())


async def test_the_engines_own_tokenizer_directory_agrees(tmp_path):
    for name, content in tokenizer.huggingface_files().items():
        (tmp_path / name).write_text(content)
    local = LocalTokenizer(tmp_path)

    def ours(model: str, prompt: object) -> list[int]:
        ids = local.encode_text(prompt) if isinstance(prompt, str) else local.encode_chat(prompt)
        return ids.tolist()

    async with emulated() as engine, watching(tokenizer=ours) as w:
        await w.add(engine)
        await w.healthy()
        parity = w.fleet.status(NODE).parity["tiny"]
        assert parity.agrees and parity.compared == 4


async def test_nodes_come_and_go_while_others_stay():
    async with emulated() as one, emulated(name="e2") as two, watching() as w:
        await w.add(one, "one")
        await w.add(two, "two")
        with pytest.raises(Conflict, match="one"):
            await w.add(one, "one")
        await w.healthy("one")
        await w.healthy("two")
        await w.fleet.remove(NodeId("one"))
        with pytest.raises(NotFound):
            await w.fleet.remove(NodeId("one"))
        assert [s.id for s in w.conductor.fleet.nodes()] == ["two"]
        await w.add(one, "one")
        await w.healthy("one")
        assert set(w.fleet.notes) == {"one", "two"}


async def test_an_engine_that_starts_late_begins_its_first_life_then():
    async with emulated() as engine:
        url = engine.url
        await engine.end()
        async with watching() as w:
            await w.add(engine)
            await until(lambda: w.fleet.status(NODE).probes >= 3, what="some probes")
            assert w.health() is Health.UNKNOWN
            await engine.start()
            assert engine.url == url
            await w.healthy()
            assert w.fleet.status(NODE).restarts == 0


@asynccontextmanager
async def served(handler):
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("page", ["<html>", "{}", '{"data": []}', "x" * 2_000_000])
async def test_who_answers_nonsense_is_never_eligible(page):
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=page)

    async with served(answer) as url, watching() as w:
        await w.fleet.add(NodeSpec(id=NODE, url=url))
        await until(lambda: w.fleet.status(NODE).probes >= 3, what="some probes")
        assert w.health() is Health.UNKNOWN
        assert "cannot be identified" in w.fleet.status(NODE).last_error


async def test_a_server_with_ranks_becomes_one_node_a_rank():
    sources = {
        str(r): {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{6000 + r}",
            "replay_endpoint": f"tcp://*:{6100 + r}",
        }
        for r in range(2)
    }
    gauges = "".join(
        f'vllm:num_requests_running{{engine="{r}",model_name="m"}} {r + 3}\n' for r in range(2)
    )
    pages = {
        "/health": "",
        "/v1/models": {"data": [{"id": "m", "max_model_len": 4096}]},
        "/version": {"version": "x"},
        "/metrics": gauges,
        "/kv_event_sources": sources,
    }

    async def answer(request: web.Request) -> web.Response:
        page = pages[request.path]
        return web.Response(text=page) if isinstance(page, str) else web.json_response(page)

    async with served(answer) as url, watching() as w:
        await w.fleet.add(NodeSpec(id=NODE, url=url))
        await until(lambda: len(w.conductor.fleet) == 2, what="two ranks")
        fleet = w.conductor.fleet
        for rank in range(2):
            await w.healthy(f"n#{rank}")
            spec = fleet.spec(NodeId(f"n#{rank}"))
            assert (spec.dp_rank, spec.engine_group) == (rank, "n")
            assert spec.events.live == f"tcp://127.0.0.1:{6000 + rank}"
            slot = fleet.slot(NodeId(f"n#{rank}"))
            await until(lambda s=slot, r=rank: fleet.running[s] == r + 3, what="its own gauges")


async def test_starting_and_stopping_leaves_nothing_behind():
    def held() -> tuple[int, int, int]:
        files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        return files, threading.active_count(), len(asyncio.all_tasks())

    async with emulated() as engine:

        async def cycle() -> None:
            async with watching() as w:
                await w.add(engine)
                await w.healthy()

        await cycle()
        before = held()
        for _ in range(10):
            await cycle()
        after = held()
        assert all(b - a <= 2 for a, b in zip(before, after, strict=True)), (before, after)


async def test_a_process_that_changed_while_its_node_was_dead_is_known_before_it_is_eligible():
    state = {"healthy": True, "epoch": 1}

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/health":
            return web.Response(status=200 if state["healthy"] else 503)
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "tiny", "max_model_len": 4096}]})
        if request.path == "/metrics":
            return web.Response(text=f"process_start_time_seconds {state['epoch']}\n")
        return web.Response(status=404)

    async with served(answer) as url, watching() as w:
        await w.fleet.add(NodeSpec(id=NODE, url=url, block_size=32))
        await w.healthy()
        request = Request(id="r", model="tiny", prompt_tokens=999, keys=keys(PROMPT))
        w.conductor.schedule(request, 0.0)[1].finish(Outcome(kind=OutcomeKind.OK), 1.0)
        assert w.match() == 992
        state["healthy"] = False
        await until(lambda: w.health() is Health.DEAD, what="death by 503")
        assert w.match() == 992, "the process may still have its cache"
        risen: list[int] = []
        set_health = w.conductor.set_health

        def noted(node: NodeId, health: Health, now: float) -> None:
            if health is Health.HEALTHY:
                risen.append(w.match())
            set_health(node, health, now)

        w.conductor.set_health = noted
        state.update(healthy=True, epoch=2)
        await w.healthy()
        assert risen[0] == 0

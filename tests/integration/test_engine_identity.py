"""Whose cache is it? Servers that change, lie about themselves, or are several in one."""

from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from core.domain import Health, NodeId, NodeSpec, Outcome, OutcomeKind, Request
from tests.integration.engine_fleet import free_port
from tests.integration.engine_watch import NODE, PROMPT, keys, watching
from tests.integration.engine_wire import until


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


async def test_a_cut_connection_is_asked_again_at_once_and_counted_once():
    """A dying process cuts connections before its port refuses them: no wait in between."""
    state = {"cutting": False, "cuts": 0}

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/health" and state["cutting"]:
            state["cuts"] += 1
            request.transport.abort()
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "tiny", "max_model_len": 4096}]})
        return web.Response(text="")

    async with served(answer) as url, watching() as w:
        await w.fleet.add(NodeSpec(id=NODE, url=url, block_size=32))
        await w.healthy()
        probes = w.fleet.status(NODE).probes
        state["cutting"] = True
        await until(lambda: w.fleet.status(NODE).streak == -1, what="a failed probe")
        assert state["cuts"] == 4
        assert w.health() is Health.SUSPECT, "one failed probe, however often it was repeated"
        assert w.fleet.status(NODE).probes <= probes + 2

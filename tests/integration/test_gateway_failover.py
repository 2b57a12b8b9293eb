"""Nodes that die, stall, refuse or flap under traffic, and clients that leave: real processes."""

import asyncio
import contextlib
import json
import signal
import time
from dataclasses import replace

import pytest
from gateway_world import MODEL, PATIENT, Engine, engines, gateway, until

from core.domain import Health, NodeId, OutcomeKind
from core.tunables import Tunables

STREAM = {"model": MODEL, "stream": True, "max_tokens": 2000, "temperature": 0}
SLOW = ("--profile", "generic-7b-1gpu")


async def faults(w, engine, **values):
    async with w.client.post(f"{engine.url}/emulated/faults", json=values) as answer:
        assert answer.status == 200, await answer.text()


async def engine_load(w, engine) -> int:
    async with w.client.get(f"{engine.url}/load") as answer:
        return (await answer.json())["server_load"]


async def idle(w, engine) -> None:
    end = time.monotonic() + 10
    while await engine_load(w, engine):
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


def events_of(data: bytes) -> list:
    events = [e.removeprefix(b"data: ") for e in data.split(b"\n\n") if e]
    return [json.loads(e) if e.startswith(b"{") else e for e in events]


# --- clients that leave --------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_before_the_first_byte_cancels_upstream(stream):
    with engines(Engine("a", *SLOW)) as (engine,):
        async with gateway(engine.spec()) as w:
            await faults(w, engine, hang="engine")
            body = {"model": MODEL, "prompt": "x", "stream": stream}
            call = asyncio.create_task(w.client.post(f"{w.url}/v1/completions", json=body))
            await until(lambda: len(w.service.conductor.ledger.open) == 1)
            while not await engine_load(w, engine):
                await asyncio.sleep(0.01)
            call.cancel()
            left = time.monotonic()
            await until(lambda: not w.service.conductor.ledger.open)
            await idle(w, engine)
            assert time.monotonic() - left < 1.0
            await w.settled()
            assert [o.kind for o in w.sink.outcomes] == [OutcomeKind.CLIENT_ABORT]


async def test_leaving_in_the_middle_of_a_stream_cancels_upstream():
    with engines(Engine("a", *SLOW)) as (engine,):
        async with gateway(engine.spec()) as w:
            answer = await w.client.post(f"{w.url}/v1/completions", json={**STREAM, "prompt": "x"})
            await answer.content.readany()
            assert await engine_load(w, engine) == 1
            answer.close()
            left = time.monotonic()
            await until(lambda: not w.service.conductor.ledger.open)
            await idle(w, engine)
            assert time.monotonic() - left < 1.0
            await w.settled()
            (done,) = w.sink.outcomes
            assert done.kind == OutcomeKind.CLIENT_ABORT
            assert done.ttft_s is not None and done.output_tokens


async def test_a_client_that_stops_reading_is_cut_and_holds_little():
    limits = replace(PATIENT, idle_timeout_s=1.0)
    with engines(Engine("a", "--context-max", "1000000")) as (engine,):
        async with gateway(engine.spec(), limits=limits) as w:
            host, port = w.url.removeprefix("http://").split(":")
            body = json.dumps({**STREAM, "prompt": "x", "max_tokens": 500_000}).encode()
            reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
            length = b"content-length: %d\r\n\r\n" % len(body)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n" + length + body)
            await reader.read(100)
            writer.transport.pause_reading()
            await until(lambda: not w.service.conductor.ledger.open)
            await idle(w, engine)
            await w.settled()
            (done,) = w.sink.outcomes
            assert done.kind == OutcomeKind.CLIENT_ABORT
            assert "stopped reading" in done.error
            writer.transport.abort()


# --- nodes that fail before the first byte -------------------------------------------------------


async def test_killed_before_first_bytes_nobody_notices():
    with engines(Engine("a", *SLOW), Engine("b", *SLOW), Engine("c", *SLOW)) as three:
        async with gateway(*(e.spec() for e in three)) as w:
            victim = three[0]
            await faults(w, victim, hang="engine")
            calls = [
                asyncio.create_task(w.complete([n] * 40, stream=True, max_tokens=4))
                for n in range(1, 61)
            ]
            await until(lambda: w.service.live.total.decisions >= 60)
            while not await engine_load(w, victim):
                await asyncio.sleep(0.01)
            waiting = await engine_load(w, victim)
            victim.kill()
            answers = await asyncio.gather(*calls)
            texts = [await a.read() for a in answers]
            assert {a.status for a in answers} == {200}, texts
            assert all(t.endswith(b"data: [DONE]\n\n") and b'"error"' not in t for t in texts)
            assert not [a for a in answers if a.headers["x-conductor-node"] == "a"]
            await w.settled()
            moved = [d for d in w.sink.decisions if d.attempt == 1]
            assert len(moved) >= waiting > 0
            assert all(d.prefill_node != "a" for d in moved)


async def test_a_stopped_process_is_declared_dead_and_its_requests_move():
    with engines(Engine("a", *SLOW), Engine("b", *SLOW)) as (a, b):
        async with gateway(a.spec(), b.spec()) as w:
            w.service.conductor.drain(NodeId("b"), True, w.service.clock.now())
            await faults(w, a, hang="engine")
            call = asyncio.create_task(w.complete("x", stream=True, max_tokens=3))
            await until(lambda: len(w.service.conductor.ledger.open) == 1)
            w.service.conductor.drain(NodeId("b"), False, w.service.clock.now())
            a.process.send_signal(signal.SIGSTOP)
            try:
                answer = await asyncio.wait_for(call, 10)
                assert answer.status == 200
                assert answer.headers["x-conductor-node"] == "b"
                await answer.read()
                assert w.service.conductor.fleet.health(NodeId("a")) is Health.DEAD
                await w.settled()
            finally:
                a.process.send_signal(signal.SIGCONT)


async def test_errors_before_the_first_byte_are_retried_within_the_budget():
    with engines(Engine("a"), Engine("b")) as (a, b):
        async with gateway(a.spec(), b.spec(), limits=replace(PATIENT, retry_min=1000)) as w:
            await faults(w, a, error_rate=1.0, error_status=500)
            for n in range(1, 21):
                answer = await w.complete([n] * 8, max_tokens=2)
                assert (answer.status, answer.headers["x-conductor-node"]) == (200, "b")
            await w.settled()
            failed = [o for o in w.sink.outcomes if o.kind == OutcomeKind.ENGINE_ERROR]
            assert failed and all(o.status == 500 for o in failed)
            slot = w.service.conductor.fleet.slot(NodeId("a"))
            await until(
                lambda: not w.service.conductor.breakers.allowed(w.service.clock.now())[slot]
            )


async def test_without_budget_the_engines_own_error_is_the_answer():
    with engines(Engine("a"), Engine("b")) as (a, b):
        limits = replace(PATIENT, retry_min=0, retry_share=0.0)
        async with gateway(a.spec(), b.spec(), limits=limits) as w:
            for engine in (a, b):
                await faults(w, engine, error_rate=1.0, error_status=503)
            answer = await w.complete("x", max_tokens=2)
            body = {"model": MODEL, "prompt": "x", "max_tokens": 2}
            async with w.client.post(f"{a.url}/v1/completions", json=body) as direct:
                assert (answer.status, await answer.read()) == (503, await direct.read())
            await w.settled()
            assert len(w.sink.outcomes) == 1
            assert w.service.counters["retries.refused"] == 1


async def test_no_first_byte_in_time_moves_once_and_then_gives_504():
    with engines(Engine("a"), Engine("b")) as (a, b):
        limits = replace(PATIENT, first_byte_timeout_s=0.3)
        async with gateway(a.spec(), b.spec(), limits=limits) as w:
            for engine in (a, b):
                await faults(w, engine, hang="engine")
            answer = await w.complete("x", stream=True)
            error = (await answer.json())["error"]
            assert (answer.status, error["code"]) == (504, "engine_timeout")
            await w.settled()
            assert {o.kind for o in w.sink.outcomes} == {OutcomeKind.TIMEOUT}
            assert len(w.sink.outcomes) == 2


async def test_nobody_left_is_503_at_once_with_a_hint():
    with engines(Engine("a")) as (engine,):
        async with gateway(engine.spec()) as w:
            engine.kill()
            first = await w.complete("x")
            assert first.status in (502, 503)
            fleet = w.service.conductor.fleet
            await until(lambda: fleet.health(NodeId("a")) is Health.DEAD)
            began = time.monotonic()
            answer = await w.complete("x")
            took = time.monotonic() - began
            error = (await answer.json())["error"]
            assert (answer.status, error["code"]) == (503, "no_candidates")
            assert int(answer.headers["retry-after"]) >= 1
            print(f"503 after {took * 1e3:.1f} ms")
            async with w.client.get(f"{w.url}/health/ready") as ready:
                assert (await ready.json())["status"] == "no_nodes"
            await w.settled()


# --- nodes that fail in the middle ---------------------------------------------------------------


async def test_killed_in_the_middle_streams_end_with_an_error_event():
    """Another node could go on; it must not, since what was sent cannot be taken back."""
    with engines(Engine("a", *SLOW), Engine("b")) as (engine, other):
        async with gateway(engine.spec()) as w:
            body = {**STREAM, "prompt": "x", "return_token_ids": True}
            opened = [await w.client.post(f"{w.url}/v1/completions", json=body) for _ in range(8)]
            heads = [await answer.content.readany() for answer in opened]
            await w.service.add_node(other.spec())
            fleet = w.service.conductor.fleet
            await until(lambda: fleet.health(NodeId("b")) is Health.HEALTHY)
            engine.kill()
            began = time.monotonic()
            tails = await asyncio.gather(*(answer.read() for answer in opened))
            took_s = time.monotonic() - began
            direct = {**body, "stream": False, "max_tokens": 1000}
            async with w.client.post(f"{other.url}/v1/completions", json=direct) as answer:
                whole_ids = (await answer.json())["choices"][0]["token_ids"]
            print(f"ended {took_s:.3f} s after the kill")
            for head, tail in zip(heads, tails, strict=True):
                *tokens, last = events_of(head + tail)
                assert last["error"]["code"] == "engine_unreachable"
                assert last["error"]["decision_id"]
                ids = [n for token in tokens for n in token["choices"][0]["token_ids"] or []]
                assert ids and ids == whole_ids[: len(ids)]
            await w.settled()
            assert {o.kind for o in w.sink.outcomes} == {OutcomeKind.ENGINE_ERROR}


async def test_a_stream_that_breaks_off_ends_with_an_error_event():
    with engines(Engine("a", "--faults", json.dumps({"drop_streams": 1}))) as (engine,):
        async with gateway(engine.spec()) as w:
            answer = await w.client.post(f"{w.url}/v1/completions", json={**STREAM, "prompt": "x"})
            *tokens, last = events_of(await answer.read())
            assert 4 <= len(tokens) < 100
            assert "error" in last
            await w.settled()


async def test_an_engine_that_is_told_to_stop_is_no_success():
    with engines(Engine("a", *SLOW)) as (engine,):
        async with gateway(engine.spec()) as w:
            answer = await w.client.post(f"{w.url}/v1/completions", json={**STREAM, "prompt": "x"})
            head = await answer.content.readany()
            engine.process.terminate()
            events = events_of(head + await answer.read())
            assert events[-1] == b"[DONE]" and events[-2]["error"]["code"] == 500
            await w.settled()
            (done,) = w.sink.outcomes
            assert done.kind == OutcomeKind.ENGINE_ERROR and done.error


async def test_a_silent_stream_is_ended_in_time():
    with engines(Engine("a", *SLOW)) as (engine,):
        async with gateway(engine.spec(), limits=replace(PATIENT, idle_timeout_s=0.5)) as w:
            answer = await w.client.post(f"{w.url}/v1/completions", json={**STREAM, "prompt": "x"})
            head = await answer.content.readany()
            await faults(w, engine, hang="engine")
            events = events_of(head + await answer.read())
            assert events[-1]["error"]["code"] == "engine_timeout"
            await w.settled()
            assert [o.kind for o in w.sink.outcomes] == [OutcomeKind.TIMEOUT]


# --- nodes that come and go ----------------------------------------------------------------------


async def test_a_flapping_node_with_work_in_flight_leaves_nothing_behind():
    first = (Engine("steady", *SLOW), Engine("flaps", *SLOW))
    with contextlib.ExitStack() as lives:
        steady, flaps = lives.enter_context(engines(*first))
        every = Tunables().changed(
            {"policy": "round_robin", "breaker.open_s": 0.1, "breaker.open_max_s": 0.2}
        )
        async with gateway(steady.spec(), flaps.spec(), tunables=every) as w:
            port = int(flaps.url.rsplit(":", 1)[1])
            stop = asyncio.Event()
            results: list[int] = []

            async def client(n):
                while not stop.is_set():
                    answer = await w.complete([n] * 40, stream=n % 2 == 0, max_tokens=20)
                    await answer.read()
                    results.append(answer.status)

            clients = [asyncio.create_task(client(n)) for n in range(1, 13)]
            life = flaps
            for _ in range(3):
                slot = w.service.conductor.fleet.slot(NodeId("flaps"))
                before = int(w.service.conductor.fleet.generation[slot])
                await until(lambda s=slot: w.service.conductor.ledger.inflight(s) > 0)
                life.kill()
                await until(
                    lambda s=slot, b=before: int(w.service.conductor.fleet.generation[s]) > b
                )
                w.service.conductor.ledger.check_integrity()
                life = lives.enter_context(engines(Engine("flaps", *SLOW, port=port)))[0]
                await until(
                    lambda: w.service.conductor.fleet.health(NodeId("flaps")) is Health.HEALTHY
                )
            stop.set()
            await asyncio.gather(*clients)
            await w.settled()
            assert results and set(results) == {200}
            assert w.service.conductor.ledger.void_releases >= 0


async def test_leaving_and_rejoining_under_the_same_name():
    with engines(Engine("a", *SLOW), Engine("b", *SLOW)) as (a, b):
        async with gateway(a.spec(), b.spec()) as w:
            opened = [
                await w.client.post(f"{w.url}/v1/completions", json={**STREAM, "prompt": [n] * 9})
                for n in range(1, 9)
            ]
            for answer in opened:
                await answer.content.readany()
            for engine in (a, b):
                await w.service.remove_node(NodeId(engine.name))
                await w.service.add_node(engine.spec())
            fleet = w.service.conductor.fleet
            await until(lambda: all(fleet.health(NodeId(n)) is Health.HEALTHY for n in "ab"))
            w.service.conductor.ledger.check_integrity()
            again = await w.complete("x", max_tokens=3)
            assert again.status == 200
            for answer in opened:
                answer.close()
            await w.settled()


async def test_stopping_refuses_new_work_and_finishes_old():
    with engines(Engine("a", *SLOW)) as (engine,):
        async with gateway(engine.spec()) as w:
            body = {**STREAM, "prompt": "x", "max_tokens": 40}
            answer = await w.client.post(f"{w.url}/v1/completions", json=body)
            head = await answer.content.readany()
            w.service.stop_accepting()
            async with w.client.get(f"{w.url}/health/ready") as ready:
                assert ready.status == 503
            async with w.client.get(f"{w.url}/health/live") as live:
                assert live.status == 200
            refused = await w.complete("y")
            assert refused.status == 503
            assert (head + await answer.read()).endswith(b"data: [DONE]\n\n")
            await w.settled()

"""Prefill on one node, decode on another: the same text, and what happens when a side dies."""

import asyncio
import json

from gateway_world import MODEL, PATIENT, Engine, engines, gateway, until

from core.domain import NodeId, OutcomeKind, Role, Trust
from core.tunables import Tunables

PREFILL, DECODE = Role.PREFILL, Role.DECODE
ASK = {"model": MODEL, "max_tokens": 12, "temperature": 0}


def pair():
    return engines(Engine("p", role=PREFILL), Engine("d", role=DECODE), Engine("alone"))


async def ask(w, base, path, body):
    async with w.client.post(f"{base}{path}", json={**ASK, **body}) as answer:
        return answer, await answer.read()


def text_of(data: bytes) -> str:
    out = ""
    for event in data.split(b"\n\n"):
        event = event.removeprefix(b"data: ")
        if event.startswith(b"{"):
            for choice in json.loads(event)["choices"]:
                out += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
    return out


async def test_two_nodes_give_the_text_of_one():
    with pair() as (p, d, alone):
        async with gateway(p.spec(), d.spec()) as w:
            for stream in (False, True):
                body = {"prompt": list(range(2000, 2200)), "stream": stream}
                answer, ours = await ask(w, w.url, "/v1/completions", body)
                _, theirs = await ask(w, alone.url, "/v1/completions", body)
                assert answer.status == 200, ours
                if stream:
                    assert text_of(ours) == text_of(theirs) != ""
                else:
                    mine, other = json.loads(ours), json.loads(theirs)
                    assert mine["choices"][0]["text"] == other["choices"][0]["text"] != ""
                assert answer.headers["x-conductor-node"] == "p"
                assert answer.headers["x-conductor-decode-node"] == "d"
                assert answer.headers["x-conductor-cached-tokens"] == ("192" if stream else "0")
            chat = {"messages": [{"role": "user", "content": "one two three"}], "stream": True}
            answer, ours = await ask(w, w.url, "/v1/chat/completions", chat)
            _, theirs = await ask(w, alone.url, "/v1/chat/completions", chat)
            assert text_of(ours) == text_of(theirs) != ""
            await w.settled()
            first, second, third = w.sink.outcomes
            assert (first.cached_tokens, second.cached_tokens) == (0, 192)
            assert third.ttft_s is not None


async def test_both_sides_count_while_they_work_and_nothing_after():
    with engines(Engine("p", role=PREFILL), Engine("d", role=DECODE)) as (p, d):
        async with gateway(p.spec(), d.spec()) as w:
            body = {"prompt": "x y z", "stream": True, "max_tokens": 5000}
            answer = await w.client.post(f"{w.url}/v1/completions", json={**ASK, **body})
            await answer.content.readany()
            fleet = w.service.conductor.fleet
            assert fleet.decoding[fleet.slot(NodeId("d"))] == 1
            assert fleet.prefilling[fleet.slot(NodeId("p"))] == 0
            answer.close()
            await w.settled()


async def served(w, engine) -> float:
    """Prompt tokens the engine has worked on so far."""
    async with w.client.get(f"{engine.url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return sum(float(x.split()[-1]) for x in lines if x.startswith("vllm:prompt_tokens_total"))


async def test_requests_that_cannot_be_split_run_on_one_node():
    with engines(Engine("p", role=PREFILL), Engine("d", role=DECODE)) as (p, d):
        async with gateway(p.spec(), d.spec()) as w:
            answer, _ = await ask(w, w.url, "/v1/completions", {"prompt": "a b", "echo": True})
            assert answer.status == 200
            assert await served(w, p) == 0 < await served(w, d)
            answer, _ = await ask(w, w.url, "/v1/completions", {"prompt": "a b"})
            assert answer.status == 200
            assert await served(w, p) > 0
            await w.settled()


async def test_what_the_decode_node_did_alone_says_nothing_of_the_prefill_nodes_cache():
    with engines(Engine("p", role=PREFILL), Engine("d", role=DECODE)) as (p, d):
        rules = Tunables().changed({"trust.window": 5})
        async with gateway(p.spec(), d.spec(), tunables=rules) as w:
            prompt = list(range(3000, 3400))
            await ask(w, w.url, "/v1/completions", {"prompt": prompt, "max_tokens": 1})
            await until(lambda: w.service.conductor.index.stats().blocks[0] > 0)
            for n in range(6):  # each with an end of its own, so that the decode node has it anew
                whole = {"prompt": [*prompt[:320], *range(n * 500, n * 500 + 80)], "echo": True}
                async with w.client.post(f"{d.url}/reset_prefix_cache"):
                    pass
                answer, _ = await ask(w, w.url, "/v1/completions", whole)
                assert answer.status == 200
            await w.settled()
            assert [x.match_tokens for x in w.sink.decisions[1:]] == [320] * 6
            assert {o.cached_tokens for o in w.sink.outcomes[1:]} == {0}
            conductor = w.service.conductor
            assert conductor.trust.trust(conductor.fleet.slot(NodeId("p"))) is Trust.EXACT


async def test_a_dead_prefill_node_is_another_ones_work():
    made = (Engine("p1", role=PREFILL), Engine("p2", role=PREFILL), Engine("d", role=DECODE))
    with engines(*made) as (p1, *_):
        async with gateway(*(e.spec() for e in made)) as w:
            async with w.client.post(f"{p1.url}/emulated/faults", json={"hang": "engine"}):
                pass
            w.service.conductor.drain(NodeId("p2"), True, w.service.clock.now())
            calls = [
                asyncio.create_task(ask(w, w.url, "/v1/completions", {"prompt": [n] * 40}))
                for n in range(1, 9)
            ]
            await until(lambda: len(w.service.conductor.ledger.open) == 8)
            w.service.conductor.drain(NodeId("p2"), False, w.service.clock.now())
            p1.kill()
            answers = await asyncio.gather(*calls)
            assert {answer.status for answer, _ in answers} == {200}
            assert {answer.headers["x-conductor-node"] for answer, _ in answers} == {"p2"}
            await w.settled()
            blamed = [o for o in w.sink.outcomes if o.kind == OutcomeKind.ENGINE_ERROR]
            assert len(blamed) == 8
            slot = w.service.conductor.fleet.slot(NodeId("d"))
            now = w.service.clock.now()
            assert w.service.conductor.breakers.allowed(now)[slot]


async def test_a_dead_decode_node_means_to_prefill_again():
    made = (Engine("p", role=PREFILL), Engine("d1", role=DECODE), Engine("d2", role=DECODE))
    with engines(*made) as (_, d1, _):
        async with gateway(*(e.spec() for e in made)) as w:
            async with w.client.post(f"{d1.url}/emulated/faults", json={"hang": "engine"}):
                pass
            w.service.conductor.drain(NodeId("d2"), True, w.service.clock.now())
            call = asyncio.create_task(ask(w, w.url, "/v1/completions", {"prompt": [7] * 40}))
            fleet = w.service.conductor.fleet
            await until(lambda: fleet.prefilling.sum() == 0 and fleet.decoding.sum() == 1)
            w.service.conductor.drain(NodeId("d2"), False, w.service.clock.now())
            d1.kill()
            answer, _ = await call
            assert answer.status == 200
            assert answer.headers["x-conductor-decode-node"] == "d2"
            await w.settled()
            assert [d.attempt for d in w.sink.decisions] == [0, 1]


async def test_leaving_during_the_prefill_leg_cancels_it():
    with engines(Engine("p", role=PREFILL), Engine("d", role=DECODE)) as (p, d):
        async with gateway(p.spec(), d.spec(), limits=PATIENT) as w:
            async with w.client.post(f"{p.url}/emulated/faults", json={"hang": "engine"}):
                pass
            call = asyncio.create_task(ask(w, w.url, "/v1/completions", {"prompt": "x"}))
            await until(lambda: len(w.service.conductor.ledger.open) == 1)

            async def load() -> int:
                async with w.client.get(f"{p.url}/load") as answer:
                    return (await answer.json())["server_load"]

            while not await load():
                await asyncio.sleep(0.01)
            call.cancel()
            await until(lambda: not w.service.conductor.ledger.open, deadline_s=1.0)
            async with asyncio.timeout(10):
                while await load():
                    await asyncio.sleep(0.01)
            await w.settled()
            assert [o.kind for o in w.sink.outcomes] == [OutcomeKind.CLIENT_ABORT]

"""The service in front of real engines: three vLLM and two SGLang, and a NIXL pair."""

import asyncio
import time
from collections import Counter

import pytest

from core.domain import Health, NodeId
from core.hashing import chain, root_key, token_array
from core.prompt import LocalTokenizer
from tests.engines.conftest import Fleet, Installed
from tests.engines.launch import Engine, wait_ready
from tests.engines.service import Answer, Front, front
from tests.engines.workload import TEXTS, Call, calls

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]
BLOCK = 32


async def send_all(front: Front, count: int, *, seed: int, at_once: int) -> list[Answer]:
    """`count` calls of the workload, `at_once` of them in flight."""
    coming = calls(count, seed)
    answers: list[Answer] = []

    async def worker() -> None:
        for call in coming:
            answer = await front.call(call)
            answers.append(answer)
            if call.conversation is not None:
                call.conversation.answered(answer.text)

    await asyncio.gather(*(worker() for _ in range(at_once)))
    return answers


async def test_engines_are_understood_from_their_urls(fleet: Fleet, installed: Installed, figure):
    async with front(fleet.nodes(), model=installed.model, state=installed.logs / "a") as f:
        began = time.monotonic()
        await f.healthy(list(fleet.engines))
        figure(
            "from start to 5 healthy nodes with complete streams",
            f"{time.monotonic() - began:.1f} s",
        )
        for status in f.service.fleet.statuses():
            spec = f.service.conductor.fleet.spec(status.node)
            assert status.warnings() == (), status
            assert status.parity["tiny"].agrees and status.parity["tiny"].compared == 4
            assert (spec.models, spec.block_size) == (("tiny",), BLOCK)
            assert spec.context_tokens_max == 32768 and spec.kv_capacity_tokens == 65536
        versions = {s.node.rstrip("012"): s.version for s in f.service.fleet.statuses()}
        figure("versions", ", ".join(f"{k} {v}" for k, v in versions.items()))


@pytest.mark.parametrize("at_once", [1, 4])
async def test_predicted_matches_are_what_engines_report(
    fleet: Fleet, installed: Installed, figure, at_once: int
):
    state = installed.logs / f"b{at_once}"
    async with front(fleet.nodes(), model=installed.model, state=state) as f:
        await f.healthy(list(fleet.engines))
        answers = await send_all(f, 200, seed=at_once, at_once=at_once)
    assert [a.problem for a in answers if a.status != 200] == []
    within = [abs(a.match_tokens - a.cached_tokens) <= BLOCK for a in answers]
    exact = sum(a.match_tokens == a.cached_tokens for a in answers)
    reused = sum(a.cached_tokens for a in answers)
    prompts = sum(a.prompt_tokens for a in answers)
    reachable = sum(a.reachable_tokens for a in answers)
    figure(
        f"200 requests, {at_once} at once: predicted match within one block of reported",
        f"{sum(within)} of {len(within)} ({exact} exactly)",
    )
    figure(
        f"200 requests, {at_once} at once: reported reuse of prompt tokens",
        f"{reused / prompts:.1%} (reachable {reachable / prompts:.1%})",
    )
    nodes = Counter(a.node for a in answers)
    figure(
        f"200 requests, {at_once} at once: share",
        ", ".join(f"{node} {count}" for node, count in sorted(nodes.items())),
    )
    assert sum(within) >= 0.98 * len(within)
    assert reused > 0.5 * prompts, "prefixes were shared: the comparison is no comparison of zeros"
    kinds = {node.rstrip("012") for node in nodes}
    assert kinds == {"vllm", "sglang"}


def credit(f: Front, installed: Installed, node: str, text: str) -> int:
    """Tokens of a text that the scheduler believes the node to hold, now."""
    ids = token_array(LocalTokenizer(installed.model).encode_text(text))
    keys = {BLOCK: chain(ids, BLOCK, root_key("tiny", block_size=BLOCK))}
    conductor = f.service.conductor
    return int(conductor.match(keys)[conductor.fleet.slot(NodeId(node))])


@pytest.mark.parametrize("node", ["vllm0", "sglang0"])
async def test_a_restarted_engine_earns_no_credit_for_its_old_cache(
    fleet: Fleet, installed: Installed, figure, node: str
):
    engine, text = fleet.engines[node], TEXTS[0]
    state = installed.logs / f"c-{node}"
    only = [n for n in fleet.nodes() if n["id"] == node]
    async with front(only, model=installed.model, state=state) as f:
        await f.healthy([node])
        call = Call(
            "/v1/completions", {"model": "tiny", "prompt": text, "max_tokens": 4, "temperature": 0}
        )
        first = await f.call(call)
        assert first.status == 200, first.problem
        await becomes(lambda: credit(f, installed, node, text) > 500, within_s=5)
        began = time.monotonic()
        killing = asyncio.create_task(asyncio.to_thread(engine.kill))
        await becomes(lambda: credit(f, installed, node, text) == 0, within_s=10)
        took = time.monotonic() - began
        figure(f"{node}: from SIGKILL to no credit", f"{1000 * took:.0f} ms")
        await killing
        assert took < 2.0, "the promise itself, counted from the signal"
        engine.start()
        credits = await watch_restart(f, installed, node, text, engine)
        assert set(credits) == {0}, "old credit came back while the engine restarted"
        await f.healthy([node])
        again = await f.call(call)
        assert (again.match_tokens, again.cached_tokens) == (0, 0)
        await becomes(lambda: credit(f, installed, node, text) > 500, within_s=5)
        third = await f.call(call)
        assert third.match_tokens == third.cached_tokens > 500
        assert third.text == first.text


async def watch_restart(
    f: Front, installed: Installed, node: str, text: str, engine: Engine
) -> list[int]:
    """Credit of the old text, looked at all the time from the start to two seconds of health."""
    credits: list[int] = []
    fleet = f.service.conductor.fleet
    ready = asyncio.create_task(asyncio.to_thread(wait_ready, [engine]))
    healthy_s: float | None = None
    while healthy_s is None or time.monotonic() - healthy_s < 2.0:
        credits.append(credit(f, installed, node, text))
        if healthy_s is None and fleet.health(NodeId(node)) is Health.HEALTHY:
            healthy_s = time.monotonic()
        await asyncio.sleep(0.05)
        if ready.done():
            ready.result()
    await ready
    return credits


async def becomes(condition, *, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s"
        await asyncio.sleep(0.005)


async def test_a_prefill_decode_pair_answers_like_a_single_engine(
    fleet: Fleet, pair: tuple[Engine, Engine], installed: Installed, figure
):
    chat = {"model": "tiny", "temperature": 0, "max_tokens": 24, "ignore_eos": True}
    bodies = [{**chat, "messages": [{"role": "user", "content": t[:1500]}]} for t in TEXTS[:8]]
    bodies += [
        {**body, "stream": True, "stream_options": {"include_usage": True}} for body in bodies[:4]
    ]
    wanted = [Call("/v1/chat/completions", body) for body in bodies]
    single = [{"id": "vllm1", "url": fleet.engines["vllm1"].url, "engine": "vllm"}]
    async with front(single, model=installed.model, state=installed.logs / "d") as f:
        await f.healthy(["vllm1"])
        alone = [await f.call(call) for call in wanted]
    roles = {"prefill": pair[0], "decode": pair[1]}
    nodes = [
        {"id": role, "url": engine.url, "engine": "vllm", "role": role, "kv_transfer": "nixl"}
        for role, engine in roles.items()
    ]
    async with front(nodes, model=installed.model, state=installed.logs / "e") as f:
        await f.healthy(["prefill", "decode"])
        times: list[float] = []
        split: list[Answer] = []
        for call in wanted:
            began = time.monotonic()
            split.append(await f.call(call))
            times.append(time.monotonic() - began)
    assert [a.problem for a in [*alone, *split] if a.status != 200] == []
    assert {(a.node, a.decode_node) for a in split} == {("prefill", "decode")}
    assert [a.text for a in split] == [a.text for a in alone]
    assert all(len(a.text) > 20 for a in alone), "there is a text to compare"
    figure("NIXL pair: same text as a single engine", f"{len(split)} of {len(wanted)} requests")
    figure(
        "NIXL pair: first request, median of the others",
        f"{times[0]:.2f} s, {sorted(times[1:])[len(times) // 2 - 1]:.2f} s",
    )


async def test_a_dead_prefill_engine_is_replaced_by_another_node(
    fleet: Fleet, pair: tuple[Engine, Engine], installed: Installed, figure
):
    nodes = [
        {"id": "prefill", "url": pair[0].url, "role": "prefill", "kv_transfer": "nixl"},
        {"id": "decode", "url": pair[1].url, "role": "decode", "kv_transfer": "nixl"},
        {"id": "vllm2", "url": fleet.engines["vllm2"].url, "weight": 0.01},
    ]
    body = {"model": "tiny", "prompt": TEXTS[9][:1200], "max_tokens": 16, "temperature": 0}
    async with front(nodes, model=installed.model, state=installed.logs / "g") as f:
        await f.healthy(["prefill", "decode", "vllm2"])
        before = await f.call(Call("/v1/completions", body))
        await asyncio.to_thread(pair[0].kill)
        began = time.monotonic()
        after = await f.call(Call("/v1/completions", body))
        figure(
            "NIXL pair: prefill engine killed, next request answered by another node in",
            f"{time.monotonic() - began:.2f} s",
        )
        assert (before.status, after.status) == (200, 200), after.problem
        assert after.node != "prefill"
        assert after.text == before.text

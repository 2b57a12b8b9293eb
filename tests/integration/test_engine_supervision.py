"""Supervised nodes against emulated engines: joining, dying, stopping, lying, leaving."""

import asyncio
import os
import signal
import threading

import numpy as np
import pytest

from core.domain import Health, NodeId, Trust
from core.engines.emulated import tokenizer
from core.engines.health import HealthRules
from core.engines.parity import Parity
from core.errors import Conflict, NotFound
from core.prompt import LocalTokenizer
from tests.integration.engine_fleet import emulated
from tests.integration.engine_watch import NODE, PROMPT, watching
from tests.integration.engine_wire import until


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
        for start in (0, 2000, 4000):
            ids = list(range(start, start + 1000))
            await until(lambda ids=ids: w.match(ids) == 992, what=f"the blocks of {start}")
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
        for _ in range(5):
            await cycle()
        after = held()
        assert all(b - a <= 2 for a, b in zip(before, after, strict=True)), (before, after)

"""The built-in workload: sessions that grow, from one seed, as real requests."""

import asyncio
import random

from engine_here import engine_here

from core.workload import SessionMaker, run_workload


def drawn(seed, count=200):
    maker = SessionMaker(random.Random(seed))
    out = []
    for _ in range(count):
        session = maker.next()
        body = maker.body(session, "m")
        out.append((session.name, body))
        session.messages.append({"role": "assistant", "content": "ok"})
    return out


def test_one_seed_gives_one_workload():
    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


def test_each_turn_starts_with_the_one_before():
    last = {}
    for name, body in drawn(1):
        before = last.get(name, [])
        assert body["messages"][: len(before)] == before
        assert body["messages"][0]["role"] == "system"
        assert body["messages"][-1]["role"] == "user"
        last[name] = body["messages"]
    assert max(len(m) for m in last.values()) > 4


def test_sessions_end_and_few_system_prompts_take_most():
    found = drawn(2, 2000)
    turns = max(len(body["messages"]) for _, body in found)
    assert turns <= 20
    first = {}
    for name, body in found:
        first[name] = body["messages"][0]["content"]
    counts = sorted(
        (list(first.values()).count(text) for text in set(first.values())), reverse=True
    )
    assert len(counts) == 4
    assert counts[0] > len(first) * 0.4
    assert {body["user"] for _, body in found} == {"search", "assistant", "coding"}


def test_a_session_is_of_one_tenant():
    tenants = {}
    for name, body in drawn(5, 500):
        tenants.setdefault(name, set()).add(body["user"])
    assert all(len(found) == 1 for found in tenants.values())


async def test_requests_reach_an_engine_and_share_prefixes():
    async with engine_here(kv_tokens=500_000) as (url, engine):
        sent = await run_workload(url + "/", model="tiny", requests_per_s=500.0, seed=1, limit=20)
        counters = engine.scheduler.counters
        assert sent == 20
        assert counters.queries > 20 * 400
        assert counters.hits > 0.3 * counters.queries


async def test_errors_end_nothing():
    async with engine_here(faults={"error_rate": 1.0}) as (url, _):
        assert await run_workload(url, model="tiny", requests_per_s=500.0, limit=5) == 5
    assert await run_workload("http://127.0.0.1:9", model="m", requests_per_s=500.0, limit=2) == 2


async def test_a_rate_of_0_sends_nothing():
    async with asyncio.timeout(5):
        assert await run_workload("http://127.0.0.1:9", model="m", requests_per_s=0.0) == 0

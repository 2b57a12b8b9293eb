"""A whole scheduler while its database is away: decisions as before, acts refused, nothing lost.

The ordinary run is short; `-m soak` stays away for ten minutes (CONDUCTOR_OUTAGE_S).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from contextlib import asynccontextmanager

import aiohttp
import pytest
from record_cases import rows

from core import wire
from core.domain import (
    Decision,
    EngineKind,
    Health,
    NodeId,
    NodeSpec,
    Outcome,
    OutcomeKind,
    Request,
    RequestId,
)
from core.hashing import chain, root_key, token_array
from core.settings import Settings
from core.wiring import running_service
from tests.integration.gateway_world import serving, until

PER_S = 200.0
NODES = 8
LONG_S = float(os.environ.get("CONDUCTOR_OUTAGE_S", "600"))
GIVE_UP_S = 600.0
"""A busy machine is waited for, so that the figures are printed whatever they are."""
MODEL = "m"


@asynccontextmanager
async def scheduler(url, state_dir):
    """A service with nodes that nobody probes, before HTTP."""
    settings = Settings(state_dir=state_dir, database_url=url, auth={"anonymous_role": "admin"})
    async with running_service(settings) as service, serving(service) as (address, _):
        for number in range(NODES):
            spec = NodeSpec(
                id=NodeId(f"n{number}"),
                url="http://127.0.0.1:9",
                engine=EngineKind.VLLM,
                models=(MODEL,),
                kv_capacity_tokens=10_000_000,
            )
            service.conductor.register(spec, service.clock.now())
            service.conductor.set_health(spec.id, Health.HEALTHY, service.clock.now())
        await until(lambda: service.control.loaded)
        yield service, address


class Traffic:
    """Decisions at a steady rate, each held and ended as a request's is."""

    def __init__(self, service) -> None:
        self._service = service
        self._number = itertools.count()
        self.ids: list[str] = []
        self.rejected = 0
        self.took_s: list[float] = []
        """Of each decision since it was last cleared."""

    async def run(self) -> None:
        due_s = time.monotonic()
        while True:
            due_s = max(due_s + 1 / PER_S, time.monotonic() - 0.5)
            await asyncio.sleep(max(due_s - time.monotonic(), 0.0))
            self.one()

    def one(self) -> None:
        number = next(self._number)
        tokens = token_array(range(number % 50 * 1_000, number % 50 * 1_000 + 400))
        keys = {
            size: chain(tokens, size, root_key(MODEL, block_size=size))
            for size in self._service.conductor.block_sizes(MODEL)
        }
        request = Request(id=RequestId(f"r{number}"), model=MODEL, prompt_tokens=400, keys=keys)
        began_s = time.perf_counter()
        decided = self._service.decide(request)
        if not isinstance(decided, Decision):
            self.rejected += 1
            return
        held = self._service.hold(decided)
        self.took_s.append(time.perf_counter() - began_s)
        held.finish(Outcome(kind=OutcomeKind.OK, ttft_s=0.1, output_tokens=5))
        self.ids.append(decided.id)

    def p99_ms(self) -> float:
        """Of the decisions since the last call."""
        took, self.took_s = sorted(self.took_s), []
        return took[int(0.99 * (len(took) - 1))] * 1e3


@pytest.fixture
def server(postgres_server):
    """The shared server, running again afterwards."""
    yield postgres_server
    if not postgres_server.running:
        postgres_server.start()


async def away(server, tmp_path, *, before_s: float, away_s: float) -> None:
    url = server.new_database()
    async with scheduler(url, tmp_path) as (service, address), aiohttp.ClientSession() as client:
        traffic = Traffic(service)
        task = asyncio.create_task(traffic.run())
        await asyncio.sleep(before_s)
        before_ms = traffic.p99_ms()
        await asyncio.to_thread(server.stop)
        await until(lambda: not service.sink.counters().available)
        ended_s = time.monotonic() + away_s
        while time.monotonic() < ended_s:
            await asyncio.sleep(min(1.0, away_s / 4))
            async with client.get(f"{address}/health/ready") as answer:
                view = wire.HealthView.model_validate_json(await answer.read())
                assert answer.status == 200 and view.status == "degraded"
                assert any("cannot be stored" in text for text in view.problems)
            body = {"action": "trip", "reason": "a test of it", "author": "op"}
            async with client.post(f"{address}/admin/v1/breaker", json=body) as answer:
                assert answer.status == 503, await answer.read()
        during_ms = traffic.p99_ms()
        waiting = service.sink.counters().spooled
        await asyncio.to_thread(server.start)
        back_s = time.monotonic()
        wanted = set(traffic.ids)
        await until(lambda: not service.sink.counters().spooled, deadline_s=GIVE_UP_S)
        took_s = time.monotonic() - back_s
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        service.recorder.drain()
        assert await asyncio.to_thread(service.sink.flush, 60.0)
        assert traffic.rejected == 0 and service.sink.counters().dropped == 0
    found = [id for (id,) in rows(url, "SELECT id FROM decisions")]
    ended = [id for (id,) in rows(url, "SELECT decision_id FROM outcomes")]
    assert len(found) == len(set(found)) and set(found) == set(traffic.ids)
    assert len(ended) == len(set(ended)) and set(ended) == set(traffic.ids)
    print(
        f"\naway for {away_s:g} s at {PER_S:g}/s: {len(wanted):,} decisions until then,"
        f" none failed, {waiting:,} records spooled; p99 of a decision {before_ms:.2f} ms before,"
        f" {during_ms:.2f} ms during ({during_ms / before_ms - 1:+.0%});"
        f" stored {took_s:.1f} s after the return"
    )
    if away_s >= 60.0:
        assert took_s <= 60.0


async def test_decisions_go_on_without_the_database(server, tmp_path):
    await away(server, tmp_path, before_s=3.0, away_s=6.0)


@pytest.mark.soak
@pytest.mark.timeout(LONG_S * 2 + 1_200)
async def test_decisions_go_on_for_ten_minutes(server, tmp_path):
    await away(server, tmp_path, before_s=60.0, away_s=LONG_S)

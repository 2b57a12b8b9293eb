"""A scheduler with a real store before emulated engines, traffic on it, and an operator."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gateway_world import gateway

from core import wire
from core.engines.health import HealthRules
from core.engines.watch import WatchRules
from storage.store import open_storage

CALM = WatchRules(
    health=HealthRules(interval_s=0.5, timeout_s=10.0, down_after=10, up_after=1),
    scrape_interval_s=0.5,
)
"""A machine under load may answer late; nodes do not die in these tests."""
WHY = {"reason": "a test of it", "author": "op"}


@asynccontextmanager
async def controlled(made, folder, *, tunables=None, **spec):
    """The world with its storage; records reach it on `flushed`."""
    with open_storage(f"sqlite:///{folder}/records.db") as storage:
        specs = [e.spec(**{"kv_transfer": "", **spec}) for e in made]  # decode where prefilled
        async with gateway(
            *specs, store=storage.store, sink=storage.sink, tunables=tunables, rules=CALM
        ) as w:
            w.extra["storage"] = storage
            yield w


async def flushed(w) -> None:
    w.service.recorder.drain()
    assert await asyncio.to_thread(w.extra["storage"].sink.flush)


async def call(w, method, path, body=None, *, kind=wire.FullRevision, status=200, **headers):
    """One admin request; its answer, or the error where `status` says so."""
    url = f"{w.url}/admin/v1{path}"
    async with w.client.request(method, url, json=body, headers=headers) as answer:
        text = await answer.read()
        assert answer.status == status, text
    if status < 400:
        return kind.model_validate_json(text)
    stale = status == 409 and b'"yours"' in text
    return (wire.StaleBody if stale else wire.ErrorBody).model_validate_json(text).error


async def apply(w, changes, *, base=None, status=201, **more):
    base = w.service.conductor.revision if base is None else base
    body = {"changes": changes, "base": base, **WHY, **more}
    return await call(w, "POST", "/revisions", body, status=status)


@dataclass
class Load:
    """Open-loop traffic: prompts of `groups` shared prefixes, the first one often."""

    world: object
    rate: float = 15.0
    groups: int = 24
    popular_share: float = 0.3
    """Of requests for the first group; the rest is even."""
    shared: int = 512
    tail: int = 64
    output: int = 8
    hot: int = 0
    """Above 0: every prompt has this prefix, as if it were the group's number."""
    seed: int = 1
    sent: int = 0
    failures: list = field(default_factory=list)

    @asynccontextmanager
    async def running(self):
        task = asyncio.create_task(self._run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.gather(*self._open)

    async def _run(self):
        rng, loop = random.Random(self.seed), asyncio.get_running_loop()
        self._open, due = set(), loop.time()
        while True:
            popular = rng.random() < self.popular_share
            group = self.hot or (1 if popular else rng.randint(2, self.groups))
            task = asyncio.create_task(self.one(group))
            self._open.add(task)
            due = max(due + rng.expovariate(self.rate), loop.time() - 1.0)
            await asyncio.sleep(max(due - loop.time(), 0.0))

    async def one(self, group):
        self.sent += 1
        draw = random.Random(group)
        prompt = [draw.randrange(1000, 30_000) for _ in range(self.shared)]
        draw = random.Random(self.seed * 10**6 + self.sent)
        prompt += [draw.randrange(1000, 30_000) for _ in range(self.tail)]
        answer = await self.world.complete(
            prompt,
            max_tokens=self.output,
            stream=True,
            headers={"x-session-id": f"s{group}", "connection": "close"},
        )
        text = await answer.read()
        if answer.status != 200 or not text.rstrip().endswith(b"[DONE]") or b'"error"' in text:
            self.failures.append((answer.status, text[-200:]))

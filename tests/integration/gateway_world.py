"""A whole scheduler in this process, before emulated engines that are real processes."""

import asyncio
import contextlib
import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import uvicorn

from core.audit import Recorder
from core.clock import SystemClock
from core.conductor import Conductor
from core.domain import EngineKind, Health, NodeId, NodeSpec, Role
from core.engines.health import HealthRules
from core.engines.supervisor import FleetSupervisor
from core.engines.watch import WatchRules
from core.gateway.app import create_app
from core.gateway.limits import Limits
from core.gateway.protocol import gateway_protocol
from core.gateway.service import Service
from core.identity.api_keys import KeyRing
from core.identity.authority import Authority, AuthRules
from core.identity.principal import AccessRole
from core.ports import DecisionRecord, OutcomeRecord, SinkCounters
from core.prompt import Prompts
from core.tunables import Tunables

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 20.0
MODEL = "tiny"
QUICK = WatchRules(
    health=HealthRules(interval_s=0.3, timeout_s=0.3, down_after=3, up_after=2),
    scrape_interval_s=0.2,
    hurry_s=0.05,
    poke_s=0.02,
)


OPEN = AuthRules(anonymous_role=AccessRole.ADMIN)
"""Whoever is on this machine may do everything; tests of who may do what bring their own."""
PATIENT = Limits(connect_timeout_s=10.0)
"""A starved test machine may take its time; what is tested is not that."""


class MemorySink:
    """Keeps records in lists."""

    def __init__(self) -> None:
        self.decisions: list[DecisionRecord] = []
        self.outcomes: list[OutcomeRecord] = []
        self.events: list[tuple[str, str, dict]] = []
        self.nodes: list[tuple[str, str]] = []
        self.standings: dict[str, dict] = {}

    def put_decision(self, record) -> None:
        self.decisions.append(record)

    def put_outcome(self, record) -> None:
        self.outcomes.append(record)

    def put_telemetry(self, node, at, reading) -> None:
        pass

    def put_event(self, kind, node, data, at) -> None:
        self.events.append((kind, node, dict(data)))

    def put_node(self, spec, state, at) -> None:
        self.nodes.append((spec.id, state))

    def put_standing(self, name, data, at) -> None:
        self.standings[name] = dict(data)

    def put_prompt(self, decision_id, at, render) -> None:
        pass

    def counters(self) -> SinkCounters:
        written = len(self.decisions) + len(self.outcomes)
        return SinkCounters(queued=0, written=written, dropped=0, failures=0)


class Engine:
    """One emulated engine process."""

    def __init__(self, name: str, *arguments: str, port: int = 0, role: Role = Role.BOTH) -> None:
        self.name = name
        self.role = role
        command = [sys.executable, "-m", "core.engines.emulated", "--name", name]
        defaults = ["--model", MODEL, "--profile", "instant", "--role", role.value]
        self.arguments = [*defaults, *arguments]
        self.process = subprocess.Popen(
            [*command, *self.arguments, "--port", str(port)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.info: dict = {}

    def ready(self) -> "Engine":
        line = self.process.stdout.readline()
        assert line, f"engine ended with {self.process.wait()}"
        self.info = json.loads(line)
        return self

    @property
    def url(self) -> str:
        return self.info["url"]

    def spec(self, **more) -> NodeSpec:
        fields = {
            "id": NodeId(self.name),
            "url": self.url,
            "engine": EngineKind.EMULATED,
            "role": self.role,
            "profile": "tiny-emulated",
            "kv_transfer": "nixl",
        }
        return NodeSpec(**{**fields, **more})

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@contextlib.contextmanager
def engines(*made: Engine):
    try:
        for engine in made:
            engine.ready()
        yield list(made)
    finally:
        for engine in made:
            engine.close()


@dataclass
class World:
    service: Service
    url: str
    sink: MemorySink
    client: aiohttp.ClientSession
    supervisor: FleetSupervisor | None = None
    server: uvicorn.Server | None = None
    extra: dict = field(default_factory=dict)

    async def chat(self, text: str = "hello", **more) -> aiohttp.ClientResponse:
        messages = [{"role": "user", "content": text}]
        return await self.post("/v1/chat/completions", {"messages": messages}, **more)

    async def complete(self, prompt, **more) -> aiohttp.ClientResponse:
        return await self.post("/v1/completions", {"prompt": prompt}, **more)

    async def post(self, path, body, *, headers=None, **more) -> aiohttp.ClientResponse:
        """An answer that has been read, unless it is a stream."""
        body = {"model": MODEL, **body, **more}
        answer = await self.client.post(f"{self.url}{path}", json=body, headers=headers)
        if answer.content_type != "text/event-stream":
            await answer.read()
        return answer

    async def settled(self) -> None:
        """Nothing in flight, every counter at zero, every decision with its outcome."""
        ledger, fleet = self.service.conductor.ledger, self.service.conductor.fleet
        await until(lambda: not ledger.open and not len(self.service.flights))
        ledger.check_integrity()
        for name in ("queued_tokens", "queued_s", "prefilling", "decoding", "kv_tokens"):
            assert not getattr(fleet, name).any(), name
        if isinstance(self.sink, MemorySink):
            self.service.recorder.drain()
            placed = {d.id for d in self.sink.decisions if d.placed}
            ended = [o.decision_id for o in self.sink.outcomes]
            assert len(ended) == len(set(ended))
            assert placed == set(ended)


@asynccontextmanager
async def gateway(
    *specs: NodeSpec,
    limits: Limits | None = None,
    tunables: Tunables | None = None,
    prompts: Prompts | None = None,
    rules: WatchRules = QUICK,
    store=None,
    sink=None,
    authority: Authority | None = None,
    keys: KeyRing | None = None,
    healthy: bool = True,
) -> AsyncIterator[World]:
    clock = SystemClock()
    conductor = Conductor(tunables=tunables, rng=random.Random(7))
    sink = sink or MemorySink()
    recorder = Recorder(sink)
    prompts = prompts or Prompts()
    supervisor = FleetSupervisor(
        conductor, clock=clock, rules=rules, rng=random.Random(3), tokenizer=prompts.local_ids
    )
    service = Service(
        conductor=conductor,
        clock=clock,
        prompts=prompts,
        recorder=recorder,
        sink=sink,
        store=store,
        fleet=supervisor,
        limits=limits or PATIENT,
        authority=authority or Authority(OPEN, store=store),
        keys=keys or KeyRing(OPEN, store=store),
        rng=random.Random(5),
        version="test",
        node_notes=supervisor.notes,
    )
    service.streams = supervisor.streams
    async with supervisor, service, serving(service) as (url, server):
        for spec in specs:
            await service.add_node(spec)
        if healthy:
            for spec in specs:
                await until(lambda s=spec: conductor.fleet.health(s.id) is Health.HEALTHY)
        timeout = aiohttp.ClientTimeout(total=60)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as client:
            yield World(service, url, sink, client, supervisor, server)


@asynccontextmanager
async def serving(service: Service):
    """The service's application on a free port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    config = uvicorn.Config(
        create_app(service),
        lifespan="off",
        access_log=False,
        log_level="critical",
        http=gateway_protocol(service.limits),
        timeout_graceful_shutdown=3,
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await until(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", server
    finally:
        server.should_exit = True
        await task


async def until(true: Callable[[], bool], *, deadline_s: float = DEADLINE_S) -> None:
    end = time.monotonic() + deadline_s
    while not true():
        assert time.monotonic() < end, f"not in {deadline_s} s: {true}"
        await asyncio.sleep(0.01)

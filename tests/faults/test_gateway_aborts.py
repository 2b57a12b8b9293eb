"""10,000 clients that leave at every possible moment, and what is left of them: nothing."""

import asyncio
import gc
import random
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest

from core.audit import Recorder
from core.clock import SystemClock
from core.conductor import Conductor
from core.domain import EngineKind, Health, NodeId, NodeSpec, OutcomeKind, Role
from core.gateway.app import create_app
from core.gateway.limits import Limits
from core.gateway.service import Service
from core.ports import SinkCounters
from core.prompt import Prompts

ABORTS = 10_000
PARTS = 4
AT_ONCE = 64
TOKEN = b'data: {"choices":[{"index":0,"text":" x","finish_reason":null}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":64,"completion_tokens":4,'
    b'"prompt_tokens_details":{"cached_tokens":0}}}\n\n'
)
PARAMS = {"do_remote_prefill": True, "remote_block_ids": [1]}


class Counting:
    """A record sink that counts decisions and outcomes by id."""

    def __init__(self) -> None:
        self.placed: set[str] = set()
        self.ended: list[str] = []
        self.kinds: dict[str, int] = {}

    def put_decision(self, record) -> None:
        if record.placed:
            self.placed.add(record.id)

    def put_outcome(self, record) -> None:
        self.ended.append(record.decision_id)
        self.kinds[record.kind] = self.kinds.get(record.kind, 0) + 1

    def put_telemetry(self, *_) -> None: ...

    def put_event(self, *_) -> None: ...

    def put_node(self, *_) -> None: ...
    def put_standing(self, *_) -> None: ...

    def put_prompt(self, *_) -> None: ...
    def counters(self) -> SinkCounters:
        return SinkCounters(queued=0, written=len(self.ended), dropped=0, failures=0)


class TinyEngine:
    """Speaks just enough of vLLM's wire, slowly and in pieces, and sometimes breaks."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.open = 0
        self.served = 0

    async def serve(self, reader, writer) -> None:
        self.open += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                body = orjson.loads(await reader.readexactly(length))
                if not await self.answer(writer, body):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self.open -= 1
            writer.close()

    async def answer(self, writer, body) -> bool:
        rng = self._rng
        self.served += 1
        await self.turns(rng.randrange(6))
        if rng.random() < 0.02:
            return False
        if rng.random() < 0.02:
            data = b'{"error":{"message":"no","type":"InternalServerError","code":500}}'
            writer.write(self.whole(data, b"500 Internal Server Error"))
            return True
        if not body.get("stream"):
            answer = {"choices": [{"text": "x"}], "usage": {"prompt_tokens": 64}}
            if body.get("kv_transfer_params"):
                answer["kv_transfer_params"] = PARAMS
            writer.write(self.whole(orjson.dumps(answer)))
            await writer.drain()
            return True
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        for piece in (TOKEN[:20], TOKEN[20:], TOKEN * 2, TOKEN, USAGE, b"data: [DONE]\n\n"):
            await self.turns(rng.randrange(4))
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
            if rng.random() < 0.01:
                return False
        writer.write(b"0\r\n\r\n")
        return True

    @staticmethod
    def whole(data: bytes, status: bytes = b"200 OK") -> bytes:
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        return head % (status, len(data)) + data

    @staticmethod
    async def turns(count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)


class Client:
    """The ASGI side of a client that reads with pauses and leaves when told to."""

    def __init__(self, rng: random.Random, body: bytes) -> None:
        self._rng = rng
        cut = rng.randrange(len(body))
        self._parts = [body[:cut], body[cut:]] if rng.random() < 0.3 else [body]
        self.gone = asyncio.Event()
        self.status = 0
        self.over = False

    def scope(self) -> dict:
        return {
            "type": "http",
            "method": "POST",
            "path": "/v1/completions",
            "query_string": b"",
            "headers": [(b"host", b"x"), (b"content-type", b"application/json")],
        }

    async def receive(self) -> dict:
        for _ in range(self._rng.randrange(3)):
            await asyncio.sleep(0)
        if self._parts and not self.gone.is_set():
            part = self._parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(self._parts)}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict) -> None:
        for _ in range(self._rng.randrange(3)):
            await asyncio.sleep(0)
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif not message.get("more_body"):
            self.over = True
            self.gone.set()


@asynccontextmanager
async def scheduler(rng: random.Random):
    """A service before two engines in this process, one of each role and one of both."""
    engine = TinyEngine(rng)
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0, backlog=1024)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    clock, sink = SystemClock(), Counting()
    conductor = Conductor(rng=random.Random(1))
    recorder = Recorder(sink)
    limits = Limits(connect_timeout_s=30.0, retry_backoff_s=0.001, first_byte_timeout_s=30.0)
    service = Service(
        conductor=conductor,
        clock=clock,
        prompts=Prompts(),
        recorder=recorder,
        sink=sink,
        limits=limits,
        rng=random.Random(2),
    )
    async with service:
        for name, role in (("p", Role.PREFILL), ("d", Role.DECODE), ("b", Role.BOTH)):
            spec = NodeSpec(
                id=NodeId(name),
                url=url,
                engine=EngineKind.VLLM,
                role=role,
                models=("m",),
                kv_transfer="nixl",
                profile="tiny-emulated",
                queue_max=10**6,
                batch_max=10**6,
            )
            conductor.register(spec, clock.now())
            conductor.set_health(spec.id, Health.HEALTHY, clock.now())
        yield service, engine, sink
    server.close()
    await server.wait_closed()


async def one(app, rng: random.Random) -> str:
    prompt = [rng.randrange(100) for _ in range(rng.choice([8, 64, 200]))]
    body = {"model": "m", "prompt": prompt, "max_tokens": 4, "stream": rng.random() < 0.7}
    client = Client(rng, orjson.dumps(body))
    task = asyncio.create_task(app(client.scope(), client.receive, client.send))
    for _ in range(int(rng.expovariate(1 / 25))):
        if task.done():
            break
        await asyncio.sleep(0)
    if rng.random() < 0.9:
        client.gone.set()
        await task
        return "over" if client.over else "left"
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return "cancelled"
    return "over" if client.over else "left"


@pytest.mark.parametrize("part", range(PARTS))
async def test_aborts_at_random_moments_leave_nothing(part):
    rng = random.Random(20261129 + part)
    async with scheduler(rng) as (service, engine, sink):
        app = create_app(service)
        await one(app, rng)
        tasks_before = len(asyncio.all_tasks())
        files_before = open_files()
        ends = {"over": 0, "left": 0, "cancelled": 0}
        todo = ABORTS // PARTS

        async def worker() -> None:
            nonlocal todo
            while todo > 0:
                todo -= 1
                ends[await one(app, rng)] += 1

        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
        fleet, ledger = service.conductor.fleet, service.conductor.ledger
        assert not ledger.open and not len(service.flights)
        ledger.check_integrity()
        for name in ("queued_tokens", "queued_s", "prefilling", "decoding", "kv_tokens"):
            assert not getattr(fleet, name).any(), name
        assert not fleet.prompt_tokens.any()
        assert ledger.repeated_closes == 0
        service.recorder.drain()
        assert len(sink.ended) == len(set(sink.ended))
        assert set(sink.ended) == sink.placed
        assert sum(ends.values()) == ABORTS // PARTS
        assert min(ends.values()) > 50, ends
        assert sink.kinds[OutcomeKind.CLIENT_ABORT] > 500
        await settle(lambda: len(asyncio.all_tasks()) <= tasks_before + engine.open)
        assert service.counters["internal_errors"] == 0
        print(ends, sink.kinds, f"{engine.served} served")
    gc.collect()
    await settle(lambda: open_files() <= files_before)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def settle(true) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("seed", range(3))
async def test_restarts_and_removals_under_aborts_leave_nothing(seed):
    rng = random.Random(seed)
    async with scheduler(rng) as (service, _, sink):
        app = create_app(service)
        conductor = service.conductor
        running = True

        async def churn() -> None:
            while running:
                await asyncio.sleep(rng.random() * 0.01)
                now, node = service.clock.now(), NodeId(rng.choice("pdb"))
                if rng.random() < 0.5:
                    conductor.restarted(node, now)
                else:
                    spec = conductor.fleet.spec(node)
                    conductor.remove(node, now)
                    conductor.register(spec, now)
                    conductor.set_health(node, Health.HEALTHY, now)
                conductor.ledger.check_integrity()

        async def worker(count: int) -> None:
            for _ in range(count):
                await one(app, rng)

        churning = asyncio.create_task(churn())
        await asyncio.gather(*(worker(20) for _ in range(20)))
        running = False
        await churning
        assert not conductor.ledger.open and not len(service.flights)
        conductor.ledger.check_integrity()
        assert not conductor.fleet.kv_tokens.any()
        service.recorder.drain()
        assert set(sink.ended) == sink.placed
        assert service.counters["internal_errors"] == 0

"""Hundreds of real clients that hang up at random moments, before real engine processes."""

import asyncio
import json
import random
import time

from gateway_world import MODEL, Engine, engines, gateway

from core.domain import OutcomeKind, Role

CLIENTS = 300


async def hang_up(w, rng: random.Random) -> bool:
    """One request over a socket of its own, dropped after a random time; True if it was over."""
    host, port = w.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        prompt = [rng.randrange(1000) for _ in range(rng.choice([10, 200, 2000]))]
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 200, "stream": rng.random() < 0.7}
        data = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
        sent = head.encode() + data
        cut = rng.randrange(len(sent)) if rng.random() < 0.1 else len(sent)
        writer.write(sent[:cut])
        async with asyncio.timeout(rng.expovariate(10)):
            while await reader.read(65536):
                pass
        return True
    except TimeoutError:
        return False
    finally:
        writer.transport.abort()


async def test_clients_that_hang_up_leave_nothing_in_scheduler_or_engines():
    made = (
        Engine("p", role=Role.PREFILL),
        Engine("d", role=Role.DECODE),
        Engine("b", "--profile", "tiny-emulated"),
    )
    with engines(*made):
        async with gateway(*(e.spec() for e in made)) as w:
            todo = list(range(CLIENTS))

            async def worker() -> None:
                while todo:
                    await hang_up(w, random.Random(todo.pop()))

            await asyncio.gather(*(worker() for _ in range(30)))
            left = time.monotonic()
            await w.settled()
            for engine in made:
                async with asyncio.timeout(10):
                    while True:
                        async with w.client.get(f"{engine.url}/load") as answer:
                            if not (await answer.json())["server_load"]:
                                break
                        await asyncio.sleep(0.02)
            print(f"everything at 0 {time.monotonic() - left:.2f} s after the last client left")
            assert [o for o in w.sink.outcomes if o.kind == OutcomeKind.CLIENT_ABORT]
            assert w.service.counters["internal_errors"] == 0

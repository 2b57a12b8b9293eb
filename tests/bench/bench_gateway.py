"""What the gateway costs beside direct access to the same engine, in one run.

    python -m tests.bench.bench_gateway

One emulated engine that answers at once, one service, one client. CPU is the service
process's own, read from the operating system; latency is the client's, interleaved.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import numpy as np
import psutil

from core.launcher import Processes, answers, wait_until

REQUESTS = 400
CONCURRENCY = 16
PROMPT_TOKENS = 1000


@contextmanager
def stack(folder: Path) -> Iterator[tuple[str, str, psutil.Process]]:
    """(engine URL, service URL, the service's process)."""
    state = folder / "engine.json"
    with Processes(folder / "logs") as processes:
        engine = processes.start(
            "engine",
            [sys.executable, "-m", "core.engines.emulated", "--name", "e", "--model", "m",
             "--profile", "instant", "--state-file", str(state)],
        )  # fmt: skip
        wait_until(state.exists, engine, timeout_s=30, what="its address")
        url = json.loads(state.read_text())["url"]
        port = free_port()
        config = folder / "settings.json"
        node = {"id": "e", "url": url, "engine": "emulated"}
        config.write_text(
            json.dumps(
                {
                    "server": {"port": port},
                    "state_dir": str(folder / "state"),
                    "nodes": [node],
                    "log_level": "error",
                }
            )
        )
        service = processes.start(
            "service", [sys.executable, "-m", "core.cli", "serve", "--config", str(config)]
        )
        base = f"http://127.0.0.1:{port}"
        wait_until(lambda: answers(f"{base}/health"), service, timeout_s=60, what="health")
        time.sleep(2.0)
        yield url, base, psutil.Process(service.process.pid)


def free_port() -> int:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


async def drive(url: str, tokens: int, concurrency: int, requests: int) -> list[float]:
    """Latencies in seconds of whole streams."""
    took: list[float] = []
    numbers = iter(range(requests))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def worker() -> None:
            for n in numbers:
                prompt = [100 + (n * 31 + i) % 1800 for i in range(PROMPT_TOKENS)]
                body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "stream": True}
                began = time.perf_counter()
                async with session.post(f"{url}/v1/completions", json=body) as answer:
                    assert answer.status == 200, await answer.text()
                    await answer.read()
                took.append(time.perf_counter() - began)

        await asyncio.gather(*(worker() for _ in range(concurrency)))
    return took


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def measure(url: str, process: psutil.Process, tokens: int) -> float:
    """CPU seconds of the service a request."""
    asyncio.run(drive(url, tokens, CONCURRENCY, 50))
    before = cpu_s(process)
    asyncio.run(drive(url, tokens, CONCURRENCY, REQUESTS))
    return (cpu_s(process) - before) / REQUESTS


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, stack(Path(folder)) as (direct, through, process):
        short, long = measure(through, process, 16), measure(through, process, 144)
        one = {"direct": [0.0], "through": [0.0]}
        for _ in range(5):
            for name, url in (("direct", direct), ("through", through)):
                one[name] += asyncio.run(drive(url, 16, 1, 40))
        p50 = {name: float(np.median(values[1:])) * 1e6 for name, values in one.items()}
        token = (long - short) / 128
        print(f"gateway, streams of 16 tokens, {PROMPT_TOKENS}-token prompts (baseline: direct)")
        print(f"  CPU a request            {short * 1e6:8.0f} us")
        print(f"  CPU a streamed token     {token * 1e6:8.1f} us")
        print(f"  latency p50 direct       {p50['direct']:8.0f} us")
        print(
            f"  latency p50 through      {p50['through']:8.0f} us "
            f"({p50['through'] / p50['direct']:.2f}x of direct)"
        )


if __name__ == "__main__":
    sys.exit(main())

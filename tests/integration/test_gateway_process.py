"""The scheduler as a process of its own: refusals with predictions, and a graceful stop."""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import time

import aiohttp
import pytest
from gateway_world import MODEL, ROOT, Engine, engines

DEADLINE_S = 60.0


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def scheduler(folder, nodes: list[dict], **settings):
    port = free_port()
    config = folder / "settings.json"
    whole = {
        "server": {"port": port},
        "state_dir": str(folder / "state"),
        "log_level": "error",
        "auth": {"anonymous_role": "admin"},
        "nodes": nodes,
        **settings,
    }
    config.write_text(json.dumps(whole))
    command = [sys.executable, "-m", "core.cli", "serve", "--config", str(config)]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


async def ready(client, url) -> None:
    end = time.monotonic() + DEADLINE_S
    while True:
        with contextlib.suppress(aiohttp.ClientError):
            async with client.get(f"{url}/health/ready") as answer:
                if (await answer.json())["eligible"]:
                    return
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


async def status_of(client, url, path) -> int:
    async with client.get(f"{url}{path}") as answer:
        return answer.status


async def test_stop_is_graceful(tmp_path):
    slow = Engine("a", "--profile", "generic-7b-1gpu")
    with engines(slow) as (engine,):
        node = {"id": "a", "url": engine.url, "engine": "emulated"}
        with scheduler(tmp_path, [node]) as (process, url):
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
                await ready(client, url)
                body = {"model": MODEL, "prompt": "x", "stream": True, "max_tokens": 120}
                streams = [await client.post(f"{url}/v1/completions", json=body) for _ in range(20)]
                heads = [await s.content.readany() for s in streams]
                process.send_signal(signal.SIGTERM)
                told = time.monotonic()
                while await status_of(client, url, "/health/ready") != 503:
                    assert time.monotonic() - told < 10
                print(f"not ready {time.monotonic() - told:.3f} s after the signal")
                assert await status_of(client, url, "/health/live") == 200
                async with client.post(f"{url}/v1/completions", json=body) as refused:
                    assert refused.status == 503
                tails = await asyncio.gather(*(s.read() for s in streams))
                for head, tail in zip(heads, tails, strict=True):
                    assert (head + tail).endswith(b"data: [DONE]\n\n")
                    assert b'"error"' not in head + tail
            assert await asyncio.to_thread(process.wait, 30) == 0


@pytest.mark.parametrize(
    ("tunables", "code"),
    [
        ({"slo": {"ttft_s": 0.001}}, "predicted_ttft_slo"),
        ({"slo": {"tbt_s": 0.001}}, "predicted_tbt_slo"),
    ],
)
async def test_predicted_misses_are_refused_with_the_prediction(tmp_path, tunables, code):
    with engines(Engine("a")) as (engine,):
        node = {"id": "a", "url": engine.url, "engine": "emulated"}
        with scheduler(tmp_path, [node], tunables=tunables) as (_, url):
            async with aiohttp.ClientSession() as client:
                await ready(client, url)
                body = {"model": MODEL, "prompt": list(range(4000))}
                async with client.post(f"{url}/v1/completions", json=body) as answer:
                    error = (await answer.json())["error"]
                    assert (answer.status, error["code"]) == (429, code)
                    assert int(answer.headers["retry-after"]) >= 1
                name = "ttft_s" if "ttft" in code else "tbt_s"
                limit = next(iter(tunables.values()))[name]
                assert error["prediction"][name] > limit
                assert error["type"] == "rate_limit_error"
                async with client.get(f"{url}/admin/v1/decisions/{error['decision_id']}") as found:
                    if found.status == 200:
                        assert not (await found.json())["row"]["routed"]

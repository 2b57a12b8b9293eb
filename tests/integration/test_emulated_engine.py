"""Emulated engines as real processes: HTTP, events, hand-over, faults, signals."""

import asyncio
import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
import pytest
import zmq
import zmq.asyncio

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 20.0
END_MARK = b"\xff" * 8
PLAIN = {"--profile": "instant", "--model": "tiny", "--adapter": "adapter-a"}
SLOW = ["--profile", "generic-7b-1gpu"]
BRIEF = ["--lease", "0.05", "--kv-load-timeout", "0.05", "--kv-load-failure-policy", "recompute"]


@dataclass
class Running:
    """A started engine and what it said when it was ready."""

    process: subprocess.Popen
    info: dict

    @property
    def url(self) -> str:
        return self.info["url"]


def spawn(name: str, *arguments: str) -> subprocess.Popen:
    defaults = [text for pair in PLAIN.items() for text in pair]
    command = [sys.executable, "-m", "core.engines.emulated", "--name", name]
    return subprocess.Popen(
        [*command, *defaults, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def ready(process: subprocess.Popen) -> Running:
    line = process.stdout.readline()
    assert line, f"engine ended with {process.wait()}"
    return Running(process, json.loads(line))


def stop(engines) -> None:
    for engine in engines:
        engine.process.kill()
        engine.process.wait()
        engine.process.stdout.close()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """A plain engine, a prefill/decode pair, a slow one, and some that tests may end."""
    state = tmp_path_factory.mktemp("state") / "plain.json"
    started = {
        "plain": spawn("plain", "--state-file", str(state), "--queue-max", "2", "--batch-max", "4"),
        "prefill": spawn("prefill", "--role", "prefill", "--lease", "60"),
        "decode": spawn("decode", "--role", "decode", "--kv-load-timeout", "0.2"),
        "slow": spawn("slow", *SLOW, "--time-scale", "0.1"),
        "brief": spawn("brief", *BRIEF),
        "killed": spawn("killed"),
        "terminated": spawn("terminated", *SLOW),
    }
    engines = {name: ready(process) for name, process in started.items()}
    assert json.loads(state.read_text()) == engines["plain"].info
    yield engines
    stop(engines.values())


@pytest.fixture
async def http():
    timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        yield session


@pytest.fixture
async def no_faults(fleet, http):
    """Leaves the plain engine without faults."""
    yield
    off = {"error_rate": 0.0, "slow": 1.0, "hang": "", "lose_events": 0, "lose_from_replay": False}
    await set_faults(http, fleet["plain"], off)


async def post(http, engine: Running, path: str, body: dict, **headers):
    async with http.post(engine.url + path, json=body, headers=headers) as response:
        return response.status, await response.json(content_type=None)


async def get(http, engine: Running, path: str):
    async with http.get(engine.url + path) as response:
        return json.loads(await response.text())


async def complete(http, engine: Running, prompt, max_tokens: int = 4, **more) -> dict:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, **more}
    status, answer = await post(http, engine, "/v1/completions", body)
    assert status == 200, answer
    return answer


async def set_faults(http, engine: Running, faults: dict) -> dict:
    status, answer = await post(http, engine, "/emulated/faults", faults)
    assert status == 200, answer
    return answer


async def stream(http, engine: Running, path: str, body: dict, **headers) -> list:
    """All events of a stream, the end mark included."""
    events = []
    async with http.post(engine.url + path, json=body, headers=headers) as response:
        assert response.status == 200
        async for line in response.content:
            if line.startswith(b"data: "):
                text = line[6:].strip().decode()
                events.append(text if text == "[DONE]" else json.loads(text))
    return events


async def until(check) -> None:
    """Poll an async condition until it holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not await check():
        assert time.monotonic() < deadline, "condition did not come true in time"
        await asyncio.sleep(0.02)


def metric(page: str, name: str, *labels: str) -> float:
    lines = [line for line in page.splitlines() if line.split("{")[0].split(" ")[0] == name]
    (line,) = [line for line in lines if all(label in line for label in labels)]
    return float(line.rsplit(" ", 1)[1])


async def metrics(http, engine: Running) -> str:
    async with http.get(engine.url + "/metrics") as response:
        return await response.text()


@contextlib.contextmanager
def zmq_socket(kind: int, address: str):
    context = zmq.asyncio.Context()
    socket = context.socket(kind)
    socket.linger = 0
    try:
        socket.connect(address)
        yield socket
    finally:
        socket.close()
        context.term()


async def replay(engine: Running, start: int) -> list[list[bytes]]:
    """Replayed frames [topic, seq, payload], without the end mark."""
    with zmq_socket(zmq.DEALER, engine.info["replay"]) as socket:
        await socket.send_multipart([b"", struct.pack(">q", start)])
        frames = []
        while True:
            empty, topic, seq, payload = await asyncio.wait_for(socket.recv_multipart(), DEADLINE_S)
            assert empty == b""
            if seq == END_MARK:
                assert (topic, payload) == (b"", b"")
                return frames
            frames.append([topic, seq, payload])


async def next_seq(http, engine: Running) -> int:
    return (await get(http, engine, "/emulated/state"))["events"]["next_seq"]


def events_of(payload: bytes) -> list[dict]:
    _, events, rank = msgspec.msgpack.decode(payload)
    assert rank == 0
    return events


async def test_about_pages(fleet, http):
    plain = fleet["plain"]
    async with http.get(plain.url + "/health") as response:
        assert (response.status, await response.read()) == (200, b"")
    assert await get(http, plain, "/version") == {"version": "0.32.0"}
    cards = (await get(http, plain, "/v1/models"))["data"]
    assert [(c["id"], c["parent"]) for c in cards] == [("tiny", None), ("adapter-a", "tiny")]
    assert await get(http, plain, "/load") == {"server_load": 0}
    source = (await get(http, plain, "/kv_event_sources"))["0"]
    assert source["endpoint"].startswith("tcp://*:")
    assert source["topic"] == plain.info["topic"]
    for method, path, status in (("GET", "/nothing", 404), ("GET", "/v1/completions", 405)):
        async with http.request(method, plain.url + path) as response:
            assert response.status == status
            assert "detail" in await response.json()


async def test_stream_events_and_reuse(fleet, http):
    plain = fleet["plain"]
    prompt = list(range(10_000, 10_293))
    body = {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": 8,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with zmq_socket(zmq.SUB, plain.info["events"]) as live:
        live.subscribe(b"")
        # A subscription takes a moment: send small prompts until one is heard.
        for attempt in range(1000):
            await complete(http, plain, [20_000 + attempt] * 32)
            if await live.poll(20):
                break
        first = await next_seq(http, plain)
        streamed = await stream(http, plain, "/v1/completions", body)
        seq = -1
        while seq < first:
            topic, number, payload = await asyncio.wait_for(live.recv_multipart(), DEADLINE_S)
            (seq,) = struct.unpack(">q", number)
    assert topic.decode() == plain.info["topic"]
    (stored,) = events_of(payload)
    assert stored["type"] == "BlockStored"
    assert stored["token_ids"] == prompt[:288]
    assert stored["parent_block_hash"] is None
    assert len(stored["block_hashes"]) == 9
    assert [topic, number, payload] in await replay(plain, 0)
    assert streamed[-1] == "[DONE]"
    assert streamed[-2]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    text = "".join(event["choices"][0]["text"] for event in streamed[:-2])
    again = await complete(http, plain, prompt, 8)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 288
    assert again["choices"][0]["text"] == text
    assert again["choices"][0]["finish_reason"] == "length"
    assert again["usage"]["completion_tokens"] == 8
    assert await next_seq(http, plain) == first + 1, "a full hit publishes nothing"


async def test_replay_from_the_end_and_garbage(fleet, http):
    plain = fleet["plain"]
    await complete(http, plain, [7] * 64)
    end = await next_seq(http, plain)
    frames = await replay(plain, end - 1)
    assert [struct.unpack(">q", f[1])[0] for f in frames] == [end - 1]
    assert await replay(plain, end) == []
    with zmq_socket(zmq.DEALER, plain.info["replay"]) as socket:
        await socket.send_multipart([struct.pack(">q", 0)])
        assert not await socket.poll(100), "a question without the empty frame is not answered"
    assert await replay(plain, end) == []


async def test_chat_tokenize_and_detokenize_agree(fleet, http):
    plain = fleet["plain"]
    messages = [{"role": "user", "content": "hello wörld 日本"}]
    body = {"model": "tiny", "messages": messages}
    _, tokens = await post(http, plain, "/tokenize", body | {"return_token_strs": True})
    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"])
    chat = {**body, "max_tokens": 5, "return_token_ids": True}
    status, answer = await post(http, plain, "/v1/chat/completions", chat, **{"X-Request-Id": "q1"})
    assert status == 200
    assert answer["id"] == "chatcmpl-q1"
    assert answer["prompt_token_ids"] == tokens["tokens"]
    choice = answer["choices"][0]
    _, text = await post(
        http, plain, "/detokenize", {"model": "tiny", "tokens": choice["token_ids"]}
    )
    assert text["prompt"] == choice["message"]["content"]
    free = {**body, "stream": True, "stream_options": {"include_usage": True}}
    events = await stream(http, plain, "/v1/chat/completions", free)
    assert events[-3]["choices"][0]["finish_reason"] == "stop", "a free chat ends by itself"
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"


async def test_errors_and_full_queue(fleet, http):
    slow, plain = fleet["slow"], fleet["plain"]
    body = {"model": "nope", "prompt": "x", "stream": True}
    status, error = await post(http, plain, "/v1/completions", body)
    assert (status, error["error"]["type"]) == (404, "NotFoundError")
    await set_faults(http, plain, {"hang": "engine"})
    try:
        waiting = [
            asyncio.create_task(post(http, plain, "/v1/completions", {"prompt": [n] * 40}))
            for n in range(2)
        ]
        await until(lambda: has_load(http, plain, 2))
        status, error = await post(http, plain, "/v1/completions", {"prompt": [9] * 40})
        assert (status, error["error"]["type"]) == (503, "Service Unavailable")
    finally:
        await set_faults(http, plain, {"hang": ""})
    assert [status for status, _ in await asyncio.gather(*waiting)] == [200, 200]
    page = await metrics(http, plain)
    rejected = metric(page, "vllm:admission_rejections_total")
    assert rejected == 1
    assert metric(await metrics(http, slow), "vllm:admission_rejections_total") == 0


async def has_load(http, engine: Running, count: int) -> bool:
    return (await get(http, engine, "/load"))["server_load"] == count


async def test_metrics_page(fleet, http):
    plain = fleet["plain"]
    before = await metrics(http, plain)
    prompt = list(range(50_000, 50_100))
    await complete(http, plain, prompt, 3)
    await complete(http, plain, prompt, 3)
    after = await metrics(http, plain)

    def grown(name: str, *labels: str) -> float:
        return metric(after, name, *labels) - metric(before, name, *labels)

    assert grown("vllm:prefix_cache_queries_total") == 200
    assert grown("vllm:prefix_cache_hits_total") == 96
    assert grown("vllm:prompt_tokens_by_source_total", 'source="local_compute"') == 104
    assert grown("vllm:prompt_tokens_by_source_total", 'source="local_cache_hit"') == 96
    assert grown("vllm:generation_tokens_total") == 6
    assert grown("vllm:request_success_total", 'finished_reason="length"') == 2
    assert grown("vllm:time_to_first_token_seconds_count") == 2
    assert grown("vllm:inter_token_latency_seconds_count") == 4
    assert grown("vllm:e2e_request_latency_seconds_count") == 2
    assert metric(after, "vllm:kv_cache_usage_perc") == 0.0
    assert metric(after, "process_start_time_seconds") == metric(
        before, "process_start_time_seconds"
    )
    assert 'block_size="32"' in after
    assert 'num_gpu_blocks="93750"' in after


async def test_hang_up_and_abort_leave_the_engine(fleet, http):
    slow = fleet["slow"]
    body = {"model": "tiny", "prompt": [3] * 40, "max_tokens": 500, "stream": True}
    async with http.post(slow.url + "/v1/completions", json=body) as response:
        await response.content.readline()
        assert await has_load(http, slow, 1)
        response.close()
    await until(lambda: has_load(http, slow, 0))
    assert metric(await metrics(http, slow), "vllm:request_success_total", '"abort"') == 0
    running = asyncio.create_task(
        stream(http, slow, "/v1/completions", body, **{"X-Request-Id": "a1"})
    )
    await until(lambda: has_load(http, slow, 1))
    ids = {"request_ids": ["cmpl-a1", "cmpl-unknown"]}
    assert await post(http, slow, "/abort_requests", ids) == (
        200,
        {"status": "aborted", "aborted": 1},
    )
    events = await running
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"][0]["finish_reason"] == "abort"
    assert (await get(http, slow, "/emulated/state"))["blocks"]["used"] == 0


async def test_a_reset_is_announced_with_the_next_prompt(fleet, http):
    plain = fleet["plain"]
    prompt = list(range(60_000, 60_064))
    await complete(http, plain, prompt)
    before = await next_seq(http, plain)
    async with http.post(plain.url + "/reset_prefix_cache") as response:
        assert response.status == 200
    assert await next_seq(http, plain) == before
    answer = await complete(http, plain, prompt)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    (frames,) = await replay(plain, before)
    kinds = [event["type"] for event in events_of(frames[2])]
    assert kinds == ["AllBlocksCleared", "BlockStored"]


async def prefill_leg(http, engine: Running, prompt) -> dict:
    asked = {"kv_transfer_params": {"do_remote_decode": True}}
    answer = await complete(http, engine, prompt, 1, **asked)
    return answer["kv_transfer_params"]


async def test_prefill_and_decode_pair_gives_the_single_engines_text(fleet, http):
    prefill, decode = fleet["prefill"], fleet["decode"]
    prompt = list(range(70_000, 70_293))
    alone = await complete(http, fleet["plain"], prompt, 12)
    params = await prefill_leg(http, prefill, prompt)
    assert params["do_remote_prefill"] is True
    assert params["remote_num_tokens"] == 293
    assert len(params["remote_block_ids"][0]) == 10
    state = await get(http, prefill, "/emulated/state")
    assert state["holds"] == [params["remote_request_id"]]
    assert state["blocks"]["used"] == 10
    paired = await complete(http, decode, prompt, 12, kv_transfer_params=params)
    assert paired["choices"][0]["text"] == alone["choices"][0]["text"]
    assert paired["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    state = await get(http, prefill, "/emulated/state")
    assert (state["holds"], state["blocks"]["used"]) == ([], 0)
    frames = await replay(decode, 0)
    tokens = [t for f in frames for e in events_of(f[2]) for t in e.get("token_ids", [])]
    assert tokens[:288] == prompt[:288]
    page = await metrics(http, decode)
    assert metric(page, "vllm:external_prefix_cache_hits_total") == 293
    local = await complete(http, decode, prompt, 12)
    assert local["usage"]["prompt_tokens_details"]["cached_tokens"] == 288
    # The second use is not refused; only the prefill engine counts it.
    await complete(http, decode, prompt, 12, kv_transfer_params=params)
    page = await metrics(http, prefill)
    assert metric(page, "vllm:nixl_num_notifications_after_expiry_total") == 1


async def test_streamed_decode_leg(fleet, http):
    prompt = list(range(80_000, 80_100))
    params = await prefill_leg(http, fleet["prefill"], prompt)
    body = {"prompt": prompt, "max_tokens": 5, "stream": True, "kv_transfer_params": params}
    events = await stream(http, fleet["decode"], "/v1/completions", body)
    alone = await complete(http, fleet["plain"], prompt, 5)
    text = "".join(event["choices"][0]["text"] for event in events[:-1])
    assert text == alone["choices"][0]["text"]


async def test_dead_or_replaced_peer_fails_the_decode_leg(fleet, http):
    prompt = list(range(90_000, 90_100))
    params = await prefill_leg(http, fleet["prefill"], prompt)
    for wrong in ({"remote_port": 1}, {"remote_engine_id": "another"}):
        body = {"prompt": prompt, "kv_transfer_params": params | wrong}
        status, error = await post(http, fleet["decode"], "/v1/completions", body)
        assert (status, error["error"]["message"]) == (500, "Internal server error")
        events = await stream(
            http, fleet["decode"], "/v1/completions", body | {"stream": True, "max_tokens": 3}
        )
        assert events[0]["error"]["code"] == 500
        assert events[1:] == ["[DONE]"]
    assert (await get(http, fleet["decode"], "/emulated/state"))["blocks"]["used"] == 0


async def test_lease_and_recompute(fleet, http):
    engine = fleet["brief"]
    prompt = list(range(100))
    params = await prefill_leg(http, engine, prompt)

    async def expired() -> bool:
        return not (await get(http, engine, "/emulated/state"))["holds"]

    await until(expired)
    assert metric(await metrics(http, engine), "vllm:nixl_num_kv_expired_reqs_total") == 1
    answer = await complete(
        http, engine, prompt, 5, kv_transfer_params=params | {"remote_engine_id": "gone"}
    )
    assert answer["usage"]["completion_tokens"] == 5


async def test_error_and_slow_faults(fleet, http, no_faults):
    plain = fleet["plain"]
    await set_faults(http, plain, {"error_rate": 1.0, "error_status": 503})
    status, _ = await post(http, plain, "/v1/completions", {"prompt": "x"})
    assert status == 503
    await set_faults(http, plain, {"error_rate": 0.0, "slow": 2000.0})
    # One step takes at least 0.4 s now, so the request is seen inside.
    running = asyncio.create_task(complete(http, plain, [1] * 8, 2))
    await until(lambda: has_load(http, plain, 1))
    await running
    page = await metrics(http, plain)
    slowest = metric(page, "vllm:inter_token_latency_seconds_sum")
    assert slowest >= 0.4
    status, error = await post(http, plain, "/emulated/faults", {"sloow": 1})
    assert status == 400
    assert "faults.sloow is unknown" in error["error"]["message"]


async def test_hang_faults(fleet, http, no_faults):
    plain = fleet["plain"]
    await set_faults(http, plain, {"hang": "engine"})
    stuck = asyncio.create_task(complete(http, plain, [1] * 8, 2))
    await until(lambda: has_load(http, plain, 1))
    async with http.get(plain.url + "/health") as response:
        assert response.status == 200
    assert not stuck.done()
    await set_faults(http, plain, {"hang": ""})
    assert (await stuck)["usage"]["completion_tokens"] == 2
    await set_faults(http, plain, {"hang": "server"})
    with pytest.raises(TimeoutError):
        async with http.get(plain.url + "/health", timeout=aiohttp.ClientTimeout(total=0.3)):
            pass
    await set_faults(http, plain, {"hang": ""})
    async with http.get(plain.url + "/health") as response:
        assert response.status == 200


async def test_event_faults(fleet, http, no_faults):
    plain = fleet["plain"]
    prompts = [list(range(start, start + 64)) for start in (110_000, 120_000, 130_000)]
    start = await next_seq(http, plain)
    await set_faults(http, plain, {"lose_events": 1, "lose_from_replay": True})
    for prompt in prompts[:2]:
        await complete(http, plain, prompt)
    assert await next_seq(http, plain) == start + 2
    frames = await replay(plain, start)
    assert [struct.unpack(">q", f[1])[0] for f in frames] == [start + 1], "a hole in the numbers"
    state = await get(http, plain, "/emulated/state")
    assert state["events"]["lost"] == 1
    await set_faults(http, plain, {"silent_clear": True})
    answer = await complete(http, plain, prompts[1])
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    (frames,) = await replay(plain, start + 2)
    assert [event["type"] for event in events_of(frames[2])] == ["BlockStored"]


async def test_dropped_stream(fleet, http):
    plain = fleet["plain"]
    await set_faults(http, plain, {"drop_streams": 1, "drop_after_tokens": 3})
    body = {"prompt": [4] * 8, "max_tokens": 400, "stream": True}
    with pytest.raises(aiohttp.ClientError):
        await stream(http, plain, "/v1/completions", body)
    assert len(await stream(http, plain, "/v1/completions", body)) == 401
    await until(lambda: has_load(http, plain, 0))


async def test_kill_fault(fleet, http):
    engine = fleet["killed"]
    with pytest.raises(aiohttp.ClientError):
        await set_faults(http, engine, {"kill": True})
    assert await asyncio.to_thread(engine.process.wait, DEADLINE_S) == -signal.SIGKILL


async def test_sigterm_ends_streams_with_an_error_and_the_process_cleanly(fleet, http):
    engine = fleet["terminated"]
    body = {"prompt": [4] * 8, "max_tokens": 5000, "stream": True}
    whole = asyncio.create_task(post(http, engine, "/v1/completions", body | {"stream": False}))
    running = asyncio.create_task(stream(http, engine, "/v1/completions", body))
    await until(lambda: has_load(http, engine, 2))
    os.kill(engine.process.pid, signal.SIGTERM)
    events = await running
    assert events[-1] == "[DONE]"
    assert events[-2]["error"]["code"] == 500
    assert "EngineCore" in events[-2]["error"]["message"]
    assert (await whole)[0] == 500
    assert await asyncio.to_thread(engine.process.wait, DEADLINE_S) == 0
    with pytest.raises(aiohttp.ClientConnectorError):
        await get(http, engine, "/version")

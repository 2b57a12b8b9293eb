"""The data plane before real emulated engines: transparency, headers, errors, outcomes."""

import asyncio
import io
import json
import socket
from dataclasses import replace

import aiohttp
import pytest
from gateway_world import MODEL, PATIENT, Engine, engines, gateway, until

from core.domain import EngineKind, Health, NodeId, NodeSpec, OutcomeKind, Role
from core.tunables import Tunables

ASK = {"model": MODEL, "max_tokens": 6, "temperature": 0}
ROUTES = {
    "/v1/completions": {"prompt": "one two three four"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "one two"}]},
}


@pytest.fixture(scope="module")
def pair():
    with engines(Engine("a", "--adapter", "lora-x"), Engine("b", "--adapter", "lora-x")) as made:
        yield made


def specs(pair, **more):
    return [engine.spec(**more) for engine in pair]


def timeless(data: bytes) -> list:
    """Events (or the whole answer) without what differs between two runs."""
    out = []
    for event in data.split(b"\n\n"):
        text = event.removeprefix(b"data: ")
        if text.startswith(b"{"):
            parsed = json.loads(text)
            parsed.pop("created", None)
            out.append(parsed)
        else:
            out.append(text)
    return out


async def post(w, base, path, body, **headers):
    async with w.client.post(f"{base}{path}", json=body, headers=headers) as answer:
        return answer, await answer.read()


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "more",
    [
        {"stream": True, "stream_options": {"include_usage": True}},
        {"stream": True, "stream_options": {"include_usage": False}},
        {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {},
    ],
)
async def test_answers_are_the_engines_own(pair, path, more):
    async with gateway(*specs(pair)) as w:
        body = {**ASK, **ROUTES[path], **more}
        engine = pair[0]
        await post(w, engine.url, path, body)
        answer, ours = await post(w, w.url, path, body, **{"x-request-id": "name-1"})
        chosen = next(e for e in pair if e.name == answer.headers["x-conductor-node"])
        direct, theirs = await post(w, chosen.url, path, body, **{"x-request-id": "name-1"})
        again, ours = await post(w, w.url, path, body, **{"x-request-id": "name-1"})
        if again.headers["x-conductor-node"] == chosen.name:
            assert timeless(ours) == timeless(theirs)
        assert answer.status == direct.status == 200
        assert answer.headers["content-type"] == direct.headers["content-type"]
        await w.settled()
        assert {o.kind for o in w.sink.outcomes} == {OutcomeKind.OK}


@pytest.mark.parametrize("path", ROUTES)
async def test_usage_asked_by_the_gateway_is_taken_out_again(pair, path):
    async with gateway(*specs(pair)) as w:
        body = {**ASK, **ROUTES[path], "stream": True}
        _, ours = await post(w, w.url, path, body, **{"x-request-id": "n"})
        _, theirs = await post(w, pair[0].url, path, body, **{"x-request-id": "n"})
        fields = [set(e) if isinstance(e, dict) else e for e in timeless(ours)]
        direct = [set(e) if isinstance(e, dict) else e for e in timeless(theirs)]
        assert [f - {"system_fingerprint"} if isinstance(f, set) else f for f in fields] == [
            f - {"system_fingerprint"} if isinstance(f, set) else f for f in direct
        ]
        assert b'"usage"' not in ours
        await w.settled()
        (done,) = w.sink.outcomes
        assert done.output_tokens == 6
        assert done.prompt_tokens and done.cached_tokens is not None


async def test_without_asking_streams_are_untouched_and_reports_unknown(pair):
    async with gateway(*specs(pair[:1]), limits=replace(PATIENT, ask_usage=False)) as w:
        body = {**ASK, **ROUTES["/v1/completions"], "stream": True}
        _, theirs = await post(w, pair[0].url, "/v1/completions", body, **{"x-request-id": "n"})
        _, ours = await post(w, w.url, "/v1/completions", body, **{"x-request-id": "n"})
        assert timeless(ours) == timeless(theirs)
        await w.settled()
        (done,) = w.sink.outcomes
        assert (done.cached_tokens, done.output_tokens) == (None, 6)


async def test_headers_explain_the_decision(pair):
    async with gateway(*specs(pair)) as w:
        prompt = list(range(1000, 1320))
        first, _ = await post(w, w.url, "/v1/completions", {**ASK, "prompt": prompt})
        assert first.headers["x-conductor-match-tokens"] == "0"
        assert first.headers["x-conductor-cached-tokens"] == "0"
        node = first.headers["x-conductor-node"]
        slot = w.service.conductor.fleet.slot(node)
        await until(lambda: w.service.conductor.index.stats().blocks[slot] >= 9)
        second, _ = await post(w, w.url, "/v1/completions", {**ASK, "prompt": prompt})
        assert second.headers["x-conductor-node"] == node
        assert second.headers["x-conductor-cached-tokens"] == "288"
        assert second.headers["x-conductor-reachable-tokens"] == "288"
        assert second.headers["x-conductor-match-tokens"] == "288"
        await w.settled()
        stored = {d.id: d for d in w.sink.decisions}
        assert stored[second.headers["x-conductor-decision"]].match_tokens == 288


async def test_adapters_are_models_of_their_own(pair):
    async with gateway(*specs(pair)) as w:
        prompt = list(range(500, 660))
        body = {**ASK, "prompt": prompt}
        base, _ = await post(w, w.url, "/v1/completions", body)
        node = base.headers["x-conductor-node"]
        slot = w.service.conductor.fleet.slot(node)
        await until(lambda: w.service.conductor.index.stats().blocks[slot] >= 5)
        lora, _ = await post(w, w.url, "/v1/completions", {**body, "model": "lora-x"})
        assert lora.status == 200
        assert lora.headers["x-conductor-reachable-tokens"] == "0"
        await w.settled()
        assert {(d.model, d.adapter) for d in w.sink.decisions} == {(MODEL, ""), (MODEL, "lora-x")}


async def test_models_of_the_fleet(pair):
    async with gateway(*specs(pair)) as w:
        async with w.client.get(f"{w.url}/v1/models") as answer:
            listed = (await answer.json())["data"]
        assert [(m["id"], m["parent"]) for m in listed] == [(MODEL, None), ("lora-x", MODEL)]
        assert listed[0]["max_model_len"]
        async with w.client.get(f"{w.url}/v1/models/lora-x") as answer:
            assert (await answer.json())["id"] == "lora-x"
        async with w.client.get(f"{w.url}/v1/models/nope") as answer:
            assert answer.status == 404


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"{", 400, "body"),
        (b"[1]", 400, "body"),
        (b"{}", 400, "model"),
        (b'{"model": 5}', 400, "model"),
        (b'{"model": "tiny", "prompt": [-1]}', 400, "prompt"),
        (b'{"model": "nope", "prompt": "x"}', 404, "model"),
        (b"[" * 5000, 400, "body"),
    ],
)
async def test_our_refusals_have_openais_shape(pair, body, status, param):
    async with gateway(*specs(pair[:1])) as w:
        async with w.client.post(f"{w.url}/v1/completions", data=body) as answer:
            error = (await answer.json())["error"]
        assert (answer.status, error["param"]) == (status, param)
        assert error["request_id"] == answer.headers["x-request-id"]
        await w.settled()


@pytest.mark.parametrize(
    "headers",
    [
        {"x-conductor-priority": "many"},
        {"x-conductor-ttft-slo-ms": "-1"},
        {"x-conductor-tbt-slo-ms": "nan"},
    ],
)
async def test_bad_headers_are_named(pair, headers):
    async with gateway(*specs(pair[:1])) as w:
        answer, body = await post(w, w.url, "/v1/completions", {**ASK, "prompt": "x"}, **headers)
        assert answer.status == 400
        assert json.loads(body)["error"]["param"] == next(iter(headers))


async def test_bodies_are_bounded(pair):
    async with gateway(*specs(pair[:1]), limits=replace(PATIENT, body_bytes_max=5_000)) as w:
        answer, body = await post(w, w.url, "/v1/completions", {**ASK, "prompt": "x" * 6_000})
        assert answer.status == 413
        assert json.loads(body)["error"]["param"] == "body"

        async def endless():
            for _ in range(100):
                yield b"x" * 1_000

        async with w.client.post(f"{w.url}/v1/completions", data=endless()) as answer:
            assert answer.status == 413
        await w.settled()


async def test_a_client_that_sends_everything_first_is_told_that_it_is_too_much():
    """As most libraries do: closed while it sends, it would see a reset and send it all again."""
    async with gateway(limits=replace(PATIENT, body_bytes_max=5_000)) as w:
        host, port = w.url.removeprefix("http://").split(":")
        size = 32 * 1024 * 1024  # more than the sockets of both sides hold
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n"

        def told() -> bytes:
            with socket.create_connection((host, int(port)), timeout=30) as client:
                client.sendall(head.encode())
                for _ in range(size >> 20):
                    client.sendall(bytes(1 << 20))
                return b"".join(iter(lambda: client.recv(65_536), b""))

        answer = await asyncio.to_thread(told)
        assert answer.startswith(b"HTTP/1.1 413") and b"too_large" in answer
        await w.settled()


async def test_bodies_have_a_deadline(pair):
    limits = replace(PATIENT, body_timeout_s=0.2)
    async with gateway(*specs(pair[:1]), limits=limits) as w:
        host, port = w.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{")
        head = await asyncio.wait_for(reader.read(), 10)
        assert head.startswith(b"HTTP/1.1 408")
        writer.close()
        await w.settled()


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 2\r\ncontent-length: 2\r\n",
        b"content-length: 2\r\ntransfer-encoding: chunked\r\n",
        b"content-length: 2\r\nx_tenant: a\r\n",
        b"content-length: +2\r\n",
        b"transfer-encoding: xchunked\r\n",
    ],
)
async def test_ambiguous_heads_never_reach_an_engine(pair, head):
    async with gateway(*specs(pair[:1])) as w:
        host, port = w.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n" + head + b"\r\n{}")
        answer = await asyncio.wait_for(reader.read(), 10)
        assert answer.startswith(b"HTTP/1.1 400")
        assert answer.count(b"HTTP/1.1") == 1
        writer.close()
        assert not w.service.live.total.decisions


async def test_engine_errors_pass_through_unchanged_and_blame_nobody(pair):
    async with gateway(*specs(pair)) as w:
        for bad in ({"max_tokens": -1}, {"temperature": "hot"}, {"prompt": None}):
            body = {**ASK, "prompt": "x", **bad}
            ours, text = await post(w, w.url, "/v1/completions", body)
            theirs, direct = await post(w, pair[0].url, "/v1/completions", body)
            assert 400 <= ours.status < 500
            assert (ours.status, text) == (theirs.status, direct)
            assert "x-conductor-decision" in ours.headers
        for _ in range(30):
            await post(w, w.url, "/v1/completions", {**ASK, "prompt": "x", "max_tokens": -1})
        await w.settled()
        assert {o.kind for o in w.sink.outcomes} == {OutcomeKind.REFUSED}
        now = w.service.clock.now()
        assert w.service.conductor.breakers.allowed(now)[:2].all()
        assert w.service.live.total.errors == 0


async def test_methods_and_routes(pair):
    async with gateway(*specs(pair[:1])) as w:
        for method, path, status in (
            ("GET", "/v1/completions", 405),
            ("GET", "/nope", 404),
            ("POST", "/v1/load_lora_adapter", 403),
            ("POST", "/v1/schedule/x/y", 404),
            ("GET", "/v1/schedule/x", 405),
            ("GET", "/health/live", 200),
        ):
            async with w.client.request(method, f"{w.url}{path}") as answer:
                assert answer.status == status, path


# --- what an engine gets to see ------------------------------------------------------------------


class Recording:
    """An HTTP server that notes every request head and body, and answers as told."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.heads: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.bodies: list[bytes] = []

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *error):
        self.server.close()
        await self.server.wait_closed()

    async def serve(self, reader, writer):
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            fields = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
            self.paths.append(head[0])
            self.heads.append(fields)
            self.bodies.append(await reader.readexactly(int(fields.get("content-length", 0))))
            writer.write(self.answer)
            await writer.drain()
        finally:
            writer.close()


def http(body: bytes, *, status: str = "200 OK", extra: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{extra}"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def blind(w, server: Recording, *, id: str = "rec", **more) -> None:
    """Register a node that nobody probes and call it healthy."""
    fields = {"engine": EngineKind.VLLM, "models": ("m",), **more}
    spec = NodeSpec(id=NodeId(id), url=server.url, **fields)
    now = w.service.clock.now()
    w.service.conductor.register(spec, now)
    w.service.conductor.set_health(spec.id, Health.HEALTHY, now)


async def test_credentials_and_internal_headers_stay_behind():
    extra = "set-cookie: a=b\r\nserver: secret/1\r\nx-internal: 1\r\nretry-after: 7\r\n"
    async with Recording(http(b"{}", extra=extra)) as engine, gateway() as w:
        await blind(w, engine)
        headers = {
            "authorization": "Bearer secret", "cookie": "c=d", "x-forwarded-for": "1.2.3.4",
            "x-data-parallel-rank": "3", "x-conductor-tenant": "t", "accept-language": "de",
            "x-request-id": "abc",
        }  # fmt: skip
        body = {"model": "m", "prompt": [1, 2], "kv_transfer_params": {"x": 1}, "keep": 1}
        answer, _ = await post(w, w.url, "/v1/completions?x=1", body, **headers)
        (seen,) = engine.heads
        assert seen["x-request-id"] == "abc" and seen["accept-language"] == "de"
        assert not {"authorization", "cookie", "x-forwarded-for", "x-data-parallel-rank"} & set(
            seen
        )
        assert not [name for name in seen if name.startswith("x-conductor")]
        assert json.loads(engine.bodies[0]) == {"model": "m", "prompt": [1, 2], "keep": 1}
        assert engine.paths == ["POST /v1/completions?x=1 HTTP/1.1"]
        assert not {"set-cookie", "x-internal"} & {n.lower() for n in answer.headers}
        assert answer.headers["retry-after"] == "7"
        assert answer.headers.get("server") != "secret/1"


async def test_the_clients_own_bytes_are_sent_where_nothing_changes():
    async with Recording(http(b"{}")) as engine, gateway() as w:
        await blind(w, engine)
        raw = b'{ "model":"m",\n "prompt":[1,2],"x":1.10, "y":12345678901234567890 }\n'
        async with w.client.post(f"{w.url}/v1/completions", data=raw) as answer:
            assert answer.status == 200
        assert engine.bodies == [raw]
        streaming = raw.replace(b'"x":1.10', b'"stream":true')
        async with w.client.post(f"{w.url}/v1/completions", data=streaming) as answer:
            await answer.read()
        assert engine.bodies[1] == (
            streaming.rstrip()[:-1] + b',"stream_options":{"include_usage":true}}'
        )


async def test_other_routes_go_to_the_least_busy_node_unread():
    answer_body = b'{"object":"list","data":[]}'
    async with Recording(http(answer_body)) as engine, gateway() as w:
        await blind(w, engine)
        answer, body = await post(w, w.url, "/v1/embeddings", {"model": "m", "input": "x"})
        assert (answer.status, body) == (200, answer_body)
        form = aiohttp.FormData()
        form.add_field("file", b"\x00\xff" * 10, filename="a.wav")
        async with w.client.post(f"{w.url}/v1/audio/transcriptions", data=form) as answer:
            assert answer.status == 200
        assert b"\x00\xff" * 10 in engine.bodies[1]
        assert engine.heads[1]["content-type"].startswith("multipart/form-data")
        await w.settled()
        assert len(w.sink.decisions) == 2


ODD_PATHS = (
    "/v1/../metrics",
    "/v1/%2e%2e/reset_prefix_cache",
    "/v1/..%2fsleep",
    "/v1/x/../../metrics",
    "/v1/./load_lora_adapter",
    "/v1//load_lora_adapter",
    "/v1/load_lora_adapter%23",
    "/v1/load_lora_adapter%3Fa=b",
    "/v1/lo%2561d_lora_adapter",
    "/v1/a%5cb",
    "/v1/a%00b",
    "/v1/%ff",
)


async def test_no_path_reaches_what_engines_keep_for_their_operators():
    async with Recording(http(b"{}")) as engine, gateway() as w:
        await blind(w, engine)
        host, port = w.url.removeprefix("http://").split(":")
        for path in ODD_PATHS:
            reader, writer = await asyncio.open_connection(host, int(port))
            head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
            writer.write(head.encode())
            answer = await asyncio.wait_for(reader.read(), 10)
            writer.close()
            assert answer.startswith(b"HTTP/1.1 400"), (path, answer)
            assert b'"param":"path"' in answer
        assert engine.paths == []


async def test_names_in_paths_reach_the_engine_as_they_are():
    async with Recording(http(b"{}", extra="connection: close\r\n")) as engine, gateway() as w:
        await blind(w, engine)
        for path in ("/v1/files/a.b-c_d:e@f", "/v1/responses/resp_1/cancel", "/v1/rerank/"):
            async with w.client.get(f"{w.url}{path}?x=%2e%2e") as answer:
                assert answer.status == 200
        assert [head.split()[1].split("?")[0] for head in engine.paths] == [
            "/v1/files/a.b-c_d:e@f",
            "/v1/responses/resp_1/cancel",
            "/v1/rerank",
        ]
        body = {"model": "m", "prompt": [1, 2, 3]}
        assert (await post(w, w.url, "/v1/completions/", body))[0].status == 200
        assert engine.paths[-1] == "POST /v1/completions HTTP/1.1"
        await w.settled()
        assert [d.prompt_tokens for d in w.sink.decisions][-1] == 3  # read, not only passed on


async def test_a_guess_at_a_length_refuses_nobody():
    """Uploads, lists of inputs and pictures are no prompt of a quarter of their bytes."""
    async with Recording(http(b"{}", extra="connection: close\r\n")) as engine, gateway() as w:
        await blind(w, engine, context_tokens_max=8_192, kv_capacity_tokens=100_000)
        sound = {"content-type": "multipart/form-data; boundary=x"}
        url, voice = f"{w.url}/v1/audio/transcriptions", b"\xff" * 4_000_000
        async with w.client.post(url, data=io.BytesIO(voice), headers=sound) as answer:
            assert answer.status == 200, await answer.text()
        many = {"model": "m", "input": ["word " * 400] * 200}
        assert (await post(w, w.url, "/v1/embeddings", many))[0].status == 200
        picture = {"type": "image_url", "image_url": {"url": "data:," + "A" * 900_000}}
        text = {"type": "text", "text": "what is this?"}
        chat = {"model": "m", "messages": [{"role": "user", "content": [text, picture]}]}
        answer, body = await post(w, w.url, "/v1/chat/completions", chat)
        assert answer.status == 200, body
        words = {"model": "m", "prompt": "easily " * 6_000}  # a quarter of 42,000 is above 8,192
        assert (await post(w, w.url, "/v1/completions", words))[0].status == 200
        surely = {"model": "m", "prompt": "easily " * 100_000}
        answer, body = await post(w, w.url, "/v1/completions", surely)
        assert (answer.status, json.loads(body)["error"]["code"]) == (400, "context_too_long")
        await w.settled()
        upload, inputs, seen, guessed, _ = [d.prompt_tokens for d in w.sink.decisions]
        assert (upload, inputs, guessed) == (1_500, 8_191, 8_191)
        assert 1_024 < seen < 1_100


async def test_what_an_engine_computes_anew_is_not_promised_from_its_cache():
    """Log-probabilities of the prompt: engines read no cache for them."""
    async with Recording(http(b"{}", extra="connection: close\r\n")) as engine, gateway() as w:
        await blind(w, engine, block_size=16, kv_capacity_tokens=100_000)
        ask = {"model": "m", "prompt": list(range(400))}
        for more in ({}, {}, {"prompt_logprobs": 1}, {"echo": True, "logprobs": 0}, {"echo": True}):
            assert (await post(w, w.url, "/v1/completions", {**ask, **more}))[0].status == 200
        await w.settled()
        assert [d.match_tokens for d in w.sink.decisions] == [0, 384, 0, 0, 384]


FLAT = b'{"object":"error","message":"Input is too long\\n  File \\"/srv/a.py\\", line 3, in f",'
FLAT += b'"type":"BadRequestError","param":"prompt","code":400}'


SAID = (
    (FLAT, "Input is too long", "BadRequestError", "prompt"),
    (b'{"detail":"Not Found"}', "Not Found", "engine_error", None),
    (b"upstream went away", "the engine answered 400", "engine_error", None),
)


async def test_errors_in_another_shape_are_put_into_openais():
    async with Recording(b"") as engine, gateway() as w:
        await blind(w, engine, engine=EngineKind.SGLANG)
        for said, message, code, param in SAID:
            engine.answer = http(said, status="400 Bad", extra="connection: close\r\n")
            answer, body = await post(w, w.url, "/v1/completions", {"model": "m", "prompt": [1, 2]})
            assert (answer.status, answer.content_type) == (400, "application/json")
            error = json.loads(body)["error"]
            assert (error["message"], error["code"], error["param"]) == (message, code, param)
            assert error["type"] == "invalid_request_error"
            assert answer.headers["x-conductor-node"] == "rec"


async def test_large_bodies_reach_the_engine_whole():
    anything = Tunables().changed({"admission.mode": "off"})
    async with Recording(http(b"{}")) as engine, gateway(tunables=anything) as w:
        await blind(w, engine)
        raw = json.dumps({"model": "m", "prompt": list(range(300_000))}).encode()
        assert len(raw) > 2_000_000
        async with w.client.post(f"{w.url}/v1/completions", data=io.BytesIO(raw)) as answer:
            assert answer.status == 200
        assert engine.bodies == [raw]


class Held(Recording):
    """Answers nobody before it is told to."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(answer)
        self.go = asyncio.Event()

    async def serve(self, reader, writer):
        self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode().lower())
        await self.go.wait()
        writer.write(self.answer)
        await writer.drain()
        writer.close()


async def test_two_requests_of_one_name_get_two_names():
    async with Held(http(b"{}")) as engine, gateway() as w:
        await blind(w, engine)
        body, name = {"model": "m", "prompt": [1]}, {"x-request-id": "x"}
        calls = [
            asyncio.create_task(post(w, w.url, "/v1/completions", body, **name)) for _ in range(2)
        ]
        await until(lambda: len(engine.heads) == 2)
        engine.go.set()
        names = {(await call)[0].headers["x-request-id"] for call in calls}
        assert "x" in names and len(names) == 2


class Waiting(Recording):
    """Answers nobody; its connections are over when the other side ends them."""

    async def serve(self, reader, writer):
        await reader.read()
        writer.close()


@pytest.mark.parametrize(
    ("status", "outcome", "decisions"),
    [("400 Bad Request", OutcomeKind.REFUSED, 1), ("503 Busy", OutcomeKind.REFUSED, 2)],
)
async def test_a_prefill_node_that_refuses_its_part_is_not_to_blame(status, outcome, decisions):
    """SGLang pairs: the decode node waits for a prompt that will not come."""
    said = http(b'{"object":"error","message":"the queue is full","code":400}', status=status)
    async with Recording(said) as prefill, Waiting(b"") as decode, gateway() as w:
        pair = {"engine": EngineKind.SGLANG, "kv_transfer": "x"}
        await blind(w, prefill, id="p", role=Role.PREFILL, **pair)
        await blind(w, decode, id="d", role=Role.DECODE, **pair)
        answer, body = await post(w, w.url, "/v1/completions", {"model": "m", "prompt": [1, 2]})
        assert answer.status == int(status[:3])
        assert json.loads(body)["error"]["message"] == "the queue is full"
        await w.settled()
        assert [o.kind for o in w.sink.outcomes] == [outcome]
        assert len(w.sink.decisions) == decisions  # only what another node may take is tried again
        assert w.service.live.total.errors == 0


async def test_a_lone_prefill_node_is_asked_again_when_a_decode_node_failed():
    """Either side of a pair may be at fault; without the prefill node nobody could try again."""
    params = http(b'{"kv_transfer_params":{"do_remote_prefill":true},"usage":{}}')
    broken = http(b'{"error":{"message":"load failed"}}', status="500 Broken")
    async with Recording(params) as p, Held(broken) as d, gateway() as w:
        pair = {"engine": EngineKind.VLLM, "kv_transfer": "x"}
        await blind(w, p, id="p", role=Role.PREFILL, **pair)
        await blind(w, d, id="d1", role=Role.DECODE, **pair)
        async with Recording(http(b'{"fine":1}')) as other:
            await blind(w, other, id="d2", role=Role.DECODE, **pair)
            w.service.conductor.drain(NodeId("d2"), True, 0.0)
            call = asyncio.create_task(
                post(w, w.url, "/v1/completions", {"model": "m", "prompt": [1, 2]})
            )
            await until(lambda: len(d.heads) == 1)
            w.service.conductor.drain(NodeId("d2"), False, 0.0)
            d.go.set()
            answer, body = await call
            assert (answer.status, body) == (200, b'{"fine":1}')
            assert answer.headers["x-conductor-decode-node"] == "d2"
            await w.settled()
            kinds = [o.kind for o in w.sink.outcomes]
            assert kinds == [OutcomeKind.ENGINE_ERROR, OutcomeKind.OK]

"""The data plane before real emulated engines: transparency, headers, errors, outcomes."""

import json

import orjson
import pytest
from gateway_world import MODEL, Engine, engines, gateway

from core.domain import OutcomeKind

pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module")
def pair():
    with engines(Engine("a"), Engine("b")) as made:
        yield made


async def test_stream_is_byte_transparent_and_explained(pair):
    async with gateway(*(e.spec() for e in pair)) as w:
        body = {"model": MODEL, "prompt": "one two three", "max_tokens": 6, "stream": True}
        headers = {"x-request-id": "same-name"}
        answer = await w.client.post(f"{w.url}/v1/completions", json=body, headers=headers)
        ours = await answer.read()
        assert answer.status == 200
        assert answer.headers["x-request-id"] == "same-name"
        node = answer.headers["x-conductor-node"]
        engine = next(e for e in pair if e.name == node)
        direct = await w.client.post(f"{engine.url}/v1/completions", json=body, headers=headers)
        assert strip_times(ours) == strip_times(await direct.read())
        assert answer.headers["content-type"] == direct.headers["content-type"]
        await w.settled()
        assert w.sink.outcomes[-1].kind == OutcomeKind.OK
        assert w.sink.outcomes[-1].output_tokens == 6
        assert w.sink.outcomes[-1].cached_tokens == 0


def strip_times(data: bytes) -> list:
    events = []
    for event in data.split(b"\n\n"):
        text = event.removeprefix(b"data: ")
        if text.startswith(b"{"):
            parsed = json.loads(text)
            parsed.pop("created", None)
            parsed.pop("system_fingerprint", None)
            text = orjson.dumps(parsed)
        events.append(text)
    return events

"""Emulated engines that compute one long prompt together."""

import asyncio

import aiohttp
import pytest
from gateway_world import MODEL, Engine, engines

BLOCK = 32
PROMPT = [7 + i % 900 for i in range(40 * BLOCK + 5)]


@pytest.fixture(scope="module")
def trio():
    with engines(Engine("a"), Engine("b"), Engine("c")) as made:
        yield made


@pytest.fixture
async def client():
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
        yield session


def group(members, name, *, chunks, prefix=0):
    return {
        "name": name,
        "layers": [10] * len(members),
        "urls": [e.url for e in members],
        "chunks": chunks,
        "prefix_tokens": prefix,
    }


def cut(tokens, pieces):
    size = tokens // pieces
    return [size] * (pieces - 1) + [tokens - size * (pieces - 1)]


async def post(client, url, body):
    async with client.post(url, json={"model": MODEL, **body}) as answer:
        return answer.status, await answer.json()


async def together(client, members, told, *, prompt=PROMPT, wrong=None):
    """Statuses and answers of all stages, the last one's being the completion."""
    asked = []
    for stage, engine in enumerate(members[:-1]):
        ids = prompt if wrong is None else wrong
        body = {"prompt": ids, "pipeline": {**told, "stage": stage}, "max_tokens": 1}
        asked.append(post(client, f"{engine.url}/emulated/pipeline", body))
    body = {"prompt": prompt, "max_tokens": 6, "pipeline": told}
    asked.append(post(client, f"{members[-1].url}/v1/completions", body))
    return await asyncio.gather(*asked)


async def state(client, engine):
    async with client.get(f"{engine.url}/emulated/state") as answer:
        return await answer.json()


async def test_a_group_answers_what_one_engine_answers_and_the_last_one_caches_it(trio, client):
    alone = await post(client, f"{trio[0].url}/v1/completions", {"prompt": PROMPT, "max_tokens": 6})
    before = [(await state(client, e))["computed_tokens"] for e in trio]
    told = group(trio, "g1", chunks=cut(len(PROMPT), 5))
    *stages, (status, whole) = await together(client, trio, told)
    assert status == 200 and whole["choices"][0]["text"] == alone[1]["choices"][0]["text"]
    assert [s for s, _ in stages] == [200, 200]
    assert [a["computed_tokens"] for _, a in stages] == [len(PROMPT)] * 2
    assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    after = [(await state(client, e))["computed_tokens"] for e in trio]
    assert [b - a for a, b in zip(before, after, strict=True)] == [len(PROMPT)] * 3
    _, again = await post(
        client, f"{trio[2].url}/v1/completions", {"prompt": PROMPT, "max_tokens": 1}
    )
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 40 * BLOCK
    _, middle = await post(
        client, f"{trio[1].url}/v1/completions", {"prompt": PROMPT, "max_tokens": 1}
    )
    assert middle["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    for engine in trio:
        found = await state(client, engine)
        assert found["blocks"]["used"] == found["running"] == found["loading"] == 0


async def test_a_cached_prefix_is_taken_where_every_stage_holds_it(trio, client):
    prompt = [3, *PROMPT]
    head = prompt[: 10 * BLOCK]
    for engine in trio[:2]:
        await post(client, f"{engine.url}/v1/completions", {"prompt": [*head, 1], "max_tokens": 1})
    rest = len(prompt) - len(head)
    told = group(trio[:2], "g2", chunks=cut(rest, 3), prefix=len(head))
    (status, stage), (code, whole) = await together(client, trio[:2], told, prompt=prompt)
    assert (status, code) == (200, 200) and stage["computed_tokens"] == rest
    assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] == len(head)
    told = group(trio[1:], "g3", chunks=cut(rest, 3), prefix=len(head))
    body = {"prompt": prompt, "max_tokens": 1, "pipeline": told}
    status, answer = await post(client, f"{trio[2].url}/v1/completions", body)
    assert status == 409 and "not cached" in answer["error"]["message"]


async def test_what_was_computed_from_other_tokens_shows_in_the_text(trio, client):
    prompt = [9, *PROMPT]
    told = group(trio[:2], "g4", chunks=cut(len(prompt), 4))
    _, (_, good) = await together(client, trio[:2], told, prompt=prompt)
    told = group(trio[:2], "g5", chunks=cut(len(prompt), 4))
    _, (status, bad) = await together(client, trio[:2], told, prompt=prompt, wrong=[8, *PROMPT])
    assert status == 200 and bad["choices"][0]["text"] != good["choices"][0]["text"]


async def test_chunks_that_come_before_their_request_are_kept_for_it(trio, client):
    prompt = [11, *PROMPT]
    told = group(trio[:2], "g6", chunks=cut(len(prompt), 3))
    body = {"prompt": prompt, "pipeline": {**told, "stage": 0}, "max_tokens": 1}
    status, _ = await post(client, f"{trio[0].url}/emulated/pipeline", body)
    assert status == 200, "the first stage hands on without waiting"
    body = {"prompt": prompt, "max_tokens": 2, "pipeline": told}
    status, _ = await post(client, f"{trio[1].url}/v1/completions", body)
    assert status == 200


async def test_a_stage_whose_next_one_is_gone_fails(trio, client):
    prompt = [12, *PROMPT]
    told = group(trio[:2], "g7", chunks=cut(len(prompt), 3))
    told["urls"][1] = "http://127.0.0.1:9"
    body = {"prompt": prompt, "pipeline": {**told, "stage": 0}, "max_tokens": 1}
    status, answer = await post(client, f"{trio[0].url}/emulated/pipeline", body)
    assert status == 500 and "next stage" in answer["error"]["message"]
    assert (await state(client, trio[0]))["blocks"]["used"] == 0


@pytest.mark.parametrize(
    "change",
    [
        {"chunks": [1]},
        {"layers": [10]},
        {"urls": ["nowhere", "http://127.0.0.1:1"]},
        {"prefix_tokens": 5},
        {"stage": 7},
        {"stage": "x"},
        {"chunks": "x"},
    ],
)
async def test_nonsense_is_refused_by_name(trio, client, change):
    told = group(trio[:2], "g8", chunks=cut(len(PROMPT), 3)) | {"stage": 0} | change
    body = {"prompt": PROMPT, "pipeline": told, "max_tokens": 1}
    status, answer = await post(client, f"{trio[0].url}/emulated/pipeline", body)
    assert status == 400 and answer["error"]["param"] == "pipeline"

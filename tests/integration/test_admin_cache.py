"""The admin API's view of the prefix index: hot prefixes, the tree, one prefix, a prompt."""

from contextlib import asynccontextmanager

import pytest
from gateway_world import MODEL, Engine, engines, gateway, until

from core import wire

PROMPT = list(range(1, 257))


@pytest.fixture(scope="module")
def pair():
    with engines(Engine("a"), Engine("b")) as made:
        yield made


@asynccontextmanager
async def world(pair):
    async with gateway(*(e.spec() for e in pair)) as w:
        yield w


async def ask(w, method, path, kind, *, status=200, body=None, **query):
    url = f"{w.url}/admin/v1/cache{path}"
    async with w.client.request(method, url, params=query, json=body) as answer:
        text = await answer.read()
        assert answer.status == status, text
    return (kind if status == 200 else wire.ErrorBody).model_validate_json(text)


async def looked_up(w, **body):
    return await ask(w, "POST", "/lookup", wire.LookupView, body={"model": MODEL, **body})


async def test_a_prompt_is_found_where_it_was_computed(pair):
    async with world(pair) as w:
        before = await looked_up(w, prompt=[7, *PROMPT])
        assert before.nodes == []
        assert [c.key for c in before.chains] == ["" for _ in before.chains]
        answer = await w.complete(PROMPT, max_tokens=2)
        holder = answer.headers["x-conductor-node"]
        await until(lambda: sum(w.service.conductor.index.stats().blocks.values()) >= 8)
        found = await looked_up(w, prompt=PROMPT)
        assert (found.tokens, found.exact, found.source) == (256, True, "ids")
        assert [(m.node, m.tokens, m.share) for m in found.nodes] == [(holder, 256, 1.0)]
        (chain,) = [c for c in found.chains if c.matched_blocks]
        assert chain.matched_blocks * chain.block_size == 256
        touched = w.service.conductor.index.stats().touched

        half = await looked_up(w, prompt=PROMPT[:160])
        assert half.nodes[0].tokens == 160
        other = await looked_up(w, prompt=PROMPT, cache_salt="elsewhere")
        assert other.nodes == []
        assert w.service.conductor.index.stats().touched == touched

        facts = await ask(w, "GET", f"/prefixes/{chain.key}", wire.PrefixView)
        assert facts.listed and facts.depth_tokens == 256
        assert [(h.node, h.medium.value, h.eligible) for h in facts.holders] == [
            (holder, "gpu", True)
        ]
        tree = await ask(w, "GET", "/tree", wire.CacheTree, root=chain.root)
        assert chain.key in {c.key for c in tree.cells}
        hot = await ask(w, "GET", "/hot", wire.HotPrefixes, node=holder)
        assert chain.key in {p.key for p in hot.prefixes}
        idle = {"a": "b", "b": "a"}[holder]
        assert (await ask(w, "GET", "/hot", wire.HotPrefixes, node=idle)).prefixes == []


async def test_conversations_are_looked_up_as_clients_send_them(pair):
    async with world(pair) as w:
        messages = [{"role": "user", "content": "tell me about rivers " * 40}]
        body = {"model": MODEL, "messages": messages, "max_tokens": 2}
        async with w.client.post(f"{w.url}/v1/chat/completions", json=body) as answer:
            assert answer.status == 200
            await answer.read()

        await until(lambda: sum(w.service.conductor.index.stats().blocks.values()) > 0)
        found = await looked_up(w, messages=messages)
        assert found.nodes and found.nodes[0].tokens > 0


async def test_what_cannot_be_looked_up_is_named(pair):
    async with world(pair) as w:
        wrong = [
            ({"model": MODEL}, 422, None),
            ({"model": MODEL, "prompt": "x", "messages": []}, 422, None),
            ({"model": "nobody", "prompt": "x"}, 400, "model"),
            ({"model": MODEL, "prompt": [-1]}, 400, "prompt"),
        ]
        for body, status, field in wrong:
            error = await ask(w, "POST", "/lookup", None, status=status, body=body)
            assert field is None or error.error.param == field
        error = await ask(w, "GET", "/prefixes/xyz", None, status=400)
        assert error.error.param == "key"
        error = await ask(w, "GET", "/tree", None, status=400, root="1" * 17)
        assert error.error.param == "root"
        unknown = await ask(w, "GET", "/prefixes/00000000000000aa", wire.PrefixView)
        assert not unknown.listed
        await ask(w, "GET", "/hot", None, status=404, node="nobody")


async def test_replication_is_sampled_and_thinned(pair):
    async with world(pair) as w:
        await until(lambda: w.service.upkeep.replication.points())
        stats, wall = w.service.conductor.index.stats(), w.service.clock.wall()
        for _ in range(99):
            w.service.upkeep.replication.sample(stats, wall)
        found = await ask(w, "GET", "/replication", wire.Replication, points=10)
        assert len(found.points) == 10
        assert found.points[-1].at == wall
        assert found.step_s > 0

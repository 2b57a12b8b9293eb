"""Keys of the data plane: whose request it is, what that one may have, and whose cache it sees."""

from __future__ import annotations

from contextlib import asynccontextmanager

import orjson
from gateway_world import Engine, engines, gateway, until

from core.clock import SystemClock
from core.gateway.intake import salted
from core.identity.api_keys import KeyRing
from core.identity.authority import Authority, AuthRules
from core.identity.identities import Identities
from storage.store import open_storage

PROMPT = list(range(500, 900))
BLOCK = 16


@asynccontextmanager
async def keyed_world(tmp_path, *made, required=True):
    rules = AuthRules(require_api_key=required)
    with open_storage(f"sqlite:///{tmp_path}/records.db") as storage:
        store = storage.store
        async with gateway(
            *(e.spec(block_size=BLOCK) for e in made),
            store=store,
            authority=Authority(rules, store=store),
            keys=KeyRing(rules, store=store),
        ) as w:
            w.extra["acts"] = Identities(store, SystemClock())
            yield w


def bearer(credential):
    return {"authorization": f"Bearer {credential.text}"}


async def asked(w, headers, *, salts=1, **more):
    """(status, tokens the index had, tokens the engine reused) of one completion."""
    answer = await w.complete(PROMPT, max_tokens=2, headers=headers, **more)
    if answer.status != 200:
        return answer.status, None, None
    index = w.service.conductor.index
    await until(lambda: index.stats().entries >= salts * len(PROMPT) // BLOCK)
    read = [int(answer.headers.get(f"x-conductor-{n}-tokens", 0)) for n in ("match", "cached")]
    return answer.status, *read


async def test_tenants_never_share_what_is_cached_and_one_tenant_does(tmp_path):
    with engines(Engine("a", "--block-size", str(BLOCK))) as made:
        async with keyed_world(tmp_path, *made) as w:
            acts = w.extra["acts"]
            acme, record = acts.create_key("one", "acme")
            twin, other = acts.create_key("two", "acme")[0], acts.create_key("x", "globex")[0]
            assert (await asked(w, bearer(acme)))[1:] == (0, 0)
            again = await asked(w, bearer(acme))
            assert again[1] >= 384 and again[2] >= 384
            # Another key of the tenant sees the same cache; another tenant sees none of it, not
            # even with the tenant's name, or a salt, in its request.
            assert (await asked(w, bearer(twin)))[1:] == again[1:]
            told = {**bearer(other), "x-conductor-tenant": "acme"}
            assert (await asked(w, told, salts=2))[1:] == (0, 0)
            theirs = await asked(w, bearer(other), cache_salt="guess")
            assert theirs[1] >= 384  # its own first request, not the salt it sent
            w.service.recorder.drain()
            tenants = {d.tenant for d in w.sink.decisions}
            assert tenants == {"acme", "globex"}
            # The salt in the index is the one the engine got: what it tells fits what we look up.
            assert record.cache_salt and theirs[2] >= 384


async def test_nothing_works_without_a_key_where_keys_are_needed(tmp_path):
    with engines(Engine("a", "--block-size", str(BLOCK))) as made:
        async with keyed_world(tmp_path, *made) as w:
            for headers in ({}, {"authorization": "Bearer sk-guess"}, {"authorization": "Basic x"}):
                for path, body in (("/v1/completions", {"prompt": "x"}), ("/v1/embeddings", {}),
                                   ("/v1/schedule", {"prompt": "x"}), ("/query", {}),
                                   ("/register", {}), ("/unregister", {})):  # fmt: skip
                    answer = await w.post(path, body, headers=headers)
                    assert answer.status == 401, path
                    assert (await answer.json())["error"]["code"] in (
                        "invalid_api_key", "unauthorized",
                    )  # fmt: skip
            async with w.client.get(f"{w.url}/v1/models") as answer:
                assert answer.status == 401
            for open_page in ("/health", "/health/live", "/health/ready"):
                async with w.client.get(w.url + open_page) as answer:
                    assert answer.status == 200


async def test_a_bad_key_is_refused_where_none_is_needed_and_habits_are_not(tmp_path):
    with engines(Engine("a", "--block-size", str(BLOCK))) as made:
        async with keyed_world(tmp_path, *made, required=False) as w:
            key, _ = w.extra["acts"].create_key("k", "acme")
            assert (await asked(w, {"authorization": "Bearer EMPTY"}))[0] == 200
            assert (await asked(w, bearer(key)))[0] == 200
            w.extra["acts"].revoke_key(key.id)
            w.service.forget_identities()
            assert (await asked(w, bearer(key)))[0] == 401


async def test_limits_of_a_key_bite_and_name_themselves(tmp_path):
    with engines(Engine("a", "--block-size", str(BLOCK))) as made:
        async with keyed_world(tmp_path, *made) as w:
            acts = w.extra["acts"]
            slow, _ = acts.create_key("slow", "acme", requests_per_s=0.01)
            small, _ = acts.create_key("small", "acme", tokens_per_min=100)
            free, _ = acts.create_key("free", "acme")
            for key, words in ((slow, "requests a second"), (small, "tokens a minute")):
                assert (await asked(w, bearer(key)))[0] == 200
                answer = await w.complete(PROMPT, max_tokens=2, headers=bearer(key))
                error = (await answer.json())["error"]
                assert answer.status == 429 and words in error["message"]
                assert int(answer.headers["retry-after"]) >= 1
                assert error["code"] == "rate_limit_exceeded"
            assert (await asked(w, bearer(free)))[0] == 200


async def test_requests_at_once_are_counted_and_given_back(tmp_path):
    slow = Engine("a", "--profile", "generic-7b-1gpu", "--block-size", str(BLOCK))
    with engines(slow) as made:
        async with keyed_world(tmp_path, *made) as w:
            key, _ = w.extra["acts"].create_key("k", "acme", concurrent_max=1)
            stream = await w.complete(PROMPT, max_tokens=64, stream=True, headers=bearer(key))
            await stream.content.readany()
            assert (await w.complete("x", max_tokens=1, headers=bearer(key))).status == 429
            await stream.read()
            await until(lambda: not len(w.service.flights))
            assert (await w.complete("x", max_tokens=1, headers=bearer(key))).status == 200


def test_the_salt_replaces_every_one_the_client_sent():
    for raw in (
        b'{"model": "m", "cache_salt": "theirs", "prompt": "x"}',
        b'{"cache_salt":"a","model":"m","cache_salt":"b"}',
        b'{"model": "m"}  ',
        b'{"model": "m", "cache_salt": null}',
        b'{"cache\\u005fsalt": "hidden", "model": "m"}',
    ):
        body = orjson.loads(raw)
        text = salted(raw, body, "ours")
        assert text.count(b"salt") == 1 and b"hidden" not in text
        assert orjson.loads(text)["cache_salt"] == body["cache_salt"] == "ours"
        assert orjson.loads(text)["model"] == "m"

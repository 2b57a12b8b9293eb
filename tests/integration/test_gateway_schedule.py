"""Scheduling for gateways elsewhere, and the indexer API, before real emulated engines."""

from dataclasses import replace

import numpy as np
import pytest
from gateway_world import MODEL, PATIENT, Engine, engines, gateway, until

from core.domain import NodeId, OutcomeKind
from core.gateway.sequence import sequence_hashes

PROMPT = list(range(3000, 3320))


@pytest.fixture(scope="module")
def pair():
    with engines(Engine("a"), Engine("b")) as made:
        yield made


async def call(w, path, body=None, status=200):
    async with w.client.post(f"{w.url}{path}", json=body or {}) as answer:
        found = await answer.json()
        assert answer.status == status, found
        return found


async def schedule(w, **more):
    return await call(w, "/v1/schedule", {"model": MODEL, "prompt": PROMPT, **more})


async def test_decide_only_counts_nothing(pair):
    async with gateway(*(e.spec() for e in pair)) as w:
        found = await schedule(w, explain=True)
        assert found["prefill"]["url"] in {e.url for e in pair}
        assert found["exact_tokens"] and found["prompt_tokens"] == 320
        assert {c["node"] for c in found["candidates"]} == {"a", "b"}
        assert sum(c["chosen"] for c in found["candidates"]) == 1
        assert found["predicted"]["ttft_s"] > 0
        assert not w.service.conductor.ledger.open
        assert w.service.live.total.decisions == 0
        await w.settled()


async def test_reserve_progress_complete(pair):
    async with gateway(*(e.spec() for e in pair)) as w:
        found = await schedule(w, reserve=True, max_tokens=50)
        fleet = w.service.conductor.fleet
        slot = fleet.slot(NodeId(found["prefill"]["id"]))
        assert (fleet.prefilling[slot], fleet.decoding[slot]) == (1, 0)
        path = f"/v1/schedule/{found['decision_id']}"
        await call(w, f"{path}/progress", {"phase": "prefill_done", "cached_tokens": 0})
        assert (fleet.prefilling[slot], fleet.decoding[slot]) == (0, 1)
        report = {"ttft_s": 0.2, "tbt_s": 0.01, "output_tokens": 9, "prompt_tokens": 320}
        await call(w, f"{path}/complete", report)
        await call(w, f"{path}/complete", report, status=404)
        await w.settled()
        (done,) = w.sink.outcomes
        assert (done.kind, done.ttft_s, done.output_tokens) == (OutcomeKind.OK, 0.2, 9)


async def test_abort_and_expiry(pair):
    limits = replace(PATIENT, reservation_ttl_s=600)
    async with gateway(*(e.spec() for e in pair), limits=limits) as w:
        aborted = await schedule(w, reserve=True)
        await call(w, f"/v1/schedule/{aborted['decision_id']}/abort")
        await schedule(w, reserve=True, ttl_s=0.2)
        await until(lambda: not w.service.conductor.ledger.open)
        await w.settled()
        kinds = [o.kind for o in w.sink.outcomes]
        assert kinds == [OutcomeKind.CLIENT_ABORT, OutcomeKind.LOST]


async def test_reported_failures_count_against_the_node(pair):
    async with gateway(*(e.spec() for e in pair)) as w:
        for _ in range(5):
            found = await schedule(w, reserve=True, exclude=["b"])
            assert found["prefill"]["id"] == "a"
            body = {"kind": "engine_error", "failed_node": "a"}
            await call(w, f"/v1/schedule/{found['decision_id']}/complete", body)
        again = await schedule(w)
        assert again["prefill"]["id"] == "b"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"ttl_s": 0, "reserve": True}, "ttl_s"),
        ({"ttl_s": 1e9, "reserve": True}, "ttl_s"),
        ({"reserve": "yes"}, "reserve"),
    ],
)
async def test_bad_fields_are_named(pair, body, param):
    async with gateway(*(e.spec() for e in pair)) as w:
        full = {"model": MODEL, "prompt": PROMPT, **body}
        found = await call(w, "/v1/schedule", full, status=400)
        assert found["error"]["param"] == param
        assert not w.service.conductor.ledger.open
        assert not w.service.live.total.decisions


CANNOT_BE = {
    "output_tokens": -1, "prompt_tokens": 1 << 40, "cached_tokens": -5, "ttft_s": -0.1,
    "e2e_s": 1e300, "status": 10**9,
}  # fmt: skip


async def test_reports_that_cannot_be_leave_the_reservation(pair):
    async with gateway(*(e.spec() for e in pair)) as w:
        path = f"/v1/schedule/{(await schedule(w, reserve=True))['decision_id']}"
        for name, value in CANNOT_BE.items():
            found = await call(w, f"{path}/complete", {name: value}, status=400)
            assert found["error"]["param"] == name
        assert len(w.service.conductor.ledger.open) == 1
        await call(w, f"{path}/complete", {})
        await w.settled()


async def test_a_reported_first_token_counts_as_one(pair):
    async with gateway(*(e.spec() for e in pair)) as w:
        came = []
        w.service.conductor.ledger.on_first_token = lambda r, now: came.append(r.decision.id)
        id = (await schedule(w, reserve=True))["decision_id"]
        await call(w, f"/v1/schedule/{id}/progress", {"phase": "prefill_done"})
        assert not came
        await call(w, f"/v1/schedule/{id}/progress", {"phase": "first_token"})
        assert came == [id]
        await call(w, f"/v1/schedule/{id}/complete", {})
        await w.settled()


async def test_rejections_are_the_gateways_own(pair):
    async with gateway(*(e.spec() for e in pair)) as w:
        body = {"model": MODEL, "prompt": PROMPT, "exclude": ["a", "b"], "reserve": True}
        found = await call(w, "/v1/schedule", body, status=503)
        assert found["error"]["code"] == "no_candidates"


# --- the indexer API -----------------------------------------------------------------------------


def registration(engine, **more):
    return {
        "endpoint": engine.info["events"], "replay_endpoint": engine.info["replay"],
        "type": "vLLM", "modelname": MODEL, "instance_id": f"inst-{engine.name}",
        "block_size": 32, "dp_rank": 0, **more,
    }  # fmt: skip


def question(**more):
    return {"model": MODEL, "token_ids": PROMPT, "block_size": 32, **more}


async def test_registered_publishers_answer_queries(pair):
    async with gateway() as w:
        for engine in pair:
            found = await call(w, "/register", registration(engine))
            assert found["instance_id"] == f"inst-{engine.name}"
        async with w.client.get(f"{w.url}/v1/models") as answer:
            assert (await answer.json())["data"] == []  # indexed, and served by nobody here
        body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 1}
        async with w.client.post(f"{pair[0].url}/v1/completions", json=body) as answer:
            assert answer.status == 200

        async def matched() -> dict:
            return (await call(w, "/query", question()))["default"]

        async def wait_for(tokens: int) -> dict:
            while True:
                found = await matched()
                if found["inst-a"]["longest_matched"] >= tokens:
                    return found

        import asyncio

        found = await asyncio.wait_for(wait_for(320), 10)
        assert found["inst-a"] == {
            "longest_matched": 320, "GPU": 320, "CPU": 0, "DISK": 0, "DP": {"0": 320},
        }  # fmt: skip
        assert found["inst-b"]["longest_matched"] == 0
        only = await call(w, "/query", question(instance_id="inst-b"))
        assert set(only["default"]) == {"inst-b"}
        assert (await call(w, "/query", question(tenant_id="t")))["t"] == {}
        assert (await call(w, "/query", question(cache_salt="w8a8")))["default"] == {}
        hashes = sequence_hashes(np.array(PROMPT, np.uint32), 32)
        by_hash = {"model": MODEL, "block_size": 32, "seq_hashes": hashes}
        found = await call(w, "/query_by_hash", by_hash)
        assert found["default"]["inst-a"]["longest_matched"] == 320
        refused = await w.complete("x")
        assert refused.status == 503
        gone = await call(w, "/unregister", {"instance_id": "inst-a", "dp_rank": 0})
        assert gone["removed_instances"] == ["inst-a|default|0"]
        assert set((await call(w, "/query", question()))["default"]) == {"inst-b"}
        await call(w, "/unregister", {"instance_id": "inst-a", "dp_rank": 0}, status=404)


async def test_the_schedulers_own_nodes_answer_too(pair):
    async with gateway(*(e.spec() for e in pair)) as w:
        found = await call(w, "/query", question())
        assert set(found["default"]) == {"a", "b"}


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"endpoint": "ipc:///tmp/x"}, 400, "endpoint"),
        ({"endpoint": "tcp://*:5557"}, 400, "endpoint"),
        ({"type": "other"}, 400, "type"),
        ({"block_size": 0}, 400, "block_size"),
        ({"instance_id": None}, 400, "instance_id"),
    ],
)
async def test_bad_registrations_are_named(pair, change, status, param):
    async with gateway() as w:
        found = await call(w, "/register", registration(pair[0], **change), status=status)
        assert found["error"]["param"] == param

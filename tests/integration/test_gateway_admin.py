"""The admin API, health and metrics of a running scheduler, with a real record store."""

import re
import time
from contextlib import asynccontextmanager

import pytest
from gateway_world import MODEL, Engine, engines, gateway, until

from core import wire
from core.domain import Health, NodeId
from storage.store import open_storage


@pytest.fixture(scope="module")
def pair():
    with engines(Engine("a"), Engine("b")) as made:
        yield made


@asynccontextmanager
async def world(pair, tmp_path):
    with open_storage(f"sqlite:///{tmp_path}/records.db") as storage:
        async with gateway(*(e.spec() for e in pair), store=storage.store, sink=storage.sink) as w:
            yield w


async def get(w, path, kind, *, status=200, **query):
    async with w.client.get(f"{w.url}/admin/v1{path}", params=query) as answer:
        text = await answer.read()
        assert answer.status == status, text
    return (kind if status == 200 else wire.ErrorBody).model_validate_json(text)


async def act(w, method, path, body=None, *, kind=wire.NodeView, status=200):
    async with w.client.request(method, f"{w.url}/admin/v1{path}", json=body) as answer:
        text = await answer.read()
        assert answer.status == status, text
    return (kind if status < 400 else wire.ErrorBody).model_validate_json(text)


async def test_state_tells_the_whole_fleet(pair, tmp_path):
    async with world(pair, tmp_path) as w:
        for n in range(4):
            answer = await w.complete([n + 1] * 64, max_tokens=3, stream=True)
            await answer.read()
        state = await get(w, "/state", wire.FleetState)
        assert [n.id for n in state.nodes] == ["a", "b"]
        assert state.totals.healthy == state.totals.eligible == 2
        assert state.totals.decisions == 4
        assert state.totals.ttft_s.count == 4 and state.totals.ttft_margin <= 1
        assert state.totals.hit_reported is not None
        assert state.models == [MODEL]
        assert (state.policy == "min_ttft" and "T_" in state.policy_formula) or state.policy_formula
        assert sum(n.decisions for n in state.nodes) == 4
        assert state.service.decision_p50_us > 0
        assert state.nodes[0].block_size == 32
        assert state.nodes[0].load.telemetry_age_s is not None
        assert state.totals.inflight == 0
        live = await get(w, "/series", wire.Series, window="live")
        assert sum(p.requests for p in live.points) == 4
        assert sum(sum(p.per_node.values()) for p in live.points) == 4


async def test_decisions_are_stored_found_and_explained(pair, tmp_path):
    async with world(pair, tmp_path) as w:
        answer = await w.complete([5] * 64, max_tokens=3, headers={"x-request-id": "find-me"})
        decision = answer.headers["x-conductor-decision"]
        assert (await w.complete("x", model="nope")).status == 404

        async def page(**query) -> wire.DecisionPage:
            w.service.recorder.drain()
            return await get(w, "/decisions", wire.DecisionPage, **query)

        async def rows(n, **query):
            end = time.monotonic() + 10
            while len((found := await page(**query)).rows) < n:
                assert time.monotonic() < end
            return found.rows

        both = await rows(2)
        assert [r.routed for r in both] == [False, True], both
        (done,) = await rows(1, outcome="ok")
        assert done.id == decision and done.outcome.output_tokens == 3
        (no,) = await rows(1, outcome="rejected")
        assert (no.status, no.code) == (404, "unknown_model")
        assert (await rows(1, node=done.prefill_node))[0].id == decision
        first = await page(limit=1)
        second = await page(limit=1, cursor=first.next)
        assert {first.rows[0].id, second.rows[0].id} == {decision, no.id}
        for name in (decision, decision[:20], "find-me"):
            detail = await get(w, f"/decisions/{name}", wire.DecisionDetail)
            assert detail.row.id == decision
            assert detail.row.outcome is not None
        assert {c.node for c in detail.prefill.candidates} == {"a", "b"}
        assert sum(c.chosen for c in detail.prefill.candidates) == 1
        assert all(c.why_not for c in detail.prefill.candidates if not c.chosen)
        assert decision in detail.explanation
        error = await get(w, "/decisions/none", None, status=404)
        assert error.error.code == "not_found"
        error = await get(w, "/decisions", None, status=400, cursor="%%")
        assert error.error.param == "cursor"
        minutes = await get(w, "/series", wire.Series, window="minutes")
        assert sum(p.requests for p in minutes.points) == 2


async def test_nodes_register_drain_and_leave(pair, tmp_path):
    with engines(Engine("late")) as (late,):
        async with world(pair, tmp_path) as w:
            body = {"id": "late", "url": late.url, "engine": "emulated", "profile": "tiny-emulated"}
            made = await act(w, "POST", "/nodes", body, status=201)
            assert (made.id, made.health) == ("late", Health.UNKNOWN)
            assert (await act(w, "POST", "/nodes", body, status=409)).error.code == "conflict"
            fleet = w.service.conductor.fleet
            await until(lambda: fleet.health(NodeId("late")) is Health.HEALTHY)
            for name in ("a", "b"):
                drained = await act(w, "POST", f"/nodes/{name}/drain", {"reason": "upgrade"})
                assert drained.draining and not drained.eligible
            answer = await w.complete("x", max_tokens=2)
            assert answer.headers["x-conductor-node"] == "late"
            await act(w, "POST", "/nodes/a/undrain")
            gone = await act(w, "DELETE", "/nodes/late", kind=wire.Done)
            assert gone.ok
            assert (await w.complete("x", max_tokens=2)).headers["x-conductor-node"] == "a"
            assert (await act(w, "DELETE", "/nodes/late", status=404)).error.param == "node"
            listed = await get(w, "/nodes", wire.NodeList)
            assert [n.id for n in listed.nodes] == ["a", "b"]
            await w.settled()


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"id": "no spaces"}, 422, "id"),
        ({"url": "ftp://127.0.0.1:1"}, 422, "url"),
        ({"block_size": 0}, 422, "block_size"),
        ({"unknown": 1}, 422, "unknown"),
        ({"events": {"live": "ipc:///x"}}, 422, "events.live"),
        ({"profile": "nope"}, 404, "profile"),
    ],
)
async def test_bad_registrations_name_the_field(pair, tmp_path, change, status, param):
    async with world(pair, tmp_path) as w:
        body = {"id": "x", "url": "http://127.0.0.1:9", **change}
        found = await act(w, "POST", "/nodes", body, status=status)
        assert found.error.param == param
        assert not w.service.conductor.fleet.has(NodeId("x"))


async def test_breakers_trip_reset_and_hold(pair, tmp_path):
    async with world(pair, tmp_path) as w:
        trip = {"action": "trip", "reason": "looks ill", "author": "op", "seconds": 60}
        node = await act(w, "POST", "/nodes/a/breaker", trip)
        assert node.breaker.state == "tripped" and node.breaker.manual and not node.eligible
        assert 0 < node.breaker.until_s <= 60
        for _ in range(3):
            assert (await w.complete("x", max_tokens=2)).headers["x-conductor-node"] == "b"
        node = await act(w, "POST", "/nodes/a/breaker", {"action": "reset", "reason": "well again"})
        assert node.breaker.state == "closed" and node.eligible
        hold = {"action": "hold", "reason": "a test"}
        assert (await act(w, "POST", "/nodes/a/breaker", hold, status=422)).error.param == "seconds"
        node = await act(w, "POST", "/nodes/a/breaker", {**hold, "seconds": 5})
        assert node.breaker.state == "held"
        short = {"action": "trip", "reason": "x"}
        assert (await act(w, "POST", "/nodes/a/breaker", short, status=422)).error.param == "reason"


async def test_tunables_change_as_revisions(pair, tmp_path):
    async with world(pair, tmp_path) as w:
        before = await get(w, "/tunables", wire.TunablesView)
        assert {i.path for i in before.items} >= {"policy", "linear.alpha", "slo.ttft_s"}
        policy = next(i for i in before.items if i.path == "policy")
        assert "priced_ttft" in policy.choices
        change = {
            "base": before.revision,
            "changes": {"policy": "linear", "alpha": 0.7},
            "reason": "try it",
            "author": "op",
        }
        after = await act(w, "PUT", "/tunables", change, kind=wire.TunablesView)
        assert (after.revision, after.policy) == (before.revision + 1, "linear")
        assert after.history[0].changes == {
            "policy": ["min_ttft", "linear"],
            "linear.alpha": [0.5, 0.7],
        }
        stale = await act(w, "PUT", "/tunables", change, status=409)
        assert stale.error.param == "base"
        for changes, param in (
            ({"linear.alpha": 7}, "linear.alpha"),
            ({"nope": 1}, "nope"),
            ({"policy": "nope"}, "policy"),
            ({"linear.alpha": 0.7}, "changes"),
        ):
            bad = {**change, "base": after.revision, "changes": changes}
            assert (await act(w, "PUT", "/tunables", bad, status=422)).error.param == param
        answer = await w.complete("x", max_tokens=2)
        assert answer.status == 200
        await w.settled()
        assert w.service.conductor.revision == after.revision
        policies = await get(w, "/policies", wire.PolicyList)
        assert policies.live == "linear" and len(policies.policies) >= 10


async def test_cache_views(pair, tmp_path):
    async with world(pair, tmp_path) as w:
        prompt = list(range(4000, 4320))
        for _ in range(3):
            answer = await w.complete(prompt, max_tokens=2)
            index = w.service.conductor.index
            await until(lambda i=index: i.stats().entries >= 9)
        hot = await get(w, "/cache/hot", wire.HotPrefixes)
        assert hot.prefixes and hot.prefixes[0].holders == [answer.headers["x-conductor-node"]]
        tree = await get(w, "/cache/tree", wire.CacheTree)
        assert tree.entries >= 9
        roots = [c for c in tree.cells if not c.parent]
        assert any(MODEL in c.label for c in roots)
        assert {c.parent for c in tree.cells if c.parent} <= {c.key for c in tree.cells}
        assert len({c.key for c in tree.cells}) == len(tree.cells)
        assert (await get(w, "/cache/tree", None, status=400, root="xyz")).error.param == "root"


async def test_health_and_metrics(pair, tmp_path):
    async with world(pair, tmp_path) as w:
        await w.complete("x" * 200, max_tokens=2)
        await w.complete("x", model="nope")
        async with w.client.get(f"{w.url}/health/ready") as answer:
            ready = wire.HealthView.model_validate_json(await answer.read())
        assert answer.status == 200 and ready.ready and ready.eligible == 2
        heard = w.service.streams().values
        await until(lambda: any(s.ingest and s.ingest.blocks for s in heard()))
        seen = [await get(w, f"/nodes/{node}/signal", wire.SignalView) for node in ("a", "b")]
        assert all(s.connected and s.endpoint for s in seen)
        assert sum(s.counters["messages"] for s in seen) > 0 and sum(s.blocks for s in seen) > 0
        assert (await get(w, "/nodes/z/signal", None, status=404)).error.param == "node"
        assert (await get(w, "/nodes/z/cost", None, status=404)).error.param == "node"
        cost = await get(w, "/nodes/a/cost", wire.CostView)
        assert (cost.prefill.source, cost.prefill.error) == ("profile", None)
        assert len(cost.prefill.coefficients) == len(cost.tbt.coefficients) == 3
        await act(w, "POST", "/state", status=405)
        await act(w, "GET", "/odd-name", status=404)
        async with w.client.get(f"{w.url}/metrics") as answer:
            text = await answer.text()
        assert 'conductor_node_stream_total{event="gaps",node="a"} 0.0' in text
        assert 'conductor_outcomes_total{kind="ok"} 1.0' in text
        assert 'conductor_rejections_total{code="unknown_model"} 1.0' in text
        assert 'conductor_node_healthy{node="a"} 1.0' in text
        called = {
            route: float(count)
            for route, count in re.findall(r'admin_requests_total{route="([^"]+)"} (\S+)', text)
        }
        signal = "GET /nodes/{node}/signal"
        assert called[signal] >= 3 and called["no such route"] == 2
        assert "nope" not in text and "odd-name" not in text
        buckets = re.findall(r'conductor_decision_seconds_bucket{le="([^"]+)"} (\S+)', text)
        counts = [float(count) for _, count in buckets]
        assert buckets[-1] == ("+Inf", "2.0") and counts == sorted(counts)


async def test_openapi_describes_every_route(pair, tmp_path):
    async with world(pair, tmp_path) as w:
        async with w.client.get(f"{w.url}/admin/v1/openapi.json") as answer:
            document = await answer.json()
        assert set(document["paths"]) >= {
            "/admin/v1/state", "/admin/v1/nodes", "/admin/v1/nodes/{node}/drain",
            "/admin/v1/decisions/{name}", "/admin/v1/tunables", "/admin/v1/cache/tree",
        }  # fmt: skip
        assert (await act(w, "POST", "/state", status=405)).error.code == "method_not_allowed"
        assert (await act(w, "GET", "/nope", status=404)).error.code == "not_found"


async def test_a_service_without_a_store_says_so(pair):
    async with gateway(*(e.spec() for e in pair)) as w:
        found = await get(w, "/decisions", None, status=503)
        assert found.error.code == "store_unavailable"
        assert (await w.complete("x", max_tokens=2)).status == 200


async def test_stored_requests_are_summed_up(pair, tmp_path):
    async with world(pair, tmp_path) as w:
        for n in range(3):
            headers = {"x-conductor-tenant": "team-a"}
            answer = await w.complete([40 + n] * 64, max_tokens=4, stream=True, headers=headers)
            await answer.read()
        await w.settled()
        end = time.monotonic() + 10
        while (found := await get(w, "/timings", wire.TimingsView)).requests < 3:
            assert time.monotonic() < end
            w.service.recorder.drain()
        assert found.requests == found.ttft.count == 3
        assert sum(b.ttft for b in found.margins) == 3
        shares = await get(w, "/shares", wire.Shares)
        assert {(g.tenant, g.model) for g in shares.groups} == {("team-a", MODEL)}
        assert sum(g.finished for g in shares.groups) == shares.decisions == 3
        assert shares.complete and found.complete
        newest = await get(w, "/shares", wire.Shares, limit="2")
        assert (newest.decisions, newest.complete) == (2, False)
        readings = await get(w, "/nodes/a/readings", wire.Readings)
        assert readings.node == "a"
        error = await get(w, "/shares", None, status=400, since="2000-01-01T00:00:00Z")
        assert error.error.param == "since"

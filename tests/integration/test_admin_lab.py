"""Evidence and the Lab over HTTP: events, detector, one decision again, jobs and their bounds."""

from __future__ import annotations

import pytest
from control_world import WHY, apply, call, controlled, flushed
from gateway_world import Engine, engines, until

from core import wire
from core.control.lab import LabRules
from core.tunables import Tunables

START = Tunables().changed(
    {
        "policy": "linear",
        "linear.alpha": 0.9,
        "linear.beta": 0.1,
        "admission.mode": "off",
        "hotspot.enabled": False,
    }
)


@pytest.fixture(scope="module")
def pair():
    with engines(Engine("a"), Engine("b")) as made:
        yield made


async def sent(w, count: int = 24) -> None:
    for i in range(count):
        prompt = [*[7 + i % 3] * 128, *[100 + i] * 16]
        answer = await w.complete(prompt, max_tokens=2, stream=True)
        await answer.read()
    await w.settled()
    await flushed(w)


async def test_a_decision_is_made_again_under_other_parameters(pair, tmp_path):
    async with controlled(pair, tmp_path, tunables=START) as w:
        await sent(w)
        page = await call(w, "GET", "/decisions?limit=10", kind=wire.DecisionPage)
        name = page.rows[0].id
        ask = {"changes": {"policy": "round_robin"}}
        path = f"/decisions/{name}/what-if"
        same = await call(w, "POST", path, {}, kind=wire.WhatIfView)
        assert not same.moved and same.policy == "linear" and "again" in same.text
        assert [c.recorded for c in same.candidates] == [c.chosen for c in same.candidates]
        best = same.candidates[0]
        assert best.recorded_total == pytest.approx(best.total, rel=1e-3)
        assert set(best.terms) and best.ttft_s >= 0
        other = await call(w, "POST", path, ask, kind=wire.WhatIfView)
        assert other.policy == "round_robin"
        assert other.changes["policy"] == ["linear", "round_robin"]
        assert all(c.recorded_total is None for c in other.candidates)
        bad = await call(w, "POST", path, {"changes": {"linear.alpha": 7}}, status=422)
        assert bad.param == "linear.alpha"
        await call(w, "POST", "/decisions/ffff/what-if", {}, status=404)


async def test_stored_events_and_the_detector_can_be_read(pair, tmp_path):
    async with controlled(pair, tmp_path, tunables=START) as w:
        await apply(w, {"hotspot.enabled": True})
        await sent(w, 6)
        trip = {"action": "trip", "reason": "a drill", "author": "op", "seconds": 60}
        await call(w, "POST", "/nodes/a/breaker", trip, kind=wire.NodeView)
        await call(w, "POST", "/breaker", trip, kind=wire.BreakerView)
        await until(lambda: w.service.counters["transition.global_breaker.tripped"])
        await flushed(w)
        found = await call(w, "GET", "/history?kind=node_breaker.*", kind=wire.EventHistory)
        assert [(e.kind, e.node) for e in found.events] == [("node_breaker.tripped", "a")]
        assert found.events[0].data["reason"] == "a drill"
        one = await call(w, "GET", "/history?limit=1", kind=wire.EventHistory)
        assert one.more and len(one.events) == 1
        before = one.events[0].at.isoformat().replace("+", "%2B")
        older = await call(w, "GET", f"/history?until={before}", kind=wire.EventHistory)
        assert one.events[0].id not in {e.id for e in older.events}
        heat = await call(w, "GET", "/hotspots", kind=wire.HotspotView)
        assert heat.enabled and heat.breaker.state == "tripped"
        assert sum(g.requests for g in heat.groups) == 6
        await call(w, "GET", "/history?kind=no%20such", status=422)


async def test_lab_jobs_over_recorded_and_shipped_requests(pair, tmp_path):
    async with controlled(pair, tmp_path, tunables=START) as w:
        await sent(w)
        sources = await call(w, "GET", "/lab/sources", kind=wire.LabSources)
        assert [s.name for s in sources.sources] == ["recorded", "shipped"]
        assert sources.sources[0].requests == 24
        ask = {
            **WHY, "method": "rescore", "source": "recorded", "requests": 100,
            "arms": [{"policy": "round_robin"}], "axes": {"alpha": [0.1, 0.9]},
        }  # fmt: skip
        made = await call(w, "POST", "/lab/jobs", ask, kind=wire.LabJob, status=201)
        shipped = {
            **WHY, "source": "shipped", "requests": 50, "policy": "linear",
            "axes": {"alpha": [0.2, 0.8], "linear.beta": [0.5]},
            "fleet": {"prefill": 2, "profile": "tiny-emulated", "cache_tokens": 100000},
        }  # fmt: skip
        second = await call(w, "POST", "/lab/jobs", shipped, kind=wire.LabJob, status=201)
        assert second.total == 3
        await until(
            lambda: w.service.lab.job(second.id).state not in ("waiting", "running"), deadline_s=60
        )
        first = await call(w, "GET", f"/lab/jobs/{made.id}", kind=wire.LabJob)
        assert first.state == "done", first.error
        # alpha 0.9 is what is live: it is not weighed twice
        assert [p.label for p in first.points] == ["live", "round_robin", "linear: alpha 0.1"]
        assert first.points[1].figures["moved"] > 0 and first.requests == 24
        assert first.points[2].params == {"linear.alpha": 0.1}
        second = await call(w, "GET", f"/lab/jobs/{second.id}", kind=wire.LabJob)
        assert second.state == "done", second.error
        assert len(second.points) == 3 and any(p.pareto for p in second.points)
        assert second.best in {p.label for p in second.points}
        listed = await call(w, "GET", "/lab/jobs", kind=wire.LabJobList)
        assert [j.id for j in listed.jobs] == [second.id, made.id]
        assert not listed.jobs[0].points
        await call(w, "DELETE", f"/lab/jobs/{made.id}", kind=wire.LabJob)
        await call(w, "GET", f"/lab/jobs/{made.id}", status=404)


async def test_lab_says_what_does_not_fit(pair, tmp_path):
    traces, outside = tmp_path / "traces", tmp_path / "secret.jsonl"
    traces.mkdir()
    outside.write_text("{}\n")
    (traces / "link.jsonl").symlink_to(outside)
    line = '{"timestamp": %d, "input_length": 512, "output_length": 4, "hash_ids": [%d]}\n'
    (traces / "mine.jsonl").write_text("".join(line % (i * 100, i) for i in range(30)))
    async with controlled(pair, tmp_path, tunables=START) as w:
        w.service.lab.rules = LabRules(trace_dir=traces)
        found = await call(w, "GET", "/lab/sources", kind=wire.LabSources)
        assert [s.name for s in found.sources] == ["recorded", "shipped", "mine.jsonl"]

        async def refused(field, status=422, **more):
            ask = {**WHY, "arms": [{"policy": "random"}], **more}
            error = await call(w, "POST", "/lab/jobs", ask, status=status)
            assert error.param == field, error.message

        await refused("arms", arms=[])
        await refused("policy", arms=[{"policy": "magic"}])
        await refused("requests", requests=50_000)
        await refused("axes", axes={"linear.alpha": [i / 1000 for i in range(900)]})
        await refused("axes", axes={"linear.alpha": []})
        await refused("linear.alpha", axes={"linear.alpha": [2]})
        await refused("source", 400, source="../secret.jsonl")
        await refused("source", 400, source="link.jsonl")
        await refused("source", 400, method="rescore")
        await refused("fleet", fleet={"prefill": 0, "both": 0, "decode": 2})
        ask = {**WHY, "arms": [{"policy": "random"}], "source": "mine.jsonl", "requests": 25}
        made = await call(w, "POST", "/lab/jobs", ask, kind=wire.LabJob, status=201)
        await until(lambda: w.service.lab.job(made.id).state == "done", deadline_s=60)
        assert w.service.lab.job(made.id).result.requests == 25

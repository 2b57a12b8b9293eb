"""Preview against what then happens; shadow and canary on live traffic."""

from __future__ import annotations

import pytest
from control_world import WHY, Load, apply, call, controlled, flushed
from gateway_world import Engine, engines, until

from core import wire
from core.ports import DecisionQuery
from core.tunables import Tunables

KV_TOKENS = 16_384
START = Tunables().changed(
    {
        "policy": "linear",
        "linear.alpha": 0.9,
        "linear.beta": 0.1,
        "admission.mode": "off",
        "guard.enabled": False,
    }
)


@pytest.fixture(scope="module")
def four():
    """Caches that hold a part of the groups, and requests that last a while."""
    more = ("--kv-tokens", str(KV_TOKENS), "--profile", "tiny-emulated", "--speed", "0.05")
    with engines(*(Engine(name, *more) for name in "abcd")) as made:
        yield made


async def sent(load, count):
    goal = load.sent + count
    await until(lambda: load.sent >= goal, deadline_s=60)


def observed(w, revision):
    """(hit, largest share of requests times nodes) of a revision's decisions."""
    rows = w.service.store.decisions(DecisionQuery(revision=revision), limit=1000).rows
    placed = [r.decision for r in rows if r.decision.placed]
    hit = sum(d.match_tokens for d in placed) / sum(d.prompt_tokens for d in placed)
    counts: dict[str, int] = {}
    for d in placed:
        counts[d.prefill_node] = counts.get(d.prefill_node, 0) + 1
    return hit, 4 * max(counts.values()) / len(placed), len(placed)


async def test_preview_predicts_the_direction_of_hit_and_imbalance(four, tmp_path):
    async with controlled(four, tmp_path, tunables=START, speed=0.05, batch_max=16) as w:
        first = w.service.conductor.revision
        load = Load(w, rate=12, groups=13, popular_share=0.5, tail=32, output=24)
        flip = {"linear.alpha": 0.1, "linear.beta": 0.9}
        for group in range(1, load.groups + 1):
            await load.one(group)  # each prefix is on one node before others ask for it
        async with load.running():
            await sent(load, 150)
            await flushed(w)
            body = {"changes": flip, "decisions": 120, "simulate": True}
            told = await call(w, "POST", "/preview", body, kind=wire.PreviewView)
            made = await apply(w, flip)
            await sent(load, 120)
        await w.settled()
        await flushed(w)
        assert not load.failures
        (hit, imbalance, _), (hit_then, imbalance_then, n) = (
            observed(w, r) for r in (first, made.revision)
        )
        assert n >= 100
        assert hit_then < hit and imbalance_then < imbalance
        assert told.after.hit < told.before.hit
        assert told.after.imbalance_requests < told.before.imbalance_requests
        assert told.moved > 0 and told.fidelity > 0.9
        assert len(told.examples) == min(told.moved, 10)
        assert {e.path for e in told.effects} == set(flip)
        assert told.replay.requests >= 20
        assert told.replay.proposed["hit_ratio"] < told.replay.live["hit_ratio"]


async def test_preview_checks_what_it_is_asked(four, tmp_path):
    async with controlled(four, tmp_path, tunables=START) as w:
        for changes, field in (
            ({"linear.alpha": 2}, "linear.alpha"),
            ({"linear.alpha": 0.9}, "changes"),
        ):
            error = await call(w, "POST", "/preview", {"changes": changes}, status=422)
            assert error.param == field
        told = await call(
            w, "POST", "/preview", {"changes": {"linear.alpha": 0.2}}, kind=wire.PreviewView
        )
        assert told.decisions == 0 and told.after.hit is None
        body = {"changes": {"linear.alpha": 0.2}, "simulate": True}
        assert (await call(w, "POST", "/preview", body, status=400)).param == "replay"


async def test_a_shadow_scores_and_routes_nothing(four, tmp_path):
    async with controlled(four, tmp_path, tunables=START) as w:
        live = w.service.conductor.revision
        body = {"changes": {"policy": "round_robin"}, **WHY}
        await call(w, "POST", "/shadow/start", body, kind=wire.ShadowView, status=201)
        await call(w, "POST", "/shadow/start", body, status=409)
        load = Load(w, rate=25, groups=3, shared=128, output=2)
        async with load.running():
            await sent(load, 80)
        report = await call(w, "POST", "/shadow/stop", WHY, kind=wire.ShadowView)
        assert not load.failures and not report.running and not report.failures
        assert report.scored + report.shed >= load.sent
        assert report.scored > 0 and report.cost_share <= 0.45
        assert 0.0 <= report.agreement <= 1.0
        assert report.live.placed == report.candidate.placed == report.scored
        assert sum(m.count for m in report.moves) == round(report.scored * (1 - report.agreement))
        await w.settled()
        await flushed(w)
        rows = w.service.store.decisions(DecisionQuery(), limit=1000).rows
        assert {(r.decision.policy, r.decision.revision) for r in rows} == {("linear", live)}
        assert (await call(w, "POST", "/shadow/stop", WHY, status=404)).param == "shadow"


async def test_a_canary_takes_whole_sessions(four, tmp_path):
    async with controlled(four, tmp_path, tunables=START) as w:
        live = w.service.conductor.revision
        body = {"changes": {"policy": "least_loaded"}, "share": 0.4, **WHY}
        begun = await call(w, "POST", "/canary/start", body, kind=wire.CanaryView, status=201)
        assert begun.running and begun.revision == live + 1
        assert w.service.conductor.revision == live
        load = Load(w, rate=25, groups=40, shared=128, output=2)
        async with load.running():
            await sent(load, 150)
        await w.settled()
        report = await call(w, "GET", "/canary", kind=wire.CanaryView)
        assert report.live.finished > 0 and report.candidate.finished > 0
        assert report.live.finished + report.candidate.finished == load.sent
        assert {m.name for m in report.measures} == {"ttft_s", "tbt_s", "hit", "good_share"}
        await flushed(w)
        rows = [r.decision for r in w.service.store.decisions(DecisionQuery(), limit=1000).rows]
        assert {(d.policy, d.revision) for d in rows} == {
            ("linear", live), ("least_loaded", live + 1),
        }  # fmt: skip
        sides: dict[str, set[int]] = {}
        for d in rows:
            sides.setdefault(d.session, set()).add(d.revision)
        assert all(len(s) == 1 for s in sides.values()) and len(sides) > 5
        # A change of the live revision ends the comparison; numbers go on.
        made = await apply(w, {"linear.alpha": 0.4})
        assert made.revision == live + 2
        ended = await call(w, "GET", "/canary", kind=wire.CanaryView)
        assert not ended.running and str(made.revision) in ended.ended
        bad = {**body, "changes": {"breaker.open_s": 1}}
        assert (await call(w, "POST", "/canary/start", bad, status=422)).param == "breaker.open_s"

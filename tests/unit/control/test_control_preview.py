"""Preview: moves, direction of hit and imbalance, inputs that were constant, what is assumed."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from core.audit import decision_record
from core.conductor import Conductor
from core.control.preview import EXAMPLES, preview
from core.control.rescoring import COLUMNS, Context, recorded, totals
from core.domain import (
    Decision,
    EngineKind,
    EventEndpoints,
    Health,
    NodeId,
    NodeSpec,
    Outcome,
    OutcomeKind,
    Request,
    RequestId,
)
from core.explain import explain
from core.fleet.trust import Signal
from core.ports import OutcomeRecord, StoredDecision
from core.tunables import Tunables

AT = datetime(2026, 1, 2, tzinfo=UTC)
BLOCK = 16


def conductor(nodes: int = 4, **changes) -> Conductor:
    live = Conductor(
        tunables=Tunables().changed({"admission.mode": "off", **changes}), rng=random.Random(4)
    )
    for n in range(nodes):
        spec = NodeSpec(
            id=NodeId(f"n{n}"), url="http://x", engine=EngineKind.EMULATED, models=("m",),
            block_size=BLOCK, kv_capacity_tokens=10_000_000, queue_max=100_000, batch_max=16,
            events=EventEndpoints(live="tcp://x:1"),
        )  # fmt: skip
        live.register(spec, 0.0)
        live.set_health(spec.id, Health.HEALTHY, 0.0)
        live.cache_signal(spec.id, Signal.COMPLETE, 0.0, cause="test")
    return live


def traffic(live: Conductor, *, count: int = 200, gap_s: float = 0.5, groups: int = 3):
    """Prompts of a few hot prefixes on nodes that keep what they computed; stored decisions."""
    rng, out, open_ = random.Random(9), [], []
    for n in range(count):
        now = n * gap_s
        for r, end in [o for o in open_ if o[1] <= now]:
            r.finish(Outcome(kind=OutcomeKind.OK), end)
        open_ = [o for o in open_ if o[1] > now]
        group = min(int(rng.expovariate(1.0)), groups - 1)
        keys = [group * 1000 + b for b in range(60)] + [10**6 + n * 100 + b for b in range(20)]
        request = Request(
            id=RequestId(f"r{n}"), model="m", prompt_tokens=80 * BLOCK + 1, keys={BLOCK: keys}
        )
        decision = live.decide(request, now)
        assert isinstance(decision, Decision)
        open_.append((live.begin(decision, now), now + 6.0))
        live.index.store(decision.prefill_slot, keys)
        record = decision_record(decision, AT + timedelta(seconds=now))
        outcome = OutcomeRecord(
            decision_id=record.id, decided_at=record.at, kind="ok", ttft_s=0.2, e2e_s=6.0,
            finished_at=record.at + timedelta(seconds=6),
        )  # fmt: skip
        out.append(StoredDecision(record, outcome))
    return out


def linear(alpha: float) -> dict:
    return {"policy": "linear", "linear.alpha": alpha, "linear.beta": 1.0 - alpha}


def test_flipping_alpha_is_seen_to_cost_hits_and_even_out_work():
    live = conductor(**linear(0.9))
    window = traffic(live)
    proposed = live.tunables.changed(linear(0.1))
    report = preview(window, live.tunables, proposed)
    assert report.decisions == 200 and report.left_out == 0
    assert report.fidelity is not None and report.fidelity >= 0.98
    assert report.moved > 20
    assert sum(m.count for m in report.moves) == report.moved
    assert report.after.hit < report.before.hit
    assert report.after.imbalance_requests < report.before.imbalance_requests
    # What really happens under the other configuration goes the same way.
    real = preview(traffic(conductor(**linear(0.1))), live.tunables, live.tunables)
    assert real.before.hit < report.before.hit
    assert real.before.imbalance_requests < report.before.imbalance_requests


def test_node_weights_are_recorded_told_and_heeded_again():
    live = conductor(**linear(0.5))
    live.update_spec(replace(live.fleet.spec(NodeId("n2")), weight=2.5), 0.0)
    window = traffic(live, count=80)
    report = preview(window, live.tunables, live.tunables)
    assert (report.fidelity, report.moved) == (1.0, 0)
    found = recorded(window[0])
    assert dict(zip(found.nodes, found.weight, strict=True))["n2"] == 2.5
    assert sorted(found.weight) == [1.0, 1.0, 1.0, 2.5]
    lost = next(c for c in explain(window[0]).prefill.candidates if c.node == "n0")
    assert lost.why_not.endswith("; node weights 1 against 2.5")


def test_nothing_moves_under_the_same_parameters():
    live = conductor(**linear(0.7))
    window = traffic(live, count=60)
    report = preview(window, live.tunables, live.tunables)
    assert report.moved == 0 and report.before == report.after and report.examples == ()


def test_examples_are_the_most_different_ones():
    live = conductor(**linear(0.9))
    report = preview(traffic(live), live.tunables, live.tunables.changed(linear(0.0)))
    gaps = [e.total_gap for e in report.examples]
    assert len(gaps) == EXAMPLES and gaps == sorted(gaps, reverse=True) and gaps[-1] > 0
    assert all(e.source != e.target for e in report.examples)


def test_a_parameter_whose_input_was_constant_is_named_with_it():
    """Prompts that nobody has cached: alpha weighs a match that is 0 everywhere."""
    live = conductor(**linear(0.5))
    window = []
    for n in range(40):
        keys = [n * 1000 + b for b in range(80)]
        request = Request(
            id=RequestId(f"r{n}"), model="m", prompt_tokens=80 * BLOCK + 1, keys={BLOCK: keys}
        )
        decision = live.decide(request, float(n))
        live.begin(decision, float(n))
        window.append(StoredDecision(decision_record(decision, AT)))
    report = preview(window, live.tunables, live.tunables.changed({"linear.alpha": 0.1}))
    (effect,) = report.effects
    assert effect.path == "linear.alpha" and not effect.matters
    assert effect.constant_inputs == ("match_tokens",)
    assert "match_tokens was equal" in effect.text


def test_an_idle_fleet_makes_beta_idle():
    live = conductor(**linear(0.5))
    window = []
    for n in range(20):
        keys = list(range(80))
        request = Request(
            id=RequestId(f"r{n}"), model="m", prompt_tokens=80 * BLOCK + 1, keys={BLOCK: keys}
        )
        decision = live.decide(request, float(n))
        live.index.store(decision.prefill_slot, keys)
        window.append(StoredDecision(decision_record(decision, AT)))
    report = preview(window, live.tunables, live.tunables.changed({"linear.beta": 0.9}))
    assert report.effects[0].constant_inputs == ("load",)


def test_a_parameter_of_another_policy_does_not_matter():
    live = conductor()
    report = preview(
        traffic(live, count=30), live.tunables, live.tunables.changed({"linear.alpha": 0.1})
    )
    (effect,) = report.effects
    assert not effect.matters and "min_ttft does not read it" in effect.text


def test_decisions_of_another_policy_are_said_to_move_by_themselves():
    live, other = conductor(), conductor(policy="round_robin")
    window = traffic(live, count=30) + traffic(other, count=30)
    report = preview(window, live.tunables, live.tunables.changed({"linear.alpha": 0.1}))
    assert report.moved
    said = report.assumptions[0]
    assert said.startswith("30 decisions were made by round_robin, not by the live min_ttft")
    assert f"{report.moved} of the moves are theirs" in said


def test_what_rescoring_cannot_see_is_said():
    live = conductor()
    changes = {"breaker.open_s": 12.0, "policy": "weighted"}
    report = preview(traffic(live, count=30), live.tunables, live.tunables.changed(changes))
    text = "\n".join(report.assumptions)
    assert "breaker.open_s" in text
    assert "network" in text and "compute" in text and "waiting" in text


@pytest.mark.parametrize(
    "policy", ["min_ttft", "linear", "multiplicative", "least_loaded", "least_prefill_work",
               "dynamo_linear", "pstack_loadaware", "smg_cache_aware", "round_robin"]
)  # fmt: skip
def test_records_reproduce_the_totals_of_the_decision(policy):
    """Rebuilt candidates score as the live ones did, to the digits that records keep."""
    live = conductor(policy=policy)
    for stored in traffic(live, count=40)[5:]:
        r = recorded(stored)
        assert r is not None and set(r.columns) == set(COLUMNS)
        if policy == "round_robin":
            continue
        found, _ = totals(r, live.tunables, Context(mean_prefill_s=0.1, rng=random.Random(0)))
        if policy == "dynamo_linear":  # in-flight tokens are not kept: queued ones stand in
            continue
        stored_totals = [c.total for c in _table(stored).rows]
        assert found.tolist() == pytest.approx(stored_totals, rel=2e-3, abs=2e-3)


def _table(stored):
    from core.audit_json import candidates_from_json

    return candidates_from_json(stored.decision.candidates)


def test_refused_decisions_are_left_out_and_counted():
    live = conductor(nodes=1)
    refused = live.decide(Request(id=RequestId("x"), model="other", prompt_tokens=10), 0.0)
    window = [StoredDecision(decision_record(refused, AT)), *traffic(live, count=5)]
    report = preview(window, live.tunables, live.tunables.changed({"policy": "linear"}))
    assert [e.changed for e in report.effects] == [report.moved]  # one change did all of it
    assert (report.decisions, report.left_out) == (5, 1)


def test_an_empty_window_is_answered_plainly():
    report = preview([], Tunables(), Tunables().changed({"linear.alpha": 0.1}))
    assert report.decisions == 0 and report.after.hit is None
    assert report.effects[0].text == "there is nothing to judge by"

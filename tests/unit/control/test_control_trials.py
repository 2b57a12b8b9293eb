"""Shadow budget and tally, canary sides and intervals, lending a configuration."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from msgspec.structs import replace

from core.conductor import Conductor
from core.control.canary import BUCKETS, MEASURES, Canary, Sums, jackknife
from core.control.shadow import Budget, Tally
from core.control.trials import lent, tried
from core.domain import (
    Decision,
    EngineKind,
    Health,
    NodeId,
    NodeSpec,
    Outcome,
    OutcomeKind,
    Request,
    RequestId,
)
from core.errors import Invalid
from core.tunables import Shadow as Rules
from core.tunables import Tunables


def conductor(nodes: int = 4, **changes) -> Conductor:
    made = Conductor(tunables=Tunables().changed(changes), rng=random.Random(1))
    for n in range(nodes):
        spec = NodeSpec(id=NodeId(f"n{n}"), url="http://x", engine=EngineKind.EMULATED,
                        models=("m",), kv_capacity_tokens=1_000_000)  # fmt: skip
        made.register(spec, 0.0)
        made.set_health(spec.id, Health.HEALTHY, 0.0)
    return made


def request(n: int, session: str = "") -> Request:
    return Request(id=RequestId(f"r{n}"), model="m", prompt_tokens=100, session=session)


# -- shadow ------------------------------------------------------------------------------------


def test_the_budget_is_never_overdrawn_by_more_than_one_scoring():
    rng, budget, rules = random.Random(3), Budget(), Rules(cost_share_max=0.3)
    scored = 0
    for _ in range(5000):
        if budget.allows(rng.uniform(50e-6, 150e-6), rules, lag_s=0.0):
            budget.spent(rng.uniform(50e-6, 200e-6))
            scored += 1
    assert budget.spent_s <= 0.3 * budget.decided_s + 200e-6
    assert scored > 500 and scored + budget.shed == 5000


def test_a_late_loop_sheds_the_shadow_first():
    budget, rules = Budget(), Rules(lag_max_s=0.02, cost_share_max=1.0)
    assert not any(budget.allows(1e-3, rules, lag_s=0.05) for _ in range(100))
    assert budget.allows(1e-3, rules, lag_s=0.0)
    assert budget.shed == 100


def test_no_share_scores_nothing():
    budget = Budget()
    assert not any(budget.allows(1e-3, Rules(cost_share_max=0.0), lag_s=0) for _ in range(50))


def test_the_tally_counts_agreement_and_moves():
    live, tally = conductor(policy="round_robin"), Tally()
    made = [live.decide(request(n), 0.0) for n in range(2)]
    tally.add(made[0], made[0])
    while made[1].prefill == made[0].prefill:
        made[1] = live.decide(request(9), 0.0)
    tally.add(made[0], made[1])
    assert (tally.scored, tally.agreed) == (2, 1)
    assert tally.moves == Counter({(made[0].prefill, made[1].prefill): 1})
    assert tally.live.placed == 2 and tally.live.hit == 0.0


# -- lending -----------------------------------------------------------------------------------


def test_lending_decides_under_the_other_and_leaves_no_trace():
    one, two = conductor(policy="random"), conductor(policy="random")
    other = Tunables().changed({"policy": "least_loaded"})
    with lent(one, other, 7, silent=random.Random(0)):
        assert one.decide(request(0), 0.0).revision == 7
    assert one.tunables.policy == one.policy.name == "random" and one.revision == 1
    picks = [[c.decide(request(n), 0.0).prefill for n in range(50)] for c in (one, two)]
    assert picks[0] == picks[1], "the draws of real decisions are those without a shadow"


def test_lending_ends_where_a_decision_fails():
    live = conductor()
    with pytest.raises(RuntimeError), lent(live, Tunables().changed({"policy": "linear"}), 9):
        raise RuntimeError
    assert (live.revision, live.policy.name) == (1, "min_ttft")


@pytest.mark.parametrize("path", ["breaker.open_s", "guard.time_s", "slo.ttft_s", "hotspot.open_s"])
def test_what_belongs_to_the_fleet_cannot_be_tried(path):
    with pytest.raises(Invalid, match="whole fleet") as caught:
        tried(Tunables(), {path: 12.5})
    assert caught.value.field == path


# -- canary ------------------------------------------------------------------------------------


def test_a_session_stays_on_one_side_and_the_share_holds():
    canary = Canary(number=5, share=0.2)
    sides = {s: {canary.takes(request(n, s)) for n in range(20)} for s in map(str, range(3000))}
    assert all(len(side) == 1 for side in sides.values())
    share = sum(True in side for side in sides.values()) / 3000
    assert share == pytest.approx(0.2, abs=0.03)
    again = Canary(number=6, share=0.2)
    moved = [canary.takes(request(0, s)) != again.takes(request(0, s)) for s in sides]
    assert any(moved), "another canary draws other sessions"


def finish(canary: Canary, live: Conductor, *, sessions: int, slow: float, seed: int) -> None:
    rng = random.Random(seed)
    placed = live.decide(request(0), 0.0)
    assert isinstance(placed, Decision)
    for s in range(sessions):
        base = rng.lognormvariate(-1, 0.3)
        for n in range(4):
            r = request(n, f"s{seed}-{s}")
            takes = canary.takes(r)
            d = replace(placed, request=r, revision=canary.number if takes else 1)
            canary.decided(r, d.revision, d)
            ttft = base * (slow if takes else 1.0)
            outcome = Outcome(kind=OutcomeKind.OK, ttft_s=ttft, tbt_s=0.02)
            canary.finished(d, outcome, good=ttft < 1.0)


def test_a_slower_candidate_is_called_worse_and_an_equal_one_is_not():
    live = conductor()
    worse = Canary(number=5, share=0.5)
    finish(worse, live, sessions=300, slow=2.0, seed=1)
    found = {c.name: c for c in worse.compare()}
    assert found["ttft_s"].verdict == "worse" and found["ttft_s"].low > 0
    assert found["tbt_s"].verdict == "no difference shown"
    equal = Canary(number=5, share=0.5)
    finish(equal, live, sessions=300, slow=1.0, seed=2)
    assert {c.name: c for c in equal.compare()}["ttft_s"].verdict == "no difference shown"


def test_an_interval_holds_the_truth_about_as_often_as_it_says():
    """Both sides are alike, so the interval should hold 0 in at least 90 of 100 trials."""
    live, held = conductor(1), 0
    for seed in range(100):
        canary = Canary(number=seed + 10, share=0.5)
        finish(canary, live, sessions=60, slow=1.0, seed=seed)
        ttft = next(c for c in canary.compare() if c.name == "ttft_s")
        held += ttft.low <= 0.0 <= ttft.high
    assert held >= 90


def test_too_few_requests_say_so():
    canary = Canary(number=5, share=0.5)
    finish(canary, conductor(), sessions=3, slow=3.0, seed=1)
    assert {c.verdict for c in canary.compare()} == {"too few requests"}


def test_the_jackknife_of_a_mean_is_the_classical_error():
    value, _ = MEASURES["ttft_s"]
    draws = [random.Random(n).random() for n in range(BUCKETS)]
    estimate = jackknife([Sums(ttft_s=x, ttft_count=1) for x in draws], value)
    mean = sum(draws) / BUCKETS
    variance = sum((x - mean) ** 2 for x in draws) / (BUCKETS - 1)
    assert estimate.value == pytest.approx(mean)
    assert estimate.error == pytest.approx(math.sqrt(variance / BUCKETS))


def test_aborts_and_refused_requests_count_for_neither_side():
    canary, live = Canary(number=5, share=0.5), conductor()
    d = live.decide(request(0), 0.0)
    for kind in (OutcomeKind.CLIENT_ABORT, OutcomeKind.REFUSED):
        canary.finished(d, Outcome(kind=kind), good=False)
    assert canary.live.total().finished == canary.candidate.total().finished == 0

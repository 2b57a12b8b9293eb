from __future__ import annotations

import math

import pytest

from core.domain import BlockKey, Slot
from core.index.types import HotPrefix
from core.plan.budget import Bucket
from core.plan.migration import MigrationNode, MigrationPlanner
from core.tunables import Migration

KEY = BlockKey(0xBEEF)
COST = (0.0, 1e-4, 0.0)


def hot(rate: float = 10.0, tokens: int = 6000, holders=(0,), key: int = KEY) -> HotPrefix:
    return HotPrefix(
        key=BlockKey(key),
        depth_blocks=tokens // 16,
        tokens=tokens,
        rate_per_s=rate,
        hits=100,
        holders=tuple(Slot(h) for h in holders),
    )


def fleet(*loads: float, **extra) -> list[MigrationNode]:
    return [
        MigrationNode(
            slot=Slot(i),
            load=load,
            queue_s=10.0 * load,
            room_tokens=extra.get("room", 1e6),
            prefill=COST,
            pool=extra.get("pool", ""),
            receives=i not in extra.get("closed", ()),
        )
        for i, load in enumerate(loads)
    ]


SKEWED = fleet(0.9, 0.2, 0.1, 0.3)


def planner(now: float = 0.0, **rules: float) -> MigrationPlanner:
    return MigrationPlanner(Migration(**rules), now)  # type: ignore[arg-type]


def scan(p: MigrationPlanner, prefixes, nodes=SKEWED, now: float = 0.0, **extra):
    return p.scan(prefixes, nodes, now, move_s=extra.pop("move_s", lambda *_: 0.1), **extra)


def test_a_hot_prefix_on_a_loaded_holder_goes_to_the_idlest_node():
    (plan,) = scan(planner(), [hot()]).plans
    assert (plan.key, plan.source, plan.target, plan.tokens) == (KEY, 0, 2, 6000)
    assert (plan.source_load, plan.target_load) == (0.9, 0.1)
    assert plan.mean_load == pytest.approx(0.375)
    # Without a replica a request waits 9 s at node 0, or 1 s at node 2 and computes for 0.6 s.
    assert plan.saved_s == pytest.approx(0.6)
    # Half of 10 a second over a minute.
    assert plan.benefit_s == pytest.approx(60 * 10 / 2 * 0.6 - 0.1)


@pytest.mark.parametrize(
    ("prefix", "reason"),
    [
        (hot(rate=0.4), "not_hot"),
        (hot(tokens=511), "too_short"),
        (hot(holders=()), "no_live_holder"),
        (hot(holders=(9,)), "no_live_holder"),
        (hot(holders=(0, 1, 2, 3)), None),
    ],
)
def test_what_is_not_worth_a_replica(prefix: HotPrefix, reason: str | None):
    got = scan(planner(), [prefix])
    assert got.plans == ()
    assert dict(got.held_back) == ({} if reason is None else {reason: 1})


def test_an_idle_holder_needs_no_replica():
    assert scan(planner(), [hot(holders=(0, 2))]).plans == ()


def test_load_must_exceed_the_ratio():
    nodes = fleet(0.5, 0.4, 0.4, 0.4)  # mean 0.425, holder at 1.18 times
    assert scan(planner(), [hot()], nodes).plans == ()
    assert len(scan(planner(load_ratio=1.1), [hot()], nodes).plans) == 1


def test_targets_need_room_health_and_the_same_pool():
    assert scan(planner(), [hot()], fleet(0.9, 0.1, room=5999)).held_back == {"no_target": 1}
    (plan,) = scan(planner(), [hot()], fleet(0.9, 0.2, 0.1, closed=(2,))).plans
    assert plan.target == 1
    apart = fleet(0.9, 0.8)[:1] + fleet(0.0, 0.1, pool="other")[1:]
    assert scan(planner(), [hot()], apart).plans == ()


def test_a_move_that_costs_more_than_it_saves_is_not_planned():
    got = scan(planner(), [hot()], move_s=lambda *_: 1000.0)
    assert got.held_back == {"no_benefit": 1}
    assert scan(planner(), [hot()], move_s=lambda *_: math.inf).plans == ()


def test_the_better_reachable_target_wins():
    far = {2: 500.0}
    (plan,) = scan(planner(), [hot()], move_s=lambda _, __, target: far.get(target, 0.1)).plans
    assert plan.target == 1


def test_never_two_at_once_for_one_prefix_and_target():
    p = planner()
    plans = [scan(p, [hot()]).plans[0] for _ in range(3)]
    assert [(plan.target, plan.copies) for plan in plans] == [(2, 1), (1, 2), (3, 3)]
    got = scan(p, [hot()])
    assert got.plans == () and got.held_back == {"backoff": 1}
    assert len(p.running) == 3


def test_success_pauses_and_failures_back_off_doubling():
    p = planner(backoff_s=30.0)
    nodes = fleet(0.9, 0.1)
    now, waits = 0.0, []
    for _ in range(4):
        (plan,) = scan(p, [hot()], nodes, now).plans
        p.finished(plan, now, ok=False)
        start = now
        while not scan(p, [hot()], nodes, now, dry_run=True).plans:
            now += 1.0
        waits.append(now - start)
    assert waits == [30.0, 60.0, 120.0, 240.0]
    (plan,) = scan(p, [hot()], nodes, now).plans
    p.finished(plan, now, ok=True)
    assert scan(p, [hot()], nodes, now + 29.9).plans == ()
    assert len(scan(p, [hot()], nodes, now + 30.0).plans) == 1


def test_replica_cap_counts_running_plans():
    p = planner(replicas_max=2)
    assert len(scan(p, [hot()]).plans) == 1
    assert scan(p, [hot()]).held_back == {"replicas_max": 1}


def test_token_budget_limits_and_refills():
    p = planner(budget_tokens_per_s=1000.0, plans_per_minute=1000)
    keys = [hot(key=k) for k in range(1, 6)]
    first = scan(p, keys)  # ten seconds of budget are saved up: one plan of 6000 tokens fits
    assert (len(first.plans), first.held_back) == (1, {"budget": 4})
    assert len(scan(p, keys, now=1.9).plans) == 0
    assert len(scan(p, keys, now=2.0).plans) == 1


def test_rate_limit():
    p = planner(plans_per_minute=3)
    got = scan(p, [hot(key=k) for k in range(1, 10)])
    assert (len(got.plans), got.held_back) == (3, {"rate_limit": 6})
    assert len(scan(p, [hot(key=k) for k in range(11, 20)], now=20.0).plans) == 1


def test_best_benefit_is_served_first():
    p = planner(plans_per_minute=1)
    (plan,) = scan(p, [hot(rate=1.0, key=1), hot(rate=20.0, key=2), hot(rate=5.0, key=3)]).plans
    assert plan.key == 2


def test_dry_run_changes_nothing():
    p = planner(plans_per_minute=1)
    for _ in range(3):
        assert len(scan(p, [hot()], dry_run=True).plans) == 1
    assert p.running == ()
    assert len(scan(p, [hot()]).plans) == 1


def replicated() -> MigrationPlanner:
    p = planner()
    (plan,) = scan(p, [hot()]).plans
    p.finished(plan, 0.0, ok=True)
    assert p.replicas == ((KEY, 2),)
    return p


def test_a_replica_is_dropped_a_window_after_it_cooled():
    p = replicated()
    assert scan(p, [hot(rate=0.3)], now=100.0).drops == ()
    assert scan(p, [], now=159.9).drops == ()
    (drop,) = scan(p, [], now=160.0).drops
    assert (drop.key, drop.target, drop.held_s) == (KEY, 2, 160.0)
    assert p.replicas == ()
    assert scan(p, [], now=500.0).drops == ()


def test_the_index_own_rate_counts_when_it_can_tell():
    p = replicated()
    assert scan(p, [], now=1000.0, rate_of=lambda _: 5.0).drops == ()
    assert len(scan(p, [], now=1060.0, rate_of=lambda _: 0.1).drops) == 1


def test_a_node_that_left_takes_its_plans_and_replicas_along():
    p = replicated()
    p.forget_node(Slot(2))
    assert p.replicas == ()
    (plan,) = scan(p, [hot()], now=1.0).plans
    p.forget_node(plan.source)
    assert p.running == ()
    p.finished(plan, 2.0, ok=True)  # late news of a void plan
    assert p.replicas == ()


def test_cancel_pauses():
    p = planner()
    (plan,) = scan(p, [hot()]).plans
    p.cancel(plan, 1.0)
    assert p.running == ()
    (other,) = scan(p, [hot()], now=2.0).plans
    assert other.target != plan.target


def test_a_plan_never_reported_counts_as_failed():
    p = planner()
    (plan,) = scan(p, [hot()]).plans
    scan(p, [], now=299.0)
    assert p.running == (plan,)
    scan(p, [], now=301.0)
    assert p.running == () and p.replicas == ()


def test_bucket_pays_one_dear_item_and_then_the_debt():
    b = Bucket(rate_per_s=10.0, burst=100.0, now=0.0)
    assert b.spend(500.0, 0.0)
    assert b.available(0.0) == -400.0
    assert not b.spend(1.0, 40.0)
    assert b.spend(1.0, 40.2)


def test_bucket_never_holds_more_than_its_burst():
    b = Bucket(rate_per_s=10.0, burst=100.0, now=0.0)
    assert b.available(1e6) == 100.0
    assert not Bucket(rate_per_s=0.0, burst=0.0, now=0.0).spend(1.0, 1e9)

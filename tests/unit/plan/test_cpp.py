from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from core.domain import Place
from core.plan.cpp import CppModel, CppNode, plan, wanted
from core.plan.cpp_plan import CppPlan, explain
from core.plan.crowding import ArrivalRate, Traffic, others_delay_s
from core.plan.pipeline import chunk_times, equal_cost_chunks, finish_times, layer_shares
from core.tunables import Cpp

# LLaMA3-70B on 8xA800 at half of the peak: F eq. 1 over 1.248e15 FLOP/s.
C1 = 80 * 22 * 8192**2 / 1.248e15
C2 = 80 * 4 * 8192 / 1.248e15
MODEL = CppModel(layers=80, kv_bytes_per_token=327_680, hidden_bytes_per_token=16_384)
BANDWIDTH = 100e9


def links(slots: int = 16, *, latency: float = 0.0, per_byte: float = 1 / BANDWIDTH):
    def row(source: int):
        lat, cost = np.full(slots, latency), np.full(slots, per_byte)
        lat[source] = cost[source] = 0.0
        return lat, cost

    return row


def node(slot: int, queue_s: float = 0.0, match: int = 0, rack: str = "", **extra) -> CppNode:
    place = extra.pop("place", Place(rack=rack))
    return CppNode(
        slot=slot,
        prefill=extra.pop("prefill", (0.0, C1, C2)),
        queue_s=queue_s,
        match_tokens=match,
        place=place,
    )


def single_s(tokens: int, prefix: int = 0, queue_s: float = 0.0) -> float:
    total = tokens + prefix
    return queue_s + C1 * tokens + C2 * (total**2 - prefix**2)


def make(nodes, tokens=100_000, prefix=0, *, rules: Cpp | None = None, **extra) -> CppPlan | None:
    best_queue = min(n.queue_s for n in nodes)
    return plan(
        nodes,
        uncached_tokens=tokens,
        prefix_tokens=prefix,
        source=extra.pop("source", nodes[0].slot),
        model=MODEL,
        links=extra.pop("links", links()),
        single_queue_s=best_queue,
        single_ttft_s=extra.pop("single_ttft_s", single_s(tokens, prefix, best_queue)),
        ttft_slo_s=extra.pop("ttft_slo_s", 30.0),
        rules=rules or Cpp(),
        **extra,
    )


# -- chunks and recurrence -----------------------------------------------------------------------


def test_chunks_cost_the_same_and_get_shorter():
    chunks = equal_cost_chunks(100_000, 20_000, 8, c1=C1, c2=C2)
    times = chunk_times((0.0, C1, C2), 1.0, 20_000, chunks)
    assert chunks.sum() == 100_000
    assert (np.diff(chunks) < 0).all()
    assert times.max() / times.min() < 1.001
    assert times.sum() == pytest.approx(single_s(100_000, 20_000))


def test_chunks_without_attention_are_even():
    assert equal_cost_chunks(1000, 500, 4, c1=1e-4, c2=0.0).tolist() == [250] * 4


def test_as_many_chunks_as_tokens():
    assert equal_cost_chunks(5, 1_000_000, 5, c1=C1, c2=C2).tolist() == [1] * 5


def naive_finish(times, ready, handoff):
    finish = {}
    for s, row in enumerate(times):
        for j, work in enumerate(row):
            before = finish[s - 1, j] + handoff[s][j] if s else 0.0
            own = finish[s, j - 1] if j else ready[s]
            finish[s, j] = max(before, own) + work
    return [[finish[s, j] for j in range(len(row))] for s, row in enumerate(times)]


def test_finish_times_equal_the_recurrence():
    rng = random.Random(1)
    for _ in range(200):
        stages, count = rng.randint(1, 5), rng.randint(1, 12)
        draw = [[rng.random() for _ in range(count)] for _ in range(2 * stages)]
        ready = [rng.random() * 3 for _ in range(stages)]
        times, handoff = draw[:stages], draw[stages:]
        got = finish_times([np.array(t) for t in times], ready, [np.array(h) for h in handoff])
        assert np.allclose(got, naive_finish(times, ready, handoff))


def test_a_small_pipeline_by_hand():
    # Two stages, three chunks of 2 s each, handoff 0.5 s: 2 + 0.5 + 3 * 2.
    two = np.array([2.0, 2.0, 2.0])
    got = finish_times([two, two], [0.0, 0.0], [two * 0, two * 0 + 0.5])
    assert got[1].tolist() == [4.5, 6.5, 8.5]


@pytest.mark.parametrize(
    ("speeds", "layers", "shares"),
    [([1, 1], 80, [40, 40]), ([1, 1, 1], 80, [27, 27, 26]), ([3, 1], 80, [60, 20]),
     ([1000, 1], 4, [3, 1]), ([1, 1, 1, 1], 4, [1, 1, 1, 1])],
)  # fmt: skip
def test_layer_shares(speeds, layers, shares):
    assert layer_shares(speeds, layers) == shares


# -- when ----------------------------------------------------------------------------------------


def test_wanted():
    rules = Cpp(uncached_tokens_min=32768)
    assert wanted(1000, 31.0, 30.0, rules) == "ttft_slo"
    assert wanted(32768, 5.0, 30.0, rules) == "long_prompt"
    assert wanted(32767, 30.0, 30.0, rules) == ""


def test_a_short_prompt_gets_no_plan():
    assert make([node(i) for i in range(8)], tokens=20_000) is None


def test_one_node_is_no_group():
    assert make([node(0)]) is None


def test_128k_on_one_node_takes_over_30_s_and_a_group_of_four_a_quarter():
    tokens = 128 * 1024
    found = make([node(i) for i in range(8)], tokens=tokens)
    assert found is not None
    assert found.single_ttft_s > 30.0 and found.reason == "ttft_slo"
    assert len(found.stages) == 4
    assert found.ttft_s < 0.28 * found.single_ttft_s
    assert found.gain > 0.72


# -- what ----------------------------------------------------------------------------------------


def test_the_plan_is_consistent():
    found = make([node(i, queue_s=i * 0.5) for i in range(8)], tokens=90_000, prefix=10_000)
    assert found is not None
    assert sum(found.chunks) == found.uncached_tokens == 90_000
    assert max(found.chunks) <= 8192
    assert sum(s.layers for s in found.stages) == 80
    assert found.ttft_s == found.stages[-1].end_s
    assert sum(s.work_s for s in found.stages) == pytest.approx(single_s(90_000, 10_000))
    assert 0.0 < found.bubble_share < 0.5
    for stage in found.stages:
        assert stage.start_s >= stage.queue_s
        assert stage.end_s - stage.start_s >= stage.work_s - 1e-9


def test_bytes_and_sequence_parallelism():
    found = make([node(i) for i in range(4)], rules=Cpp(group_max=2), tokens=100_000)
    assert found is not None
    assert found.sp_allreduces == 160
    assert found.handoff_bytes == 100_000 * 16_384
    assert found.sp_bytes == 160 * 2 * 100_000 * 16_384
    assert found.gather_bytes == 100_000 * 327_680 / 2
    assert found.prefix_bytes == 0


def test_members_fetch_only_their_layers_of_the_prefix_they_lack():
    nodes = [node(0, match=40_000), node(1, match=30_000)]
    found = make(nodes, tokens=80_000, prefix=40_000, source=0)
    assert found is not None
    assert [s.fetch_tokens for s in found.stages] == [0, 10_000]
    assert found.prefix_bytes == 10_000 * 327_680 / 2
    assert found.home == 0


def test_slow_links_delay_the_start_until_a_plan_does_not_pay():
    nodes = [node(0, match=100_000), node(1)]
    fast = make(nodes, tokens=50_000, prefix=100_000, source=0)
    assert fast is not None
    slow = make(nodes, tokens=50_000, prefix=100_000, source=0, links=links(per_byte=1 / 1e9))
    assert slow is None


def test_unreachable_members_are_not_planned():
    assert make([node(0), node(1)], links=links(latency=math.inf)) is None


def test_queues_count():
    idle = make([node(i) for i in range(4)], rules=Cpp(group_max=2))
    queued = make([node(i, queue_s=4.0) for i in range(4)], rules=Cpp(group_max=2))
    assert idle is not None and queued is not None
    assert queued.ttft_s == pytest.approx(idle.ttft_s + 4.0, rel=0.01)


def test_busy_nodes_are_left_out():
    nodes = [node(i, queue_s=0.0 if i in (2, 5, 6, 7) else 4.5) for i in range(8)]
    found = make(nodes)
    assert found is not None
    assert {s.slot for s in found.stages} == {2, 5, 6, 7}


def test_members_do_not_start_farther_apart_than_the_slack():
    nodes = [node(0), node(1, queue_s=6.0), node(2, queue_s=6.0)]
    found = make(nodes, tokens=200_000, rules=Cpp(slack_s=5.0), source=0)
    assert found is None
    assert make(nodes, tokens=200_000, rules=Cpp(slack_s=6.0), source=0) is not None


def test_a_gain_below_the_least_is_refused():
    nodes = [node(0), node(1)]
    assert make(nodes, rules=Cpp(gain_min=0.45)) is not None
    assert make(nodes, rules=Cpp(gain_min=0.51)) is None


def test_the_same_rack_is_preferred_until_the_rest_is_clearly_better():
    near = [node(i, rack="a", queue_s=0.3) for i in (0, 1)]
    far = [node(2, rack="b"), node(3, rack="c")]
    found = make([*near, *far], rules=Cpp(group_max=2))
    assert found is not None
    assert ({s.slot for s in found.stages}, found.distance) == ({0, 1}, 0)
    near = [node(i, rack="a", queue_s=3.0) for i in (0, 1)]
    found = make([*near, *far], rules=Cpp(group_max=2))
    assert found is not None
    assert ({s.slot for s in found.stages}, found.distance) == ({2, 3}, 1)


def test_the_same_zone_is_preferred_to_elsewhere():
    places = [("a", "1"), ("a", "2"), ("b", "3"), ("b", "4")]
    nodes = [node(i, place=Place(zone=z, rack=r)) for i, (z, r) in enumerate(places)]
    found = make(nodes, rules=Cpp(group_max=2))
    assert found is not None and found.distance == 1
    found = make(nodes, rules=Cpp(group_max=4))
    assert found is not None and found.distance == 2 and len(found.stages) == 4


def test_slower_members_hold_fewer_layers():
    nodes = [node(0), node(1, prefill=(0.0, 3 * C1, 3 * C2))]
    found = make(nodes)
    assert found is not None
    assert {s.slot: s.layers for s in found.stages} == {0: 60, 1: 20}
    assert found.ttft_s < 0.8 * found.single_ttft_s


def test_overhead_makes_fewer_chunks():
    plain = make([node(i) for i in range(2)])
    costly = make([node(i, prefill=(0.1, C1, C2)) for i in range(2)])
    assert plain is not None and costly is not None
    assert len(costly.chunks) < len(plain.chunks)


# -- what it costs others --------------------------------------------------------------------------


CALM = Traffic(arrivals_per_s=1.0, mean_prefill_s=1.0)
MIDDLING = Traffic(arrivals_per_s=2.2, mean_prefill_s=1.0)
BUSY = Traffic(arrivals_per_s=7.0, mean_prefill_s=1.0)


def test_a_busy_fleet_gets_smaller_groups_or_none():
    nodes = [node(i, queue_s=1.0) for i in range(8)]
    calm, busy = make(nodes, traffic=CALM), make(nodes, traffic=BUSY)
    assert calm is not None and len(calm.stages) == 4
    assert busy is None
    unweighted = make(nodes, traffic=BUSY, rules=Cpp(others_weight=0.0))
    assert unweighted is not None and unweighted.others_delay_s > 30.0


def test_the_sooner_free_member_goes_first_and_its_wait_counts_as_idle():
    nodes = [node(0, queue_s=4.0), node(1), node(2, queue_s=60.0)]
    found = make(nodes, tokens=80_000, source=0, rules=Cpp(others_weight=0.0))
    assert found is not None
    first, second = found.stages
    assert (first.slot, second.slot) == (1, 0)
    assert found.idle_s == pytest.approx(first.idle_s + second.idle_s)
    assert first.idle_s == pytest.approx(0.0, abs=1e-6)


def test_idle_time_of_members_makes_a_plan_dearer():
    # Chunks reach the second member only after a slow handoff: it idles, and others pay for it.
    nodes = [node(i) for i in range(4)]
    rules = Cpp(group_max=2)
    fast = make(nodes, rules=rules, traffic=BUSY)
    slow = make(nodes, rules=rules, traffic=BUSY, links=links(latency=2.0))
    free = make(nodes, rules=Cpp(group_max=2, others_weight=0.0), links=links(latency=2.0))
    assert fast is None and slow is None and free is not None
    assert free.idle_s > 2.0
    waits = {}
    for name, latency in (("short", 0.0), ("long", 2.0)):
        found = make(nodes, rules=rules, traffic=MIDDLING, links=links(latency=latency))
        assert found is not None
        waits[name] = found.others_delay_s
    assert waits["long"] > waits["short"] > 0.0


def test_nobody_waits_while_the_rest_can_carry_the_traffic():
    spans = [(0.0, 10.0)] * 4
    assert others_delay_s(spans, nodes=8, backlog_s=0.0, traffic=Traffic(
        arrivals_per_s=4.0, mean_prefill_s=1.0)) == 0.0  # fmt: skip


def test_fluid_by_hand():
    # 8 nodes, 7 arriving, 2 reserved for 4 s: backlog grows 1 a second to 4 (area 8), then
    # drains at 1 a second (area 8): 16 * 7 / 8 request-seconds.
    t = Traffic(arrivals_per_s=7.0, mean_prefill_s=1.0)
    got = others_delay_s([(0.0, 4.0)] * 2, nodes=8, backlog_s=0.0, traffic=t)
    assert got == pytest.approx(14.0)


def test_fluid_equals_small_steps():
    rng = random.Random(3)
    for _ in range(20):
        spans = [(a, a + rng.random() * 5) for a in (rng.random() * 3 for _ in range(3))]
        t = Traffic(arrivals_per_s=rng.random() * 8, mean_prefill_s=0.9)
        backlog = start = rng.random() * 6
        area, dt = 0.0, 1e-3
        for i in range(300_000):
            m = sum(a <= i * dt < b for a, b in spans)
            backlog = max(backlog + (t.busy_nodes - (8 - m)) * dt, 0.0)
            area += backlog * dt
            if not backlog and i * dt > 9:
                break
        got = others_delay_s(spans, nodes=8, backlog_s=start, traffic=t)
        assert got == pytest.approx(t.arrivals_per_s / 8 * area, rel=0.02, abs=0.02)


def test_arrival_rate_learns_and_forgets():
    rate = ArrivalRate(window_s=60.0)
    assert rate.per_s(0.0) == 0.0
    for i in range(600):
        rate.add(i * 0.1)
    assert rate.per_s(60.0) == pytest.approx(10.0, rel=0.02)
    assert rate.per_s(360.0) < 0.1


# -- against brute force -----------------------------------------------------------------------


def brute_force(nodes, tokens: int, sizes) -> float:
    """Least TTFT over every ordered group and many chunk counts, by the naive recurrence."""
    best = math.inf
    for size in sizes:
        for members in itertools.permutations(nodes, size):
            shares = layer_shares([1 / n.prefill[1] for n in members], 80)
            for count in (13, 20, 40, 80, 150):
                chunks = equal_cost_chunks(tokens, 0, count, c1=C1, c2=C2)
                times = [
                    chunk_times(n.prefill, s / 80, 0, chunks).tolist()
                    for n, s in zip(members, shares, strict=True)
                ]
                handoff = [[c * 16_384 / BANDWIDTH for c in chunks.tolist()]] * size
                finish = naive_finish(times, [n.queue_s for n in members], handoff)
                best = min(best, finish[-1][-1])
    return best


@pytest.mark.parametrize("seed", range(6))
def test_within_three_per_cent_of_brute_force(seed: int):
    rng = random.Random(seed)
    nodes = [node(i, queue_s=rng.random() * 5) for i in range(4)]
    found = make(nodes, tokens=70_000, rules=Cpp(group_max=3, gain_min=0.0, slack_s=600.0))
    assert found is not None
    assert found.ttft_s <= 1.03 * brute_force(nodes, 70_000, (2, 3))


# -- words -------------------------------------------------------------------------------------


def test_explanation_names_everything_that_counts():
    nodes = [node(0, match=20_000), node(1), node(2)]
    found = make(nodes, tokens=100_000, prefix=20_000, source=0)
    assert found is not None
    text = explain(found, lambda slot: f"gpu-{slot}")
    assert "3 nodes for 100000 uncached tokens after a cached prefix of 20000" in text
    assert "160 all-reduces" in text
    assert f"TTFT {found.ttft_s:.2f} s against {found.single_ttft_s:.2f} s" in text
    assert f"bubble {found.bubble_share:.1%}" in text
    assert all(f"gpu-{i}" in text for i in range(3))

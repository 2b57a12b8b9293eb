"""Each policy on literals that can be checked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from policy_cases import best, candidates, total

from core.errors import NotFound
from core.policy import get_policy, policy_names
from core.tunables import Tunables

S1_MATCH = [6000, 5000, 4096, 2048, 2048]
"""S1 4.3: a prompt of 8000 tokens and five nodes."""


def test_all_policies_are_registered_with_formula_and_source() -> None:
    expected = """dynamo_linear dynamo_lmetric least_loaded least_prefill_work linear
        llmd_default_2026 llmd_weighted min_ttft multiplicative priced_ttft pstack_loadaware
        random round_robin session_affinity size_aware smg_cache_aware vllm_least_loaded
        weighted"""
    assert policy_names() == expected.split()
    for name in policy_names():
        p = get_policy(name)
        assert p.source, name
        assert len(p.doc) > 20, name


def test_policies_named_after_a_peer_say_what_they_leave_out() -> None:
    peers = ("dynamo", "llmd", "pstack", "smg", "vllm")
    for name in policy_names():
        assert bool(get_policy(name).leaves_out) == name.startswith(peers), name


def test_an_unknown_policy_is_answered_with_the_known_ones() -> None:
    with pytest.raises(NotFound, match=r"'nope'.*linear.*weighted"):
        get_policy("nope")


def test_linear_on_the_paper_example_chooses_node_1() -> None:
    c = candidates(5, prompt_tokens=8000, match_tokens=S1_MATCH, load=[0.5, 0.4, 0.4, 0.3, 0.3])
    assert total("linear", c) == pytest.approx([0.625, 0.6125, 0.556, 0.478, 0.478])
    assert best("linear", c) == [0]


def test_linear_weights_are_live() -> None:
    c = candidates(2, match_tokens=[900, 0], load=[1.0, 0.0])
    assert total("linear", c, linear__alpha=1.0, linear__beta=0.0) == pytest.approx([0.9, 0.0])
    assert best("linear", c, linear__alpha=0.0, linear__beta=1.0) == [1]


def test_weighted_sums_its_five_scorers() -> None:
    c = candidates(
        2,
        load=[0.5, 0.0],
        waiting=[50, 0],
        compute=[1.0, 0.5],
        network=[1.0, 0.2],
        resident=[True, False],
    )
    assert total("weighted", c) == pytest.approx([0.15 + 0.1 + 0.2 + 0.15 + 0.15, 0.63])


def test_weighted_survives_a_node_without_queue_limit() -> None:
    assert np.isfinite(total("weighted", candidates(2, queue_max=[0, 0], waiting=[3, 0]))).all()


def test_multiplicative_is_tokens_times_batch() -> None:
    c = candidates(3, match_tokens=[800, 0, 0], queued_tokens=[0, 0, 500], batch=[8, 1, 0])
    assert total("multiplicative", c) == pytest.approx([1600.0, 1000.0, 1500.0], rel=1e-6)
    without = total("multiplicative", c, multiplicative__count_queued=False)
    assert without == pytest.approx([1600.0, 1000.0, 1000.0], rel=1e-6)


def test_multiplicative_lets_the_batch_decide_where_nothing_is_to_compute() -> None:
    cached = candidates(4, match_tokens=[1000] * 4, batch=[7, 1, 0, 200])
    assert np.argsort(total("multiplicative", cached)).tolist() == [2, 1, 0, 3]
    empty = candidates(2, prompt_tokens=0, batch=[3, 2])
    assert best("multiplicative", empty) == [1]


def test_multiplicative_prefers_nothing_to_compute_to_any_idle_node() -> None:
    c = candidates(2, match_tokens=[1000, 999], batch=[256, 0])
    assert best("multiplicative", c) == [0]


def test_multiplicative_options() -> None:
    c = candidates(2, match_tokens=[0, 0], batch=[1, 1], network=[1.0, 0.5], priority_weight=2.0)
    assert total("multiplicative", c) == pytest.approx([2000.0, 2000.0], rel=1e-6)
    far = total("multiplicative", c, multiplicative__network_weight=1.0)
    assert far == pytest.approx([2000.0, 3000.0], rel=1e-6)
    log = total("multiplicative", c, multiplicative__log_tokens=True)
    assert log == pytest.approx([2 * np.log(1001)] * 2, rel=1e-6)


TTFT = {
    "queue_s": [3.0, 0.0, 1.0],
    "transfer_s": [0.0, 0.2, 0.0],
    "prefill_s": [0.5, 2.0, 1.5],
    "fetched_prefill_s": [0.5, 0.6, 1.5],
    "fetch": [False, True, False],
}


def test_min_ttft_costs_fetching_where_the_node_fetches() -> None:
    scores = get_policy("min_ttft").score(candidates(3, **TTFT), Tunables())
    assert scores.total.tolist() == pytest.approx([3.5, 0.8, 2.5])
    assert scores.uses_fetch
    assert scores.terms["transfer"].tolist() == [0.0, 0.2, 0.0]


def test_priced_ttft_multiplies_work_by_the_requests_it_delays() -> None:
    c = candidates(3, **TTFT, mean_queue_s=4.0, mean_prefill_s=1.0)
    assert total("priced_ttft", c) == pytest.approx([3 + 5 * 0.5, 5 * 0.8, 1 + 5 * 1.5])
    assert get_policy("priced_ttft").score(c, Tunables()).uses_fetch


def test_priced_ttft_is_min_ttft_without_queues_or_history() -> None:
    idle = candidates(3, **TTFT, mean_queue_s=0.0, mean_prefill_s=1.0)
    fresh = candidates(3, **TTFT, mean_queue_s=4.0, mean_prefill_s=0.0)
    assert total("priced_ttft", idle) == total("min_ttft", idle)
    assert total("priced_ttft", fresh) == total("min_ttft", fresh)


def test_size_aware_adds_the_delay_of_those_behind() -> None:
    c = candidates(3, **TTFT)
    c.mean_queue_s, c.mean_prefill_s = 6.0, 2.0
    u, x = c.queue_s, c.transfer_s + c.fetched_prefill_s
    assert total("size_aware", c) == pytest.approx(u + x + 0.5 * ((u + x) ** 2 - u**2))
    c.mean_prefill_s = 0.0
    assert total("size_aware", c) == pytest.approx(u + x)


def test_only_the_ttft_policies_cost_fetching() -> None:
    c = candidates(3, **TTFT)
    using = [n for n in policy_names() if get_policy(n).score(c, Tunables()).uses_fetch]
    assert using == ["min_ttft", "priced_ttft", "size_aware"]


def test_least_prefill_work() -> None:
    c = candidates(2, match_tokens=[600, 0], queued_tokens=[700, 0])
    assert total("least_prefill_work", c) == [1100.0, 1000.0]


def test_least_loaded_tells_overlong_queues_apart() -> None:
    c = candidates(3, load=[0.2, 1.0, 1.0], queue_s=[3.0, 90.0, 60.0])
    assert total("least_loaded", c) == pytest.approx([0.2, 3.0, 2.0])


def test_round_robin_takes_the_least_recently_picked() -> None:
    assert best("round_robin", candidates(3, last_picked=[7, 5, 6])) == [1]
    assert best("round_robin", candidates(3, last_picked=[-1, 5, -1])) == [0, 2]


def test_random_ties_all() -> None:
    assert best("random", candidates(4, match_tokens=[900, 0, 0, 0], batch=[9, 0, 0, 0])) == [
        0,
        1,
        2,
        3,
    ]


def test_session_affinity_ignores_load_for_a_session() -> None:
    c = candidates(3, session_hash=[5, 2**61, 7], load=[0.0, 1.0, 0.0])
    assert best("session_affinity", c) == [1]


def test_session_affinity_without_session_is_least_loaded() -> None:
    c = candidates(3, load=[0.4, 0.1, 0.2])
    assert best("session_affinity", c) == best("least_loaded", c) == [1]


def test_dynamo_counts_in_blocks() -> None:
    c = candidates(
        2,
        prompt_tokens=1600,
        match_tokens=[800, 0],
        queued_tokens=[160, 0],
        inflight_tokens=[320, 0],
    )
    assert total("dynamo_linear", c) == pytest.approx([60 + 120, 100 + 100])
    assert total("dynamo_lmetric", c) == pytest.approx([60 * 121, 100 * 101])
    assert total("dynamo_linear", c, dynamo__prefill_load_scale=2.0) == pytest.approx([240, 300])


def test_dynamo_decays_credit_with_excess_load() -> None:
    c = candidates(
        2,
        prompt_tokens=1600,
        match_tokens=[1600, 0],
        queued_tokens=[1600, 0],
        inflight_tokens=[0, 0],
    )
    decayed = total("dynamo_linear", c, dynamo__credit_decay=1.0)
    assert decayed == pytest.approx([(3200 - 800) / 16 + 100, 200])


def test_llmd_weighted_normalises_the_queue_over_the_candidates() -> None:
    c = candidates(
        3, match_tokens=[500, 0, 0], waiting=[4, 2, 0], kv_usage=[0.5, 0.0, 1.0], batch=[9, 9, 9]
    )
    assert total("llmd_weighted", c) == pytest.approx([0 + 1 + 1.5, 1 + 2 + 0, 2 + 0 + 0])
    flat = candidates(2, waiting=[3, 3], kv_usage=[0.0, 0.0])
    assert total("llmd_weighted", flat) == pytest.approx([4.0, 4.0])


def test_llmd_default_stays_with_the_holder_until_it_is_saturated() -> None:
    def case(inflight: float) -> list[int]:
        c = candidates(3, match_tokens=[850, 790, 0], inflight_tokens=[inflight, 10.0, 0.0])
        return best("llmd_default_2026", c)

    assert case(0.0) == [0]
    assert case(18 * 15928.0 - 1) == [0]
    assert case(18 * 15928.0 + 1) == [2]


def test_pstack_weighs_relative_excess() -> None:
    c = candidates(2, match_tokens=[500, 0], batch=[6, 2])
    assert total("pstack_loadaware", c) == pytest.approx([0.5 - 0.5, 0.5])
    assert total("pstack_loadaware", c, pstack_loadaware__beta=0.0) == pytest.approx([0.5, 0.0])


def test_smg_follows_the_cache_only_while_balanced() -> None:
    match = [900, 600, 0]
    assert best("smg_cache_aware", candidates(3, match_tokens=match, batch=[32, 5, 0])) == [0]
    assert best("smg_cache_aware", candidates(3, match_tokens=match, batch=[33, 5, 0])) == [2]
    high = candidates(3, match_tokens=match, batch=[1033, 1000, 1000])
    assert best("smg_cache_aware", high) == [0]


def test_smg_takes_the_shortest_queue_where_little_matches() -> None:
    assert best("smg_cache_aware", candidates(2, match_tokens=[500, 0], batch=[3, 2])) == [1]


def test_vllm_least_loaded_counts_waiting_four_times() -> None:
    c = candidates(2, batch=[10, 4], waiting=[0, 3])
    assert total("vllm_least_loaded", c) == pytest.approx([10, 13])


@pytest.mark.parametrize("name", policy_names())
def test_one_idle_node_and_an_empty_prompt(name: str) -> None:
    c = candidates(1, prompt_tokens=0)
    assert np.isfinite(total(name, c)).all()

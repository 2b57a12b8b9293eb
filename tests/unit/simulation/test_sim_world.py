"""The whole fleet on small generated loads: every part switched on, invariants at the end."""

import numpy as np
import pytest

from core.simulation.generator import Workload, generate
from core.simulation.runner import run_all, run_scenario
from core.simulation.scenario import Failure, Scenario
from core.simulation.tables import to_json
from core.simulation.workload import prepare
from core.simulation.world import World


@pytest.fixture(scope="module")
def mixed():
    return prepare(generate(Workload(mix="mixed", requests=250, rate_per_s=4.0, seed=5)))


def scenario(**changes):
    return Scenario(**({"prefill": 3, "mfu": 0.5, "cache_tokens": 400_000} | changes))


def finished_world(workload, **changes):
    world = World(scenario(**changes), workload)
    world.run()
    return world


VARIANTS = {
    "prefill only": {},
    "no fetching": {"fetch": False},
    "prefill and decode": {"decode": 2},
    "mixed whole": {"prefill": 0, "both": 4},
    "mixed chunked": {"prefill": 0, "both": 4, "chunk_tokens": 1024},
    "mixed beside decode": {"prefill": 1, "both": 2, "decode": 1, "chunk_tokens": 2048},
    "tight cache": {"cache_tokens": 140_000},
    "host tier": {"cache_tokens": 140_000, "host_cache_tokens": 300_000},
    "slow links": {
        "link_gb_s": 4.0,
        "decode": 2,
        "link_latency_s": 0.001,
        "cache_tokens": 3_000_000,
    },
    "pipeline groups": {"cpp": True, "params": {"cpp.uncached_tokens_min": 4096}},
    "groups and decode": {"cpp": True, "decode": 2, "params": {"cpp.uncached_tokens_min": 4096}},
    "hotspot": {"hotspot": True},
    "migration": {"migration": True, "load": 3.0},
    "batching": {"batching": True, "load": 4.0},
    "uneven speeds": {"speeds": (1.0, 0.5, 2.0)},
    "announced blocks": {"announce": True, "load": 5.0},
    "late events": {"event_delay_s": 0.2},
    "think": {"replay": "think", "decode": 1, "cache_tokens": 3_000_000},
    "failure": {"decode": 2, "failures": (Failure(node=1, at_s=10.0, down_s=15.0),)},
    "decode failure": {"decode": 2, "failures": (Failure(node=4, at_s=12.0, down_s=15.0),)},
    "group failure": {
        "cpp": True,
        "params": {"cpp.uncached_tokens_min": 2048},
        "failures": (Failure(node=0, at_s=9.0), Failure(node=2, at_s=30.0, down_s=5.0)),
    },
}


@pytest.mark.parametrize("name", VARIANTS)
def test_everything_ends_and_nothing_leaks(mixed, name):
    world = finished_world(mixed, **VARIANTS[name])
    status = np.array(world.records.status)
    assert (status > 0).all()
    if "failure" not in name:
        assert (status == 1).all()
    world.conductor.ledger.check_integrity()
    assert not world.conductor.ledger.open
    assert not world.conductor.ledger.holds
    ttft = np.array(world.records.ttft_s)[status == 1]
    assert (ttft > 0).all()
    assert (np.array(world.records.cached) < np.array(world.records.prompt)).all()


@pytest.mark.parametrize("name", ["tight cache", "host tier", "pipeline groups", "slow links"])
def test_the_index_knows_exactly_what_the_caches_hold(mixed, name):
    world = finished_world(mixed, **VARIANTS[name])
    size = mixed.block_tokens
    for keys in mixed.keys[::7]:
        row = world.conductor.index.match({size: keys})
        for node in world.nodes:
            assert row[node.slot] == node.cache.match(keys) * size


@pytest.mark.parametrize("changes", [{"decode": 2}, {"policy": "random"}, {"cpp": True}])
def test_same_seed_same_bytes(mixed, changes):
    first, second = (to_json(run_scenario(scenario(**changes), mixed).summary()) for _ in range(2))
    assert first == second


def summary_of(result):
    return to_json(result.summary())


def test_processes_do_not_change_results(mixed):
    scenarios = [scenario(policy="random", seed=seed) for seed in range(3)]
    alone = run_all(scenarios, mixed, workers=1, reduce=summary_of)
    spread = run_all(scenarios, mixed, workers=2, reduce=summary_of)
    assert alone == spread
    assert len(set(alone)) == 3


def test_ttft_on_an_idle_fleet_is_the_cost_models_prefill(mixed):
    quiet = prepare(generate(Workload(mix="api", requests=20, rate_per_s=0.01, seed=1)))
    world = finished_world(quiet, fetch=False)
    c0, c1, c2 = world.scenario.prefill_cost(0)
    for i, length in enumerate(quiet.prompt_tokens):
        cached = world.records.cached[i]
        expected = c0 + c1 * (length - cached) + c2 * (length**2 - cached**2)
        assert world.records.ttft_s[i] == pytest.approx(expected, rel=1e-9)
        assert world.records.predicted_s[i] == pytest.approx(expected, rel=1e-9)


def test_a_fetch_reuses_what_another_node_holds(mixed):
    with_fetch = run_scenario(scenario(policy="round_robin"), mixed).summary()
    without = run_scenario(scenario(policy="round_robin", fetch=False), mixed).summary()
    assert with_fetch["fetched_ratio"] > 0.05
    assert with_fetch["hit_ratio"] > without["hit_ratio"] + 0.05
    assert without["fetched_ratio"] == 0.0


def test_chunks_shorten_the_longest_token_gaps_on_mixed_nodes(mixed):
    def longest_gaps(chunk):
        fleet = scenario(prefill=0, both=5, chunk_tokens=chunk)
        return run_scenario(fleet, mixed).summary()["tbt_ms"]["p90"]

    assert longest_gaps(512) < 0.7 * longest_gaps(0)


def test_load_scales_arrivals_only(mixed):
    slow, fast = (finished_world(mixed, load=load) for load in (1.0, 2.0))
    assert fast.records.arrival_s[-1] == pytest.approx(slow.records.arrival_s[-1] / 2)


def test_think_replay_waits_for_the_previous_turn(mixed):
    world = finished_world(mixed, replay="think", load=1.0)
    r = world.records
    checked = 0
    for i, children in enumerate(mixed.children):
        for child, think_s in children:
            assert r.arrival_s[child] == pytest.approx(r.end_s[i] + think_s)
            checked += 1
    assert checked > 20


def test_a_dead_node_loses_its_cache_and_is_avoided(mixed):
    failure = Failure(node=0, at_s=20.0, down_s=1000.0)
    world = finished_world(mixed, failures=(failure,))
    r = world.records
    after = [r.node[i] for i, at in enumerate(r.arrival_s) if at > 20.0 and r.status[i] == 1]
    assert 0 not in after
    assert sum(a > 1 for a in r.attempts) > 0


def test_early_rejection_keeps_ttft_of_the_admitted_within_the_limit(mixed):
    params = {"slo.ttft_s": 2.0}
    run = run_scenario(scenario(prefill=1, load=3.0, rejecting="early", params=params), mixed)
    summary = run.summary()
    assert summary["rejected"] > 0
    assert summary["ttft_s"]["p99"] < 2.5


def test_progress_can_stop_a_run(mixed):
    stopped = run_scenario(scenario(), mixed, progress=lambda done, total: False)
    assert stopped.stopped
    assert stopped.summary()["unfinished"] > 0


def test_samples_record_each_nodes_queue(mixed):
    run = run_scenario(scenario(samples=20, load=4.0), mixed)
    assert run.samples is not None
    assert len(run.samples.at_s) >= 19
    assert all(len(row) == 3 for row in run.samples.queue_s)
    assert max(map(max, run.samples.queue_s)) > 0

"""A system prompt in 70 % of requests: each planner alone relieves the nodes that hold it."""

import functools
from dataclasses import replace

import numpy as np
import pytest

from core.simulation.cases import hot_prompt_fleet, hot_prompt_trace
from core.simulation.runner import run_scenario
from core.simulation.workload import prepare

pytestmark = pytest.mark.timeout(600)


@functools.cache
def run(**planners):
    workload = prepare(hot_prompt_trace(requests=1200))
    return run_scenario(hot_prompt_fleet(samples=40, **planners), workload)


def hottest_p99_queue_s(result):
    """The largest p99 of queueing time over nodes."""
    queue, node = np.array(result.records.queue_s), np.array(result.records.node)
    return max(np.percentile(queue[node == i], 99) for i in set(node.tolist()))


@pytest.mark.parametrize("planner", ["migration", "hotspot"])
def test_each_planner_cuts_the_hot_nodes_p99_queue(planner):
    assert hottest_p99_queue_s(run(**{planner: True})) < 0.5 * hottest_p99_queue_s(run())


def test_migration_replicates_the_hot_prompt():
    result = run(migration=True)
    replicas = [row[0] for row in result.samples.replicas]
    assert result.summary()["migrations"] > 0
    assert max(replicas) >= 3
    assert [row[0] for row in run().samples.replicas][-1] < max(replicas)


def ttft_s(seed, coming):
    """Mean and p99 TTFT of the greedy policy, with prefixes under way counted or not."""
    scenario = replace(hot_prompt_fleet(), policy="min_ttft")
    scenario = replace(scenario, params={**scenario.params, "batching.coming": coming})
    workload = prepare(hot_prompt_trace(requests=1500, seed=seed))
    times = np.array(run_scenario(scenario, workload).records.ttft_s)
    return np.mean(times), np.percentile(times, 99)


@pytest.mark.parametrize("seed", [1, 3])
def test_counting_prefixes_under_way_shortens_the_tail_and_not_at_the_means_cost(seed):
    mean_s, p99_s = ttft_s(seed, coming=True)
    plain_mean_s, plain_p99_s = ttft_s(seed, coming=False)
    assert mean_s < plain_mean_s and p99_s < 0.9 * plain_p99_s

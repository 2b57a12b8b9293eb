"""load(n) from its signals, on literals."""

import numpy as np
import pytest
from fleet_cases import fleet, spec

from core.domain import NodeId, Telemetry
from core.fleet import load
from core.plan.prefill import fleet_load
from core.tunables import Tunables


@pytest.fixture
def state():
    return fleet(spec("a"), spec("b"))


def test_the_running_prefill_counts_for_what_is_left_of_it(state):
    state.queued_s[0], state.head_s[0], state.head_started_s[0] = 5.0, 2.0, 10.0
    assert load.queue_s(state, 10.0)[0] == 5.0
    assert load.queue_s(state, 11.0)[0] == 4.0
    assert load.queue_s(state, 12.0)[0] == 3.0
    assert load.queue_s(state, 99.0)[0] == 3.0


def test_a_wait_is_never_negative_and_nothing_waits_on_idle_rows(state):
    state.queued_s[0], state.head_s[0] = 1.0, 2.0
    assert load.queue_s(state, 100.0).tolist() == [0.0] * state.capacity


def test_gauges_count_while_fresh_and_where_higher(state):
    state.prefilling[:2], state.decoding[:2] = [1, 5], [2, 0]
    state.set_telemetry(NodeId("a"), Telemetry(running=4, waiting=3, kv_usage=0.75), 10.0)
    state.set_telemetry(NodeId("b"), Telemetry(running=1, waiting=0, kv_usage=0.1), 10.0)
    state.kv_tokens[:2] = [100_000, 500_000]
    believed = load.fresh(state, 11.0, 2.0)
    assert believed[:2].tolist() == [True, True]
    assert load.batch(state, believed)[:2].tolist() == [7, 5]
    assert load.kv_share(state, believed)[:2].tolist() == [0.75, 0.5]
    stale = load.fresh(state, 12.5, 2.0)
    assert not stale.any()
    assert load.batch(state, stale)[:2].tolist() == [3, 5]
    assert load.kv_share(state, None)[:2].tolist() == [0.1, 0.5]


def test_the_scarcest_resource_decides_and_load_ends_at_1():
    found = load.load(
        np.array([15.0, 3.0, 0.0, 300.0]),
        np.array([16.0, 128.0, 0.0, 0.0]),
        np.array([0.1, 0.2, 0.9, 2.0]),
        batch_max=np.full(4, 256.0),
        horizon_s=30.0,
    )
    assert found.tolist() == [0.5, 0.5, 0.9, 1.0]


def test_an_endless_cache_is_never_used(state):
    state.kv_capacity[0] = np.inf
    state.kv_tokens[0] = 1e9
    assert load.kv_share(state, None)[0] == 0.0


def test_the_fleet_view_is_the_same_arithmetic(state):
    state.queued_s[0] = 6.0
    state.prefilling[0] = 64
    state.kv_tokens[1] = 700_000
    view = fleet_load(state, Tunables(), 0.0)
    assert view.wait_s[:2].tolist() == [6.0, 0.0]
    assert view.batch[:2].tolist() == [64, 0]
    assert view.kv_share[:2].tolist() == [0.0, 0.7]
    assert view.load[:2].tolist() == [0.25, 0.7]

"""The fleet's rows: who stands where, what outlives what, which caches follow."""

import numpy as np
import pytest
from fleet_cases import COST, fleet, spec

from core.domain import Health, NodeId, Role, Telemetry
from core.errors import Conflict, NotFound
from core.fleet import state as module
from core.fleet.state import FleetState, NodeCost


def cost(c1):
    prefill, tbt = (0.1, c1, 1e-9), (0.01, 0.001, 1e-7)
    return NodeCost(prefill=prefill, tbt=tbt, kv_bytes_per_token=2.0, layers=4)


def test_a_row_carries_what_was_registered():
    f = FleetState()
    slot = f.add(
        spec("a", role=Role.PREFILL, kv_capacity_tokens=500, context_tokens_max=100, batch_max=7,
             queue_max=9, weight=2.0, block_size=32, can_fetch=True),
        cost(0.5),
    )  # fmt: skip
    assert f.slot(NodeId("a")) == slot == 0
    assert f.node_at(0) == "a"
    told = {name: getattr(f, name)[0] for name in (
        "c0", "c1", "c2", "d0", "d1", "d2", "kv_bytes", "layers", "kv_capacity", "context_max",
        "batch_max", "queue_max", "weight", "block_size",
    )}  # fmt: skip
    assert list(told.values()) == [
        0.1, 0.5, 1e-9, 0.01, 0.001, 1e-7, 2.0, 4, 500, 100, 7, 9, 2.0, 32
    ]  # fmt: skip
    assert f.prefills[0]
    assert not f.decodes[0]
    assert f.can_fetch[0]
    assert f.alive[0]
    assert len(f) == 1


def test_a_node_is_not_eligible_before_a_probe_speaks():
    f = FleetState()
    f.add(spec("a"), COST)
    assert f.health(NodeId("a")) is Health.UNKNOWN
    assert not f.healthy[0]


def test_limits_that_are_not_known_are_endless():
    f = fleet(spec("a", kv_capacity_tokens=0, context_tokens_max=0))
    assert f.kv_capacity[0] == f.context_max[0] == np.inf


def test_names_are_taken_once_and_unknown_ones_named():
    f = fleet(spec("a"))
    with pytest.raises(Conflict, match="'a'"):
        f.add(spec("a"), COST)
    for ask in (f.slot, f.spec, f.health, f.restart, f.remove):
        with pytest.raises(NotFound, match="'b'"):
            ask(NodeId("b"))
    with pytest.raises(NotFound):
        f.update(spec("b"))


def test_growing_keeps_every_row_and_tells_the_others():
    f = FleetState(slots=2)
    told = []
    f.on_grow.append(told.append)
    for i in range(5):
        f.add(spec(f"n{i}"), cost(1.0 + i))
    assert told == [4, 8]
    assert f.capacity == 8
    assert f.c1[:5].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [s.id for s in f.nodes()] == [f"n{i}" for i in range(5)]
    assert [slot for slot, _ in f.slots()] == list(range(5))
    assert f.batch_max[5:].tolist() == [np.inf] * 3


def test_a_row_is_reused_with_another_generation_and_nothing_left():
    f = fleet(spec("a"), spec("b"))
    f.queued_tokens[0] = f.strictest_tbt_s[0] = f.egress_until_s[0] = 7
    f.last_picked[0] = 3
    before = int(f.generation[0])
    assert f.remove(NodeId("a")) == 0
    assert not f.has(NodeId("a"))
    assert f.add(spec("c"), COST) == 0
    assert f.generation[0] > before
    assert f.queued_tokens[0] == 0
    assert f.egress_until_s[0] == 0
    assert f.last_picked[0] == -1
    assert f.strictest_tbt_s[0] == np.inf
    assert f.health(NodeId("c")) is Health.UNKNOWN
    assert not f.healthy[0]


def test_a_restart_keeps_what_the_node_is_and_drops_what_it_held():
    f = fleet(spec("a", weight=3.0))
    f.drain(NodeId("a"), True)
    f.set_cost(NodeId("a"), (9.0, 8.0, 7.0))
    for name in ("queued_tokens", "decoding", "kv_tokens", "running", "handover_until_s"):
        getattr(f, name)[0] = 5
    before = int(f.generation[0])
    f.restart(NodeId("a"))
    assert f.generation[0] == before + 1
    assert (f.c0[0], f.c1[0], f.c2[0]) == (9.0, 8.0, 7.0)
    assert f.weight[0] == 3.0
    assert f.draining[0]
    assert f.healthy[0]
    for name in ("queued_tokens", "decoding", "kv_tokens", "running", "handover_until_s"):
        assert getattr(f, name)[0] == 0, name
    assert f.kv_capacity[0] == 1_000_000


def test_an_update_keeps_the_load():
    f = fleet(spec("a"))
    f.queued_tokens[0] = 5
    f.update(spec("a", block_size=64, role=Role.DECODE))
    assert f.queued_tokens[0] == 5
    assert f.block_size[0] == 64
    assert not f.prefills[0]
    assert f.c1[0] == COST.prefill[1]


def test_compute_is_relative_to_the_fastest_that_is_there():
    f = FleetState()
    f.add(spec("fast"), cost(1.0))
    f.add(spec("slow"), cost(4.0))
    assert f.compute[:2].tolist() == [1.0, 0.25]
    f.set_cost(NodeId("slow"), (0.0, 2.0, 0.0))
    assert f.compute[:2].tolist() == [1.0, 0.5]
    f.remove(NodeId("fast"))
    assert f.compute[:2].tolist() == [0.0, 1.0]


def test_the_least_limits_are_those_of_registered_nodes():
    f = FleetState()
    assert f.context_min == f.kv_capacity_min == f.queue_max_min == np.inf
    f.add(spec("a", context_tokens_max=100, queue_max=3), COST)
    f.add(spec("b", kv_capacity_tokens=50), COST)
    assert (f.context_min, f.kv_capacity_min, f.queue_max_min) == (100, 50, 3)
    f.remove(NodeId("a"))
    assert (f.context_min, f.queue_max_min) == (200_000, 1024)


def test_flags_follow_the_nodes_that_are_there():
    f = fleet(spec("a"))
    assert not f.weighted
    assert not f.any_can_fetch
    f.add(spec("b", weight=0.5, can_fetch=True), COST)
    assert f.weighted
    assert f.any_can_fetch
    f.remove(NodeId("b"))
    assert not f.weighted
    assert not f.any_can_fetch


def test_coming_back_from_death_starts_slowly_and_only_that():
    f = fleet(spec("a"))
    f.set_health(NodeId("a"), Health.SUSPECT, 1.0)
    assert f.healthy[0]
    f.set_health(NodeId("a"), Health.HEALTHY, 2.0)
    assert f.slow_until_s == -np.inf
    f.set_health(NodeId("a"), Health.DEAD, 3.0)
    assert f.dead[0]
    assert not f.healthy[0]
    f.set_health(NodeId("a"), Health.HEALTHY, 10.0)
    assert not f.dead[0]
    assert f.slow_start_at_s[0] == 10.0
    assert f.slow_until_s == 10.0 + module.SLOW_START_S


def test_the_version_follows_what_nodes_are_but_not_their_load():
    f = fleet(spec("a"))
    seen = [f.version]

    def moved():
        seen.append(f.version)
        return seen[-1] != seen[-2]

    f.queued_tokens[0] = 4
    f.set_telemetry(NodeId("a"), Telemetry(running=3), 1.0)
    f.set_health(NodeId("a"), Health.HEALTHY, 1.0)
    f.set_cost(NodeId("a"), (1.0, 1.0, 1.0))
    assert not moved()
    f.set_health(NodeId("a"), Health.DEAD, 1.0)
    assert moved()
    f.drain(NodeId("a"), True)
    assert moved()
    f.update(spec("a"))
    assert moved()
    f.restart(NodeId("a"))
    assert moved()
    f.remove(NodeId("a"))
    assert moved()


def test_gauges_that_are_not_told_keep_their_value():
    f = fleet(spec("a"))
    f.set_telemetry(NodeId("a"), Telemetry(running=3, waiting=2, kv_usage=0.5), 1.0)
    f.set_telemetry(NodeId("a"), Telemetry(waiting=0), 2.0)
    assert (f.running[0], f.waiting[0], f.kv_usage[0]) == (3, 0, 0.5)
    assert f.telemetry_at_s[0] == 2.0
    assert f.telemetry_seen


def test_models_and_adapters_are_served_by_those_that_list_them():
    f = fleet(
        spec("a", models=("m", "n")),
        spec("b", adapters={"x": "m"}),
        spec("c", models=("n",), adapters={"x": "n"}),
        spec("d", models=()),
    )
    assert f.serves_model("m")[:4].tolist() == [True, True, False, False]
    assert f.serves_model("n")[:4].tolist() == [True, False, True, False]
    assert f.serves_model("m", "x")[:4].tolist() == [False, True, False, False]
    assert f.serves_model("n", "x")[:4].tolist() == [False, False, True, False]
    assert not f.serves_model("x").any()


def test_a_node_with_tenants_takes_those_alone():
    f = fleet(spec("a", tenants=frozenset({"t"})), spec("b"))
    assert f.admits("t")[:2].tolist() == [True, True]
    assert f.admits("")[:2].tolist() == [False, True]
    assert f.admits("u")[:2].tolist() == [False, True]


def test_only_equal_named_connectors_form_a_transfer_group():
    f = fleet(
        spec("a", kv_transfer="nixl"), spec("b", kv_transfer="bootstrap"),
        spec("c", kv_transfer=""), spec("d", kv_transfer="nixl"), spec("e", kv_transfer=""),
    )  # fmt: skip
    a, b, c, d, e = f.transfer_group[:5].tolist()
    assert a == d != b
    assert 0 not in (a, b)
    assert c == e == 0

"""Nodes joining, changing and leaving: every structure follows."""

from typing import ClassVar

import numpy as np
import pytest
from fleet_cases import (
    EVENTS,
    chain,
    conductor,
    decided,
    give,
    join,
    outcome,
    request,
    spec,
)

from core.clock import ManualClock
from core.domain import Health, NodeId, OutcomeKind, Role, Telemetry, Trust
from core.errors import Conflict, Invalid, NotFound
from core.fleet.trust import Signal
from core.recording import record_telemetry
from core.roster import check_spec, node_cost

A, B = NodeId("a"), NodeId("b")


def everywhere(c):
    """Slots that each structure knows."""
    return [
        {slot for slot, _ in c.fleet.slots()},
        set(c.index.stats().blocks),
        set(c.breakers._nodes),
        set(c.trust._nodes),
    ]


def test_a_node_is_known_everywhere_or_nowhere():
    c = conductor(spec("a"), spec("b"))
    assert everywhere(c) == [{0, 1}] * 4
    c.remove(A, 1.0)
    assert everywhere(c) == [{1}] * 4
    with pytest.raises(KeyError):
        c.calibration.prefill(A)
    assert c.register(spec("c"), 2.0) == 0
    assert everywhere(c) == [{0, 1}] * 4


@pytest.mark.parametrize(
    ("more", "error", "field"),
    [
        ({}, Conflict, "id"),
        ({"profile": "nonsense"}, NotFound, "profile"),
        ({"block_size": 0}, Invalid, "block_size"),
        ({"batch_max": 0}, Invalid, "batch_max"),
        ({"queue_max": -1}, Invalid, "queue_max"),
        ({"kv_capacity_tokens": -1}, Invalid, "kv_capacity_tokens"),
        ({"context_tokens_max": -5}, Invalid, "context_tokens_max"),
        ({"weight": 0.0}, Invalid, "weight"),
        ({"weight": float("nan")}, Invalid, "weight"),
        ({"weight": float("inf")}, Invalid, "weight"),
        ({"speed": 0.0}, Invalid, "speed"),
        ({"mfu": 1.5}, Invalid, "mfu"),
    ],
)
def test_what_cannot_be_registered_leaves_no_trace(more, error, field):
    c = conductor(spec("a"))
    with pytest.raises(error) as caught:
        c.register(spec("a" if not more else "b", **more), 1.0)
    assert caught.value.field == field
    assert everywhere(c) == [{0}] * 4
    with pytest.raises((error, Conflict)):
        c.register(spec("a", **more), 1.0)
    if more:
        with pytest.raises(error):
            c.update_spec(spec("a", **more), 1.0)
        assert c.fleet.spec(A) == spec("a")


def test_a_fleet_grows_past_its_first_rows():
    c = conductor(*(spec(f"n{i}", kv_transfer="") for i in range(40)))
    assert c.fleet.capacity >= 40
    assert len(c.breakers.allowed(0.0)) == c.fleet.capacity
    assert len(c.match({})) == c.fleet.capacity
    give(c, "n37", chain(64))
    assert decided(c, request(64)).prefill == "n37"


def test_a_node_takes_nothing_until_a_probe_calls_it_healthy():
    c = conductor(spec("a"))
    c.register(spec("b"), 0.0)
    assert {decided(c, request(first=i)).prefill for i in range(10)} == {"a"}
    c.set_health(B, Health.HEALTHY, 1.0)
    assert {decided(c, request(first=i)).prefill for i in range(40)} == {"a", "b"}


def test_costs_follow_profile_speed_and_utilisation():
    slow, fast = node_cost(spec("a", speed=0.5)), node_cost(spec("a"))
    assert slow.prefill == pytest.approx(tuple(2 * x for x in fast.prefill))
    assert slow.tbt == pytest.approx(tuple(2 * x for x in fast.tbt))
    assert node_cost(spec("a", mfu=0.25)).prefill[1] != fast.prefill[1]
    check_spec(spec("a"))


def test_draining_stops_new_requests_only():
    c = conductor(spec("a"), spec("b"))
    r = c.begin(decided(c, request(tried=frozenset({B}))), 0.0)
    c.drain(A, True, 1.0)
    assert {decided(c, request(first=i)).prefill for i in range(10)} == {"b"}
    assert c.ledger.inflight(0) == 1
    r.first_token(2.0)
    r.finish(outcome(), 3.0)
    c.drain(A, False, 4.0)
    assert {decided(c, request(first=i)).prefill for i in range(40)} == {"a", "b"}


def test_health_changes_are_told_once_each():
    c = conductor(spec("a"))
    c.take_events()
    for health in (Health.SUSPECT, Health.SUSPECT, Health.DEAD, Health.HEALTHY):
        c.set_health(A, health, 1.0)
    told = [(e.before, e.after) for e in c.take_events() if e.machine == "health"]
    assert told == [("healthy", "suspect"), ("suspect", "dead"), ("dead", "healthy")]
    assert c.take_events() == []


def test_events_kept_for_the_audit_are_bounded():
    c = conductor(spec("a"))
    for i in range(12_000):
        c.set_health(A, Health.DEAD if i % 2 else Health.HEALTHY, float(i))
    kept = c.take_events()
    assert len(kept) <= 10_000
    assert kept[-1].now_s == 11_999.0


def test_a_restart_is_told_and_forgets():
    c = conductor(spec("a"))
    give(c, "a", chain(64))
    c.take_events()
    c.restarted(A, 5.0)
    (told,) = [e for e in c.take_events() if e.machine == "node"]
    assert (told.node, told.cause, told.now_s) == ("a", "restarted", 5.0)
    assert c.match(request(64).keys)[0] == 0


def test_learned_capacity_and_block_size_become_part_of_the_node():
    c = conductor(spec("a", kv_capacity_tokens=0))
    c.telemetry(A, Telemetry(kv_capacity_tokens=5000, block_size=32), 1.0)
    assert c.fleet.spec(A).kv_capacity_tokens == 5000
    assert c.fleet.kv_capacity[0] == 5000
    assert c.block_sizes("m") == (32,)
    version = c.fleet.version
    c.telemetry(A, Telemetry(kv_capacity_tokens=5000, block_size=32, running=3), 2.0)
    assert c.fleet.version == version
    assert c.fleet.running[0] == 3


def test_readings_are_recorded_with_the_counters_of_the_engine():
    class Kept:
        rows: ClassVar = []

        def telemetry(self, node, _at, reading):
            self.rows.append((node, reading))

    c, clock, recorder = conductor(spec("a"), spec("b")), ManualClock(1.0), Kept()
    told = Telemetry(running=3, kv_usage=0.25, prompt_tokens_total=900.0, cached_tokens_total=300.0)
    c.telemetry(A, told, 1.0)
    record_telemetry(c, recorder, clock)
    (node, kept), *rest = recorder.rows
    assert (node, rest) == (A, [])  # the other one has told nothing
    assert (kept.running, kept.kv_usage) == (3, 0.25)
    assert (kept.prompt_tokens_total, kept.cached_tokens_total) == (900.0, 300.0)
    c.remove(A, 2.0)
    assert c.reading(A) == Telemetry()


def test_a_new_block_size_empties_the_nodes_index():
    c = conductor(spec("a", kv_transfer=""))
    give(c, "a", chain(64))
    c.update_spec(spec("a", kv_transfer="", batch_max=9), 1.0)
    assert decided(c, request(64)).match_tokens == 1008
    c.update_spec(spec("a", kv_transfer="", block_size=32), 1.0)
    assert c.index.stats().blocks[0] == 0
    assert decided(c, request(64)).match_tokens == 0


def test_routing_history_takes_the_size_that_the_engine_tells():
    c = conductor(spec("a", events=None, kv_capacity_tokens=0, kv_transfer=""))
    c.telemetry(A, Telemetry(kv_capacity_tokens=160), 0.0)
    for i in range(3):
        c.begin(decided(c, request(8, first=i)), float(i)).finish(outcome(), float(i))
    assert c.index.stats().blocks[0] == 10


def test_events_that_discovery_finds_replace_the_history():
    c = conductor(spec("a", events=None, kv_transfer=""))
    c.begin(decided(c, request(64)), 0.0).finish(outcome(), 0.5)
    assert decided(c, request(64)).match_tokens == 1008
    c.update_spec(spec("a", events=EVENTS, kv_transfer=""), 1.0)
    assert c.trust.trust(0) is Trust.DEGRADED
    assert decided(c, request(64)).match_tokens == 0
    c.cache_signal(A, Signal.COMPLETE, 2.0)
    c.index.store(0, chain(64))
    assert decided(c, request(64), 2.0).match_tokens == 1008
    c.update_spec(spec("a", events=None, kv_transfer=""), 3.0)
    assert c.trust.trust(0) is Trust.APPROXIMATE


def test_links_and_transfer_groups_follow_an_update():
    c = conductor(spec("p", role=Role.PREFILL, kv_transfer="x"), spec("d", role=Role.DECODE))
    c.update_spec(spec("p", role=Role.PREFILL), 1.0)
    assert decided(c, request()).decode == "d"


def test_an_8_bit_cache_moves_half_the_bytes():
    whole, half = node_cost(spec("a")), node_cost(spec("a", kv_dtype="fp8_e4m3"))
    assert half.kv_bytes_per_token == whole.kv_bytes_per_token / 2
    with pytest.raises(Invalid, match="kv_dtype: 'float64'"):
        check_spec(spec("a", kv_dtype="float64"))


# -- block sizes ---------------------------------------------------------------------------------


def test_block_sizes_are_those_of_the_models_nodes():
    c = conductor(
        spec("a", block_size=64),
        spec("b", block_size=16, adapters={"x": "m"}),
        spec("c", models=("n",), block_size=8),
    )
    assert c.block_sizes("m") == (16, 64)
    assert c.block_sizes("m", "x") == (16,)
    assert c.block_sizes("n") == (8,)
    assert c.block_sizes("nope") == ()


# -- what outcomes teach ------------------------------------------------------------------------


def test_accesses_of_prefixes_are_counted_when_begun():
    c = conductor(spec("a", kv_transfer=""))
    give(c, "a", chain(64))
    for i in range(50):
        now = i * 0.1
        c.begin(decided(c, request(64), now), now).finish(outcome(), now)
    hot = c.index.hot(5.0, 3)
    assert hot
    assert hot[0].hits >= 50
    quiet = conductor(spec("a"), learn=False)
    quiet.begin(decided(quiet, request(64)), 0.0)
    assert quiet.index.hot(0.0, 3) == []


def test_predictions_are_compared_with_what_engines_report():
    c = conductor(spec("a", kv_transfer=""), changes={"trust.window": 3})
    give(c, "a", chain(64))
    for i in range(3):
        r = c.begin(decided(c, request(64)), float(i))
        r.prefill_done(i + 0.1, cached_tokens=1008)
        r.finish(outcome(cached_tokens=None), i + 0.5)
    assert c.trust.node(0).phantom_share == 0.0
    assert len(c.trust.node(0).samples) == 3


def test_outcomes_of_a_past_life_teach_nothing():
    c = conductor(spec("a", kv_transfer=""), changes={"trust.window": 2})
    give(c, "a", chain(64))
    old = [c.begin(decided(c, request(64)), 0.0) for _ in range(4)]
    c.restarted(A, 1.0)
    for r in old:
        r.finish(outcome(cached_tokens=0), 2.0)
    assert c.trust.trust(0) is Trust.EXACT
    assert len(c.trust.node(0).samples) == 0


def test_an_engine_that_fails_before_its_first_token_is_to_blame_by_default():
    c = conductor(spec("p", role=Role.PREFILL), spec("d", role=Role.DECODE))
    r = c.begin(decided(c, request()), 0.0)
    r.finish(outcome(OutcomeKind.TIMEOUT), 1.0)
    assert [c.breakers._nodes[s].consecutive for s in (0, 1)] == [1, 0]
    r = c.begin(decided(c, request()), 2.0)
    r.finish(outcome(OutcomeKind.ENGINE_ERROR, failed_node=NodeId("d")), 3.0)
    assert [c.breakers._nodes[s].consecutive for s in (0, 1)] == [1, 1]


def test_nothing_of_a_removed_node_comes_back_with_its_late_answer():
    c = conductor(spec("a"), spec("b"))
    r = c.begin(decided(c, request(64, tried=frozenset({B}))), 0.0)
    c.remove(A, 1.0)
    join(c, spec("c"), 1.0)
    r.first_token(2.0)
    r.finish(outcome(cached_tokens=0), 3.0)
    for name in ("queued_tokens", "prefilling", "decoding", "kv_tokens"):
        assert not getattr(c.fleet, name).any()
    assert np.isfinite(c.fleet.egress_until_s).all()
    c.ledger.check_integrity()

"""Hard constraints: who may take a request, and the reason of each that may not."""

import numpy as np
import pytest
from fleet_cases import fleet, request, spec

from core.domain import Health, NodeId, Reason, Role
from core.policy.constraints import (
    StandingCache,
    decode_checks,
    narrowed,
    prefill_checks,
)


def standing(f, r, *, decode=False, allowed=None, cache=None):
    open_ = np.ones(f.capacity, np.bool_) if allowed is None else allowed
    return (cache or StandingCache()).get(f, r, open_, decode=decode)


def names(f, found):
    return {f.node_at(int(slot)) for slot in np.flatnonzero(found.mask)}


def test_every_standing_reason_names_its_nodes():
    f = fleet(
        spec("good"),
        spec("other", models=("n",)),
        spec("bare", adapters={}),
        spec("closed", adapters={"x": "m"}, tenants=frozenset({"u"})),
        spec("decoder", adapters={"x": "m"}, role=Role.DECODE),
        spec("dead", adapters={"x": "m"}),
        spec("leaving", adapters={"x": "m"}),
        spec("tripped", adapters={"x": "m"}),
        spec("failed", adapters={"x": "m"}),
    )
    f.update(spec("good", adapters={"x": "m"}))
    f.set_health(NodeId("dead"), Health.DEAD, 0.0)
    f.drain(NodeId("leaving"), True)
    allowed = np.ones(f.capacity, np.bool_)
    allowed[f.slot(NodeId("tripped"))] = False
    r = request(adapter="x", tenant="t", tried=frozenset({NodeId("failed"), NodeId("gone")}))
    found = standing(f, r, allowed=allowed)
    assert names(f, found) == {"good"}
    assert found.count == 1
    assert found.excluded == {
        Reason.MODEL: ("other",),
        Reason.ADAPTER: ("bare",),
        Reason.TENANT: ("closed",),
        Reason.ROLE: ("decoder",),
        Reason.UNHEALTHY: ("dead",),
        Reason.DRAINING: ("leaving",),
        Reason.BREAKER_OPEN: ("tripped",),
        Reason.ALREADY_TRIED: ("failed",),
    }


def test_a_node_has_the_first_of_its_reasons():
    f = fleet(spec("a", models=("n",), role=Role.DECODE), spec("b"))
    f.drain(NodeId("a"), True)
    assert standing(f, request()).excluded == {Reason.MODEL: ("a",)}


def test_a_suspect_node_still_serves():
    f = fleet(spec("a"))
    f.set_health(NodeId("a"), Health.SUSPECT, 0.0)
    assert names(f, standing(f, request())) == {"a"}


def test_the_decode_side_asks_for_the_other_role():
    f = fleet(spec("p", role=Role.PREFILL), spec("d", role=Role.DECODE), spec("b"))
    assert names(f, standing(f, request())) == {"p", "b"}
    assert names(f, standing(f, request(), decode=True)) == {"d", "b"}


def test_what_stands_is_remembered_until_something_changes():
    f, cache = fleet(spec("a"), spec("b")), StandingCache()
    first = standing(f, request(), cache=cache)
    f.queued_tokens[0] = 9
    assert standing(f, request(first=2), cache=cache) is first
    assert standing(f, request(tenant="t"), cache=cache) is not first
    assert standing(f, request(), decode=True, cache=cache) is not first
    allowed = np.ones(f.capacity, np.bool_)
    allowed[0] = False
    assert names(f, standing(f, request(), allowed=allowed, cache=cache)) == {"b"}
    f.drain(NodeId("b"), True)
    assert names(f, standing(f, request(), cache=cache)) == {"a"}


def test_the_memory_is_bounded():
    f, cache = fleet(spec("a")), StandingCache()
    for i in range(5000):
        standing(f, request(tenant=str(i)), cache=cache)
    assert len(cache._cache) <= 1024


def prefilled(f, r, before=None):
    batches = f.prefilling + f.decoding
    return narrowed(f, before or standing(f, r), prefill_checks(f, r, batches))


def test_the_prompt_must_leave_room_in_the_context_for_a_token():
    f = fleet(spec("a", context_tokens_max=1000), spec("b", context_tokens_max=1001))
    found = prefilled(f, request(tokens=1000))
    assert names(f, found) == {"b"}
    assert found.excluded == {Reason.CONTEXT: ("a",)}


def test_a_full_queue_and_a_full_node_take_nothing():
    f = fleet(spec("a", queue_max=2), spec("b", queue_max=2, batch_max=3), spec("c"))
    f.prefilling[:3] = [2, 1, 500]
    f.decoding[:3] = [0, 4, 0]
    found = prefilled(f, request())
    assert names(f, found) == {"c"}
    assert found.excluded == {Reason.QUEUE_FULL: ("a",), Reason.BATCH_CAP: ("b",)}


def test_a_prompt_larger_than_the_cache_has_no_headroom():
    f = fleet(spec("a", kv_capacity_tokens=999), spec("b", kv_capacity_tokens=1000))
    assert prefilled(f, request(tokens=1000)).excluded == {Reason.KV_HEADROOM: ("a",)}


def test_what_stood_before_is_kept_when_nothing_falls_out():
    f = fleet(spec("a"), spec("b"))
    before = standing(f, request())
    assert prefilled(f, request(), before) is before


def decoded(f, r, *, reserve=1.0, held=None):
    before = standing(f, r, decode=True)
    return narrowed(f, before, decode_checks(f, r, reserve, f.kv_tokens if held is None else held))


@pytest.mark.parametrize(("held", "fits"), [(700, True), (701, False)])
def test_headroom_is_for_the_prompt_and_the_expected_output(held, fits):
    f = fleet(spec("a", kv_capacity_tokens=1000))
    f.kv_tokens[0] = held
    r = request(0, tokens=200, output_tokens_expected=100)
    assert bool(decoded(f, r).count) is fits


def test_the_reserve_scales_the_output_only():
    f = fleet(spec("a", kv_capacity_tokens=1000))
    f.kv_tokens[0] = 750
    r = request(0, tokens=200, output_tokens_expected=100)
    assert decoded(f, r).excluded == {Reason.KV_HEADROOM: ("a",)}
    assert decoded(f, r, reserve=0.5).count == 1


def test_an_idle_node_takes_any_prompt_that_fits():
    f = fleet(spec("a", kv_capacity_tokens=1000), spec("b", kv_capacity_tokens=199))
    r = request(0, tokens=200, output_tokens_expected=100_000)
    assert names(f, decoded(f, r)) == {"a"}


def test_a_batch_without_a_free_slot_takes_nobody():
    f = fleet(spec("a", batch_max=4), spec("b", batch_max=4))
    f.decoding[:2] = [4, 3]
    assert decoded(f, request()).excluded == {Reason.BATCH_CAP: ("a",)}


def test_reasons_of_later_checks_join_the_earlier_ones():
    f = fleet(spec("a"), spec("b"), spec("c"))
    only = np.zeros(f.capacity, np.bool_)
    only[f.slot(NodeId("c"))] = True
    not_a = np.arange(f.capacity) > 0
    first = narrowed(f, standing(f, request()), [(Reason.NO_PATH, not_a)])
    assert first.excluded == {Reason.NO_PATH: ("a",)}
    assert narrowed(f, first, [(Reason.NO_PATH, only)]).excluded == {Reason.NO_PATH: ("a", "b")}

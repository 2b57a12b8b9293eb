"""What a waiting request looks at."""

import math

from fleet_cases import chain, conductor, decided, give, request, spec

from core.domain import NodeId
from core.plan.prospects import room_anywhere

MS = (0.0, 1e-3, 0.0)
ROOM = {"admission.room_s": 0.5}


def fleet(*names, **changes):
    made = [spec(name, kv_transfer="") for name in names]
    return conductor(*made, costs=dict.fromkeys(names, MS), changes={**ROOM, **changes})


def test_an_idle_node_has_room_and_its_cache_shortens_the_prompt():
    c = fleet("a", "b")
    found = c.prospects(request(64), 0.0)
    assert (found.nodes, found.roomy, found.queue_s) == (2, 2, 0.0)
    assert found.prefill_s == 64 * 16 * 1e-3
    give(c, "a", chain(32))
    assert c.prospects(request(64), 0.0).prefill_s == 32 * 16 * 1e-3


def test_a_long_queue_is_no_room_until_it_has_drained():
    c = fleet("a")
    c.begin(decided(c, request(64, first=2)), 0.0)
    busy = c.prospects(request(64), 0.0)
    assert (busy.nodes, busy.roomy) == (1, 0) and busy.queue_s > 1.0
    assert not room_anywhere(c.fleet, c.tunables, 0.0)
    assert c.prospects(request(64), 0.6).roomy == 1
    assert room_anywhere(c.fleet, c.tunables, 0.6)


def test_a_full_batch_is_no_room():
    c = conductor(spec("a", kv_transfer="", batch_max=1), costs={"a": (0.0, 1e-9, 0.0)})
    c.begin(decided(c, request(8, first=2)), 0.0).first_token(0.1)
    assert c.prospects(request(8), 0.2).roomy == 0


def test_nobody_to_serve_it_is_told_from_nobody_with_room():
    c = fleet("a")
    assert c.prospects(request(64, model="other"), 0.0).nodes == 0
    c.drain(NodeId("a"), True, 0.0)
    found = c.prospects(request(64), 0.0)
    assert found.nodes == 0 and math.isinf(found.prefill_s)
    assert room_anywhere(c.fleet, c.tunables, 0.0), "nobody should wait for nobody"


def test_a_cold_prefix_under_way_is_waited_for_where_it_is_computed():
    c = fleet("a", "b", **{"batching.copies_max": 1})
    shared = chain(128)
    lead = request(132, keys={16: [*shared, 1, 2, 3, 4]})
    c.begin(decided(c, lead), 0.0)
    found = c.prospects(request(132, keys={16: [*shared, 5, 6, 7, 8]}), 0.0)
    assert (found.nodes, found.roomy) == (1, 0)
    assert c.prospects(request(64, first=9), 0.0).roomy == 1

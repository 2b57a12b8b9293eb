"""The candidates of a small fleet as lists agree to the bit with those as arrays."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from core.domain import NodeId, NodeSpec, Request, RequestId
from core.fleet.state import FleetState, NodeCost
from core.plan.few import FewCandidates
from core.plan.prefill import LiveCandidates
from core.plan.transfer import Link, Topology
from core.policy import get_policy
from core.tunables import Tunables

COLUMNS = (
    "match_tokens", "queue_s", "prefill_s", "fetch", "prefix_tokens", "fetched_prefill_s",
    "transfer_s", "load", "batch", "kv_usage", "mean_queue_s", "network",
)  # fmt: skip
seconds = st.floats(0.0, 100.0)
coefficient = st.floats(0.0, 1e-2)


@st.composite
def fleets(draw):
    """A fleet with load on it, and its topology."""
    count = draw(st.integers(1, 12))
    fleet, links = FleetState(count), Topology(count, uniform=draw(st.sampled_from(LINKS)))
    for i in range(count):
        spec = NodeSpec(id=NodeId(f"n{i}"), url="", models=("m",), can_fetch=draw(st.booleans()))
        cost = NodeCost(
            prefill=(draw(coefficient), draw(coefficient), draw(coefficient) * 1e-4),
            tbt=(0.01, 0.0, 0.0),
            kv_bytes_per_token=draw(st.sampled_from((1, 160_000, 327_680))),
            layers=draw(st.sampled_from((1, 32, 80))),
        )
        slot = fleet.add(spec, cost)
        if draw(st.integers(0, 5)):
            links.set_node(slot, spec)
        for name in ("queued_s", "head_s", "head_started_s", "egress_until_s"):
            getattr(fleet, name)[slot] = draw(seconds)
    return fleet, links


LINKS = (
    Link(bytes_per_s=1e11),
    Link(bytes_per_s=3e9, latency_s=1e-3, efficiency=0.9),
    None,
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_lists_and_arrays_agree_in_every_figure(data):
    fleet, links = data.draw(fleets())
    length = data.draw(st.integers(0, 20_000))
    tokens = st.one_of(st.just(0), st.just(length), st.integers(0, length))
    match = np.array([data.draw(tokens) for _ in range(fleet.capacity)], np.int64)
    every = np.arange(fleet.capacity)
    some = st.lists(st.sampled_from(every.tolist()), min_size=1, unique=True).map(sorted)
    rows = data.draw(st.one_of(st.just(slice(None)), some.map(lambda found: np.array(found))))
    t = Tunables().changed(
        {
            "fetch.enabled": data.draw(st.booleans()),
            "fetch.balancing_threshold": data.draw(st.sampled_from((1.0, 1.5, 10.0))),
        }
    )
    request = Request(id=RequestId("r"), model="m", prompt_tokens=length)
    few, wide = (
        form(
            fleet,
            links,
            t,
            request,
            50.0,
            match=match,
            rows=rows,
            mean_prefill_s=0.5,
            needs=frozenset({"network"}),
        )
        for form in (FewCandidates, LiveCandidates)
    )
    assert few.reachable_tokens == wide.reachable_tokens
    assert few.size == wide.size
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(few, name), getattr(wide, name), err_msg=name)
    assert [few.at(row) for row in range(few.size)] == [wide.at(row) for row in range(wide.size)]
    policy = get_policy("min_ttft")
    assert policy.few is not None
    assert policy.few(few) == policy.score(wide, t).total.tolist()

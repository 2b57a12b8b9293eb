"""The lists of small fleets equal the arrays of large ones to the bit."""

from __future__ import annotations

import numpy as np
from fleet_cases import fleet, request, spec
from hypothesis import given, settings
from hypothesis import strategies as st

from core.domain import LinkKind, NodeId
from core.plan.few import FewCandidates
from core.plan.prefill import LiveCandidates
from core.plan.transfer import Topology
from core.tunables import Tunables

COLUMNS = (
    "match_tokens", "queue_s", "prefill_s", "prefix_tokens", "fetched_prefill_s", "transfer_s",
    "fetch", "queued_tokens", "batch", "load", "kv_usage", "waiting", "compute", "network",
    "session_hash",
)  # fmt: skip
LINKS = st.sets(st.sampled_from([LinkKind.TCP, LinkKind.IB_NDR, LinkKind.ROCE]), min_size=1)
seconds = st.floats(0.0, 100.0, allow_nan=False)
small = st.floats(0.0, 0.01, allow_nan=False)
node = st.fixed_dictionaries(
    {
        "links": LINKS, "can_fetch": st.booleans(), "cost": st.tuples(seconds, small, small),
        "queued_s": seconds, "head_s": seconds, "started_s": seconds, "egress_s": seconds,
        "match": st.integers(0, 600),
    }
)  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(
    nodes=st.lists(node, min_size=1, max_size=12),
    tokens=st.integers(0, 700),
    now=seconds,
    threshold=st.floats(1.0, 3.0),
    data=st.data(),
)
def test_both_forms_agree(nodes, tokens, now, threshold, data):
    names = [f"n{i}" for i in range(len(nodes))]
    f = fleet(
        *(
            spec(name, links=tuple(n["links"]), can_fetch=n["can_fetch"])
            for name, n in zip(names, nodes, strict=True)
        )
    )
    links = Topology(f.capacity)
    match = np.zeros(f.capacity, np.int64)
    for slot, one in f.slots():
        n = nodes[slot]
        links.set_node(slot, one)
        f.set_cost(NodeId(one.id), n["cost"])
        f.queued_s[slot], f.head_s[slot] = max(n["queued_s"], n["head_s"]), n["head_s"]
        f.head_started_s[slot] = min(n["started_s"], now)  # what runs has begun
        f.egress_until_s[slot] = n["egress_s"]
        match[slot] = min(n["match"], max(tokens - 1, 0))
    chosen = data.draw(st.lists(st.sampled_from(range(len(nodes))), min_size=1, unique=True))
    rows = np.array(sorted(chosen))
    if len(rows) == f.capacity:
        rows = slice(None)
    made = [
        form(
            f,
            links,
            Tunables().changed({"fetch.balancing_threshold": threshold}),
            request(0, tokens=tokens, session="s"),
            now,
            match=match,
            rows=rows,
            mean_prefill_s=1.0,
            needs=frozenset({"network", "session"}),
        )
        for form in (LiveCandidates, FewCandidates)
    ]
    arrays, lists = made
    assert lists.size == arrays.size
    assert lists.reachable_tokens == arrays.reachable_tokens
    for name in COLUMNS:
        a, b = getattr(arrays, name), getattr(lists, name)
        assert a.dtype == b.dtype, name
        assert np.array_equal(a, b), name
    assert lists.mean_queue_s == arrays.mean_queue_s
    for row in range(arrays.size):
        assert lists.at(row) == arrays.at(row)

"""The decode candidates of small fleets, as lists, equal the arrays of large ones to the bit."""

from __future__ import annotations

import random

import numpy as np
from fleet_cases import decision, fleet, request, spec
from hypothesis import given, settings
from hypothesis import strategies as st

from core.domain import LinkKind, NodeId, Prediction, Role
from core.fleet.ledger import Ledger
from core.plan.decode import Joining
from core.plan.few_decode import weigh_few
from core.plan.placement import _pick_feasible, _table, weigh
from core.plan.transfer import Topology
from core.policy.constraints import Standing
from core.tunables import Tunables

LINKS = st.sets(st.sampled_from([LinkKind.TCP, LinkKind.IB_NDR, LinkKind.ROCE]), min_size=1)
seconds = st.floats(0.0, 10.0, allow_nan=False)
small = st.floats(0.0, 0.01, allow_nan=False)
limits = st.floats(0.001, 0.3, allow_nan=False)
lengths = st.integers(1, 200)
node = st.fixed_dictionaries(
    {
        "links": LINKS, "role": st.sampled_from([Role.BOTH, Role.DECODE, Role.PREFILL]),
        "tbt": st.tuples(small, small, st.floats(0.0, 1e-5)), "held": st.integers(0, 500),
        "requests": st.lists(st.tuples(lengths, lengths, limits), max_size=3),
    }
)  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(
    nodes=st.lists(node, min_size=1, max_size=10),
    tokens=st.integers(1, 700),
    predicted=st.tuples(seconds, seconds, seconds),
    wait_s=seconds,
    early=st.booleans(),
    rules=st.tuples(st.floats(0.0, 2.0), st.floats(1.0, 2.0), limits),
    data=st.data(),
)
def test_both_forms_agree(nodes, tokens, predicted, wait_s, early, rules, data):
    f = fleet(
        *(
            spec(f"n{i}", role=n["role"], links=tuple(sorted(n["links"])))
            for i, n in enumerate(nodes)
        )
    )
    ledger, links = Ledger(f), Topology(f.capacity)
    held = np.zeros(f.capacity, np.int64)
    for slot, one in f.slots():
        n = nodes[slot]
        links.set_node(slot, one)
        f.set_tbt(NodeId(one.id), n["tbt"])
        held[slot] = min(n["held"], tokens)
        for prompt, output, limit_s in n["requests"]:
            made = decision(f, one.id, prompt=prompt, output=output)
            ledger.begin(made, 0.0, tbt_slo_s=limit_s).first_token(0.0)
    chosen = data.draw(st.lists(st.sampled_from(range(len(nodes))), min_size=1, unique=True))
    mask = np.zeros(f.capacity, np.bool_)
    mask[chosen] = True
    rows = slice(None) if len(chosen) == f.capacity else np.flatnonzero(mask)
    queue_s, transfer_s, prefill_s = predicted
    joining = Joining(
        request=request(0, tokens=tokens, output_tokens_expected=50),
        prefill=data.draw(st.sampled_from(range(len(nodes)))),
        predicted=Prediction(queue_s=queue_s, transfer_s=transfer_s, prefill_s=prefill_s),
        held=held,
        wait_s=wait_s,
        when_s=sum(predicted) if early else None,
        added_tokens=tokens + 50 * 0.5,
        tbt_slo_s=rules[2],
    )
    t = Tunables().changed({"decode.tbt_weight": rules[0], "admission.tbt_slack": rules[1]})
    left = Standing(mask, len(chosen), {}, rows)
    arrays = weigh(f, ledger, links, t, joining, left)
    lists = weigh_few(f, ledger, links, t, joining, left)
    for column in arrays.__struct_fields__:
        expected, found = getattr(arrays, column), getattr(lists, column)
        assert np.array_equal(np.asarray(expected), np.asarray(found)), column
    picked = [_pick_feasible(w, random.Random(1)) for w in (arrays, lists)]
    assert picked[0] == picked[1]
    tables = [_table(f, w, rules[0], *picked[0]) for w in (arrays, lists)]
    for name, column in (tables[0].columns | tables[0].terms | {"total": tables[0].total}).items():
        other = (tables[1].columns | tables[1].terms | {"total": tables[1].total})[name]
        assert column.dtype == other.dtype, name
        assert np.array_equal(column, other), name

"""Every policy against its plain twin, and what must hold of all of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import policy_twins as twins
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from core.clock import seeded
from core.policy import get_policy, pick, policy_names
from core.tunables import Tunables

OPTIONS = (
    {},
    {"multiplicative.count_queued": False, "multiplicative.network_weight": 2.0},
    {"multiplicative.log_tokens": True, "linear.alpha": 1.0, "linear.beta": 0.0},
    {"dynamo.credit_decay": 0.5, "dynamo.prefill_load_scale": 2.0, "smg_cache_aware.spread_max": 5},
)
tunables = st.sampled_from([Tunables().changed(o) for o in OPTIONS])
few = settings(max_examples=100, deadline=None)


def totals(name: str, case: twins.Case, t: Tunables) -> np.ndarray:
    """Totals in the direction where less is better."""
    policy = get_policy(name)
    total = policy.score(twins.columns(case), t).total
    return total if policy.sense == "min" else -total


def better(total: np.ndarray, row: int, *, margin: float) -> int:
    """Rows whose total is below that of `row` by more than `margin` (relative)."""
    edge = total[row] - margin * max(abs(total[row]), 1e-3)
    return sum(bool(total[m] < edge) for m in range(len(total)) if m != row)


def no_gain(before: np.ndarray, after: np.ndarray, row: int) -> bool:
    """Whether `row` gained no place, rounding apart."""
    return better(after, row, margin=-1e-9) >= better(before, row, margin=1e-9)


def grown(case: twins.Case, row: int, node: twins.Node) -> twins.Case:
    """The case with another node in that row."""
    return replace(case, nodes=[*case.nodes[:row], node, *case.nodes[row + 1 :]])


def test_every_policy_has_a_twin() -> None:
    assert sorted(twins.TWINS) == policy_names()


@given(case=twins.cases(), t=tunables, fetching=st.booleans())
@few
def test_every_policy_equals_its_plain_loop(case: twins.Case, t: Tunables, fetching: bool) -> None:
    case.fetching = fetching
    columns = twins.columns(case)
    for name in policy_names():
        scores = get_policy(name).score(columns, t)
        expected = [twins.TWINS[name](case, n, t) for n in case.nodes]
        assert scores.total.dtype == np.float64, name
        assert scores.total.shape == (len(case.nodes),), name
        assert np.allclose(scores.total, expected, rtol=1e-12, atol=1e-12), name


@given(case=twins.cases(fetching=True), t=tunables)
@few
def test_totals_and_terms_are_finite(case: twins.Case, t: Tunables) -> None:
    columns = twins.columns(case)
    for name in policy_names():
        scores = get_policy(name).score(columns, t)
        for array in (scores.total, *scores.terms.values()):
            assert array.shape == (len(case.nodes),), name
            assert np.isfinite(array).all(), name


@given(case=twins.cases(fetching=True), t=tunables, data=st.data())
@few
def test_order_of_candidates_does_not_matter(
    case: twins.Case, t: Tunables, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(case.nodes))))
    shuffled = replace(case, nodes=[case.nodes[i] for i in order])
    for name in policy_names():
        total = totals(name, case, t)[list(order)]
        assert np.allclose(totals(name, shuffled, t), total, rtol=1e-12, atol=1e-12), name


@given(case=twins.cases(nodes_min=2), t=tunables, data=st.data())
@few
def test_more_match_never_hurts(case: twins.Case, t: Tunables, data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(case.nodes) - 1))
    node = case.nodes[row]
    more = replace(node, match=data.draw(st.integers(node.match, case.length)))
    after = grown(case, row, more)
    for name in policy_names():
        assert no_gain(totals(name, after, t), totals(name, case, t), row), name


@given(case=twins.cases(fetching=True, nodes_min=2), data=st.data())
@few
def test_more_match_never_hurts_while_the_node_fetches_or_not(
    case: twins.Case, data: st.DataObject
) -> None:
    """At the threshold itself Algorithm 1 may jump: a node that just stopped fetching computes
    the rest of the prefix instead, which can take longer than the fetch did."""
    row = data.draw(st.integers(0, len(case.nodes) - 1))
    node = case.nodes[row]
    more = replace(node, match=data.draw(st.integers(node.match, case.length)))
    after = grown(case, row, more)
    assume(after.best == case.best)
    assume(twins.fetches(case, node) == twins.fetches(after, more))
    for name in ("min_ttft", "priced_ttft", "size_aware"):
        before, then = totals(name, case, Tunables()), totals(name, after, Tunables())
        assert no_gain(then, before, row), name


@given(case=twins.cases(nodes_min=2), t=tunables, data=st.data())
@few
def test_more_load_never_helps(case: twins.Case, t: Tunables, data: st.DataObject) -> None:
    """Each figure of one node's load may grow; the fleet's means are given with the case."""
    row = data.draw(st.integers(0, len(case.nodes) - 1))
    node = case.nodes[row]
    more = replace(
        node,
        queued=node.queued + data.draw(st.sampled_from([0.0, 1.0, 5000.0, 1e6])),
        running=node.running + data.draw(st.integers(0, 50)),
        waiting=node.waiting + data.draw(st.integers(0, 50)),
        inflight=node.inflight + data.draw(st.sampled_from([0.0, 1000.0, 5e6])),
        kv=min(node.kv + data.draw(st.sampled_from([0.0, 0.2])), 1.0),
    )
    after = grown(case, row, more)
    for name in policy_names():
        assert no_gain(totals(name, case, t), totals(name, after, t), row), name


@given(
    values=st.lists(
        st.floats(allow_nan=True, allow_infinity=False, width=32), min_size=1, max_size=9
    ),
    sense=st.sampled_from(["min", "max"]),
    seed=st.integers(0, 5),
)
@settings(max_examples=200, deadline=None)
def test_pick_takes_a_best_number(values: list[float], sense: str, seed: int) -> None:
    numbers = [v for v in values if v == v]
    assume(numbers)
    row, tied = pick(np.array(values), sense, seeded(seed))
    best = min(numbers) if sense == "min" else max(numbers)
    assert values[row] == pytest.approx(best, rel=1e-11)
    assert tied >= values.count(best)

"""Links, transfer times, overlap, and the topology's rows."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.domain import LinkKind, NodeId, NodeSpec, Place
from core.errors import Invalid
from core.plan.cost_model import profile
from core.plan.transfer import (
    LINKS,
    Link,
    Topology,
    exposed_seconds,
    kv_dtype_factor,
)


def node(name: str, *links: LinkKind, host: str = "") -> NodeSpec:
    return NodeSpec(id=NodeId(name), url="http://x", links=links, place=Place(host=host))


def joined(a: NodeSpec, b: NodeSpec, uniform: Link | None = None) -> Topology:
    """Two nodes in slots 0 and 1."""
    topology = Topology(2, uniform=uniform)
    topology.set_node(0, a)
    topology.set_node(1, b)
    return topology


def idle_seconds(nbytes: float, link: Link) -> float:
    """Time between two nodes that share this link."""
    return joined(node("a"), node("b"), uniform=link).seconds(nbytes, 0, 1)


def link_of(a: NodeSpec, b: NodeSpec) -> LinkKind | None:
    """The kind whose rate a transfer between them has; None where no path leads."""
    latency, per_byte = joined(a, b).listed(0)
    found = [kind for kind, link in LINKS.items() if link.s_per_byte == per_byte[1]]
    return found[0] if found and latency[1] < np.inf else None


@pytest.mark.parametrize(
    ("kind", "milliseconds"),
    [
        (LinkKind.NVLINK, 1.5),
        (LinkKind.IB_HDR, 54),
        (LinkKind.IB_NDR, 27),
        (LinkKind.ROCE, 107),
        (LinkKind.TCP, 430),
    ],
)
def test_the_table_of_4k_transfers(kind: LinkKind, milliseconds: float) -> None:
    """S2 4.4.2. Its times imply 4096 tokens of 327,680 bytes (LLaMA3-70B) at line rate."""
    bytes_per_token = 327_680
    assert profile("llama3-70b-8xa800").kv_bytes_per_token == bytes_per_token
    line_rate = replace(LINKS[kind], efficiency=1.0)
    seconds = idle_seconds(4096 * bytes_per_token, line_rate)
    assert seconds * 1e3 == pytest.approx(milliseconds, rel=0.01)


def test_links_stay_in_the_documented_ranges() -> None:
    ranges = {
        LinkKind.NVLINK: (0.85, 0.90),
        LinkKind.IB_NDR: (0.90, 0.95),
        LinkKind.IB_HDR: (0.90, 0.95),
        LinkKind.ROCE: (0.90, 0.95),
        LinkKind.TCP: (0.70, 0.80),
    }
    assert set(LINKS) == set(LinkKind)
    for kind, (low, high) in ranges.items():
        assert low <= LINKS[kind].efficiency <= high
    rates = [LINKS[kind].bytes_per_s for kind in LinkKind]
    assert rates == sorted(rates, reverse=True)


def test_transfer_adds_latency_and_divides_by_the_reached_rate() -> None:
    link = Link(bytes_per_s=1e9, latency_s=0.5, efficiency=0.5)
    assert idle_seconds(1e9, link) == pytest.approx(2.5)
    assert idle_seconds(0, link) == 0.0


@pytest.mark.parametrize(
    ("field", "kw"),
    [
        ("bytes_per_s", {"bytes_per_s": 0}),
        ("efficiency", {"bytes_per_s": 1, "efficiency": 1.2}),
        ("latency_s", {"bytes_per_s": 1, "latency_s": -1}),
    ],
)
def test_an_impossible_link_names_the_field(field: str, kw: dict[str, float]) -> None:
    with pytest.raises(Invalid, match=field):
        Link(**kw)


@pytest.mark.parametrize(
    ("dtype", "factor"),
    [("auto", 1.0), ("bfloat16", 1.0), ("fp8", 0.5), ("fp8_e4m3", 0.5), ("int8", 0.5)],
)
def test_quantised_caches_halve_the_bytes(dtype: str, factor: float) -> None:
    assert kv_dtype_factor(dtype) == factor


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(Invalid, match="float64"):
        kv_dtype_factor("float64")


def test_overlap_hides_all_but_one_layer_of_a_fast_transfer() -> None:
    assert exposed_seconds(0.4, 10.0, 80) == pytest.approx(0.4 / 80)
    assert exposed_seconds(20.0, 10.0, 10) == pytest.approx(20 - 9)
    assert exposed_seconds(3.0, 10.0, 1) == pytest.approx(3.0)
    assert exposed_seconds(3.0, 10.0, 0) == pytest.approx(3.0)
    assert exposed_seconds(0.0, 10.0, 80) == 0.0
    both = exposed_seconds(np.array([0.4, np.inf]), np.array([10.0, 10.0]), 80)
    assert both.tolist() == pytest.approx([0.005, np.inf])


@given(transfer=st.floats(0, 100), compute=st.floats(0, 100), layers=st.integers(1, 12))
@settings(max_examples=200, deadline=None)
def test_overlap_equals_the_layer_by_layer_schedule(
    transfer: float, compute: float, layers: int
) -> None:
    arrived = done = 0.0
    for _ in range(layers):
        arrived += transfer / layers
        done = max(done, arrived) + compute / layers
    assert exposed_seconds(transfer, compute, layers) == pytest.approx(done - compute, abs=1e-9)


def test_nvlink_joins_only_one_known_host() -> None:
    links = (LinkKind.NVLINK, LinkKind.TCP)
    a, b = node("a", *links, host="h1"), node("b", *links, host="h1")
    assert link_of(a, b) is LinkKind.NVLINK
    assert link_of(a, node("c", *links, host="h2")) is LinkKind.TCP
    assert link_of(node("d", *links), node("e", *links)) is LinkKind.TCP
    assert link_of(a, node("f", LinkKind.NVLINK, host="h2")) is None


def test_the_best_common_kind_is_used_whatever_the_order_of_registration() -> None:
    a = node("a", LinkKind.TCP, LinkKind.ROCE, LinkKind.IB_HDR)
    b = node("b", LinkKind.IB_NDR, LinkKind.ROCE, LinkKind.TCP)
    assert link_of(a, b) is LinkKind.ROCE


def test_rows_give_zero_at_home_and_infinity_without_a_path() -> None:
    topology = Topology(4)
    topology.set_node(0, node("a", LinkKind.IB_NDR))
    topology.set_node(2, node("b", LinkKind.IB_NDR, LinkKind.TCP))
    topology.set_node(3, node("c", LinkKind.TCP))
    latency, per_byte = topology.row(0)
    ndr = LINKS[LinkKind.IB_NDR]
    assert latency.tolist() == [0.0, np.inf, ndr.latency_s, np.inf]
    assert per_byte[[0, 2]].tolist() == [0.0, ndr.s_per_byte]
    nothing = latency + 0.0 * per_byte
    assert nothing.tolist() == [0.0, np.inf, ndr.latency_s, np.inf]
    assert topology.seconds(1e9, 0, 2) == pytest.approx(ndr.latency_s + 1e9 * ndr.s_per_byte)
    assert topology.seconds(1e9, 0, 0) == 0.0
    assert topology.seconds(1e9, 0, 3) == np.inf


def test_rows_are_kept_until_a_node_changes() -> None:
    topology = Topology(2)
    topology.set_node(0, node("a", LinkKind.TCP))
    topology.set_node(1, node("b", LinkKind.TCP))
    first = topology.row(0)
    assert topology.row(0) is first
    with pytest.raises(ValueError, match="read-only"):
        first[0][1] = 1.0
    topology.set_node(1, node("b", LinkKind.ROCE))
    assert topology.row(0)[0][1] == np.inf
    topology.set_node(1, node("b", LinkKind.TCP))
    assert topology.row(0)[0][1] == LINKS[LinkKind.TCP].latency_s
    topology.remove_node(1)
    assert topology.row(0)[0][1] == np.inf
    assert topology.row(1)[0].tolist() == [np.inf, 0.0]


def test_rows_widen_with_the_fleet() -> None:
    topology = Topology(1)
    topology.set_node(0, node("a", LinkKind.TCP))
    assert len(topology.row(0)[0]) == 1
    topology.resize(3)
    assert len(topology.row(0)[0]) == topology.slots == 3
    topology.set_node(5, node("b", LinkKind.TCP))
    assert len(topology.row(0)[0]) == 6
    topology.resize(2)
    assert topology.slots == 6


def test_one_uniform_link_overrules_all_kinds() -> None:
    topology = Topology(3, uniform=Link(bytes_per_s=100e9))
    topology.set_node(0, node("a", LinkKind.TCP))
    topology.set_node(1, node("b", LinkKind.ROCE))
    assert topology.seconds(100e9, 0, 1) == pytest.approx(1.0)
    assert topology.seconds(1.0, 0, 2) == np.inf


@given(
    specs=st.lists(
        st.tuples(st.sets(st.sampled_from(LinkKind)), st.sampled_from(["", "h1", "h2"])),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=60, deadline=None)
def test_rows_agree_with_pairs(specs: list[tuple[set[LinkKind], str]]) -> None:
    nodes = [node(f"n{i}", *links, host=host) for i, (links, host) in enumerate(specs)]
    topology = Topology(1)
    for slot, spec in enumerate(nodes):
        topology.set_node(slot, spec)
    for a, b in itertools.permutations(range(len(nodes)), 2):
        kind = link_of(nodes[a], nodes[b])
        expected = idle_seconds(1e6, LINKS[kind]) if kind else np.inf
        assert topology.seconds(1e6, a, b) == pytest.approx(expected)

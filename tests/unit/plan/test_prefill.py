"""Columns of the prefill candidates: predictions, and the fetch rule of F Algorithm 1."""

import numpy as np
import pytest
from fleet_cases import COST, fleet, request, spec

from core.domain import LinkKind, NodeId, Place, Telemetry
from core.fleet.state import NodeCost
from core.plan.few import FewCandidates
from core.plan.prefill import LiveCandidates
from core.plan.transfer import Link, Topology
from core.tunables import Tunables

EVERYTHING = frozenset({"network", "session"})
FORM = LiveCandidates


@pytest.fixture(params=[LiveCandidates, FewCandidates], autouse=True)
def form(request, monkeypatch):
    """Every test holds for arrays and for the lists of small fleets."""
    monkeypatch.setitem(globals(), "FORM", request.param)


def source(c):
    """The slot that the candidates fetch from; None where nobody fetches."""
    (found,) = {c.at(row).source for row in range(c.size)} - {None} or {None}
    return found


def topology(f, **more):
    made = Topology(f.capacity, **more)
    for slot, one in f.slots():
        made.set_node(slot, one)
    return made


def columns(f, match, r=None, *, now=0.0, rows=None, changes=None, needs=EVERYTHING, links=None):
    row = np.zeros(f.capacity, np.int64)
    row[: len(match)] = match
    return FORM(
        f,
        links or topology(f),
        Tunables().changed(changes or {}),
        r or request(0, tokens=1000),
        now,
        match=row,
        rows=np.arange(len(f)) if rows is None else rows,
        mean_prefill_s=0.5,
        needs=needs,
    )


@pytest.fixture
def three():
    return fleet(*(spec(name, can_fetch=True) for name in "abc"))


# -- predictions --------------------------------------------------------------------------------


def test_prefill_time_is_that_of_the_uncached_part_on_each_node():
    f = fleet(spec("a"), spec("b"))
    f.set_cost(NodeId("b"), (0.5, 2e-3, 1e-6))
    c = columns(f, [400, 600])
    assert c.prefill_s == pytest.approx([0.6, 0.5 + 400 * 2e-3 + 1e-6 * (1000**2 - 600**2)])
    assert c.prefix_tokens.tolist() == [400, 600]
    assert c.transfer_s.tolist() == [0, 0]
    assert c.reachable_tokens == 600


def test_an_empty_prompt_takes_no_time():
    f = fleet(spec("a"))
    f.set_cost(NodeId("a"), (0.5, 1e-3, 0.0))
    c = columns(f, [0], request(0, tokens=0))
    assert c.prefill_s.tolist() == [0.0]
    assert source(c) is None


def test_columns_are_those_of_the_asked_rows(three):
    three.queued_s[:3], three.queued_tokens[:3] = [1, 2, 3], [10, 20, 30]
    three.prefilling[:3], three.last_picked[:3] = [1, 2, 3], [7, 8, 9]
    three.prompt_tokens[:3], three.kv_tokens[:3] = [5, 6, 7], [0, 0, 500_000]
    c = columns(three, [0, 0, 0], rows=np.array([2, 0]))
    assert c.queue_s.tolist() == [3, 1]
    assert c.queued_tokens.tolist() == [30, 10]
    assert c.batch.tolist() == c.waiting.tolist() == [3, 1]
    assert c.last_picked.tolist() == [9, 7]
    assert c.inflight_tokens.tolist() == [7, 5]
    assert c.kv_usage.tolist() == [0.5, 0.0]
    assert c.load == pytest.approx([0.5, 1 / 30])
    assert c.mean_queue_s == 2.0
    assert c.queue_max.tolist() == [1024, 1024]
    assert c.resident.all()
    assert c.size == 2


def test_a_column_that_does_not_exist_is_an_error(three):
    with pytest.raises(AttributeError, match="nonsense"):
        columns(three, [0]).nonsense  # noqa: B018


def test_gauges_are_looked_at_once_there_are_any(three):
    assert columns(three, [0]).believed is None
    three.set_telemetry(NodeId("b"), Telemetry(running=9, waiting=1), 5.0)
    assert columns(three, [0], now=6.0).batch.tolist() == [0, 10, 0]
    assert columns(three, [0], now=60.0).batch.tolist() == [0, 0, 0]


# -- fetching -----------------------------------------------------------------------------------


def test_a_node_fetches_what_the_best_holder_has_more(three):
    c = columns(three, [800, 0, 0], links=topology(three, uniform=Link(bytes_per_s=1e9)))
    assert c.fetch.tolist() == [False, True, True]
    assert c.prefix_tokens.tolist() == [800, 800, 800]
    assert c.fetched_prefill_s == pytest.approx([0.2, 0.2, 0.2])
    # 800 tokens of 1e5 bytes take 80 ms; all but the first of 10 layers hides behind 200 ms.
    assert c.transfer_s == pytest.approx([0.0, 0.008, 0.008])
    assert c.prefill_s == pytest.approx([0.2, 1.0, 1.0])
    assert source(c) == 0


@pytest.mark.parametrize(("own", "fetches"), [(615, True), (616, False)])
def test_the_threshold_is_on_the_ratio_of_matches(three, own, fetches):
    c = columns(three, [800, own], links=topology(three, uniform=Link(bytes_per_s=1e12)))
    assert bool(c.fetch[1]) is fetches


def test_without_the_ability_or_the_switch_nobody_fetches(three):
    fast = {"links": topology(three, uniform=Link(bytes_per_s=1e12))}
    assert source(columns(three, [800, 0], changes={"fetch.enabled": False}, **fast)) is None
    three.update(spec("b"))
    assert columns(three, [800, 0, 0], **fast).fetch.tolist() == [False, False, True]
    three.update(spec("a"))
    three.update(spec("c"))
    assert source(columns(three, [800, 0, 0], **fast)) is None


def test_computing_is_preferred_where_it_is_faster(three):
    slow = topology(three, uniform=Link(bytes_per_s=5e7))  # 1.6 s for what takes 0.8 s
    c = columns(three, [800, 0, 0], links=slow)
    assert source(c) is None
    assert c.fetched_prefill_s == pytest.approx([0.2, 1.0, 1.0])
    assert c.transfer_s.tolist() == [0, 0, 0]


def test_no_path_means_no_fetch_and_no_infinity_in_the_columns():
    f = fleet(
        spec("a", can_fetch=True, links=(LinkKind.IB_NDR,)),
        spec("b", can_fetch=True, links=(LinkKind.TCP,)),
        spec("c", can_fetch=True, links=(LinkKind.IB_NDR,)),
    )
    c = columns(f, [800, 0, 0])
    assert c.fetch.tolist() == [False, False, True]
    assert np.isfinite(c.transfer_s).all()
    assert c.prefix_tokens.tolist() == [800, 0, 800]


def test_a_busy_sender_is_waited_for_until_computing_wins(three):
    links = topology(three, uniform=Link(bytes_per_s=1e9))
    three.egress_until_s[0] = 10.5
    c = columns(three, [800, 0, 0], now=10.0, links=links)
    assert c.transfer_s[1] == pytest.approx(0.5 + 0.08 - 0.2 * 0.9)
    three.egress_until_s[0] = 12.0
    assert source(columns(three, [800, 0, 0], now=10.0, links=links)) is None


def test_of_equal_holders_the_one_whose_sender_is_free_serves(three):
    three.egress_until_s[:2] = [1.2, 1.1]
    links = topology(three, uniform=Link(bytes_per_s=1e9))
    assert source(columns(three, [800, 800, 0], now=1.0, links=links)) == 1
    three.egress_until_s[0] = 1.0
    assert source(columns(three, [800, 800, 0], now=1.0, links=links)) == 0


def test_of_equal_holders_one_that_reaches_the_others_serves():
    f = fleet(
        spec("a", can_fetch=True, links=(LinkKind.ROCE,)),
        spec("b", can_fetch=True, links=(LinkKind.IB_NDR,)),
        spec("c", can_fetch=True, links=(LinkKind.IB_NDR,)),
    )
    f.egress_until_s[1] = 0.1
    c = columns(f, [800, 800, 0])
    assert source(c) == 1
    assert c.fetch.tolist() == [False, False, True]


def test_the_bytes_are_those_of_the_sender():
    f = fleet(spec("a", can_fetch=True))
    small = NodeCost(prefill=COST.prefill, tbt=COST.tbt, kv_bytes_per_token=1.0, layers=1)
    f.add(spec("b", can_fetch=True), small)
    links = topology(f, uniform=Link(bytes_per_s=1e9))
    # One layer of the sender's model: nothing hides.
    c = columns(f, [0, 800], links=links)
    assert c.transfer_s[0] == pytest.approx(800 / 1e9 + 0.0, abs=1e-9)


# -- network and session ------------------------------------------------------------------------


def test_closeness_is_relative_to_the_fastest_link_of_the_holder():
    host = Place(host="h")
    f = fleet(
        spec("holder", place=host, links=(LinkKind.NVLINK, LinkKind.IB_NDR, LinkKind.TCP)),
        spec("same", place=host, links=(LinkKind.NVLINK, LinkKind.TCP)),
        spec("near", links=(LinkKind.IB_NDR,)),
        spec("far", links=(LinkKind.TCP,)),
        spec("cut", links=(LinkKind.ROCE,)),
    )
    c = columns(f, [800])
    near, far = c.network[2], c.network[3]
    assert c.network[:2].tolist() == [1.0, 1.0]
    assert 1 > near > far > 0
    assert near == pytest.approx(50e9 * 0.925 / (900e9 * 0.875))
    assert c.network[4] == pytest.approx(0.0, abs=1e-9)
    assert columns(f, [0]).network.tolist() == [1.0] * 5
    assert columns(f, [800], needs=frozenset()).network.tolist() == [1.0] * 5


def test_a_session_ranks_each_node_whoever_else_is_there(three):
    r = request(0, tokens=10, session="s")
    ranks = columns(three, [0], r).session_hash
    assert columns(three, [0], r, rows=np.array([2, 0])).session_hash.tolist() == [
        ranks[2], ranks[0],
    ]  # fmt: skip
    assert (ranks >= 0).all()
    assert len(set(ranks.tolist())) == 3
    other = columns(three, [0], request(0, tokens=10, session="t")).session_hash
    assert other.tolist() != ranks.tolist()
    assert columns(three, [0]).session_hash is None
    assert columns(three, [0], r, needs=frozenset()).session_hash is None


def test_a_session_spreads_over_the_nodes(three):
    picks = [
        int(columns(three, [0], request(0, tokens=1, session=str(i))).session_hash.argmax())
        for i in range(300)
    ]
    assert min(np.bincount(picks, minlength=3)) > 60

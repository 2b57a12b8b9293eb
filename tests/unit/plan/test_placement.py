"""Decode selection: staying, moving, and the limits that a choice must keep."""

import random

import numpy as np
import pytest
from fleet_cases import COST, decision, fleet, request, spec

from core.domain import LinkKind, NodeId, Prediction, Reason, Role
from core.fleet.ledger import Ledger
from core.fleet.state import NodeCost
from core.plan.decode_room import with_decode_room
from core.plan.placement import DecodeChoice, Reach, choose_decode
from core.plan.transfer import Link, Topology
from core.policy.constraints import StandingCache
from core.tunables import Tunables

P, D, B = Role.PREFILL, Role.DECODE, Role.BOTH


class Place:
    """A fleet with its ledger and links; `choose` from slot of a prefill node."""

    def __init__(self, *specs, cost=COST, uniform=None):
        self.fleet = fleet(*specs, cost=cost)
        self.ledger = Ledger(self.fleet)
        self.standing, self.reach = StandingCache(), Reach()
        self.links = Topology(self.fleet.capacity, uniform=uniform)
        for slot, one in self.fleet.slots():
            self.links.set_node(slot, one)

    def slot(self, node):
        return self.fleet.slot(NodeId(node))

    def begin(self, *nodes, now=0.0, tbt_slo_s=0.2, **more):
        return self.ledger.begin(decision(self.fleet, *nodes, **more), now, tbt_slo_s=tbt_slo_s)

    def choose(self, prefill, r=None, *, now=0.0, held=None, changes=None, seed=0, **predicted):
        r = r or request(0, tokens=1000, output_tokens_expected=100)
        t = Tunables().changed(changes or {})
        allowed = np.ones(self.fleet.capacity, np.bool_)
        row = np.zeros(self.fleet.capacity, np.int64)
        for node, tokens in (held or {}).items():
            row[self.slot(node)] = tokens
        decoders = self.standing.get(self.fleet, r, allowed, decode=True)
        times = {"queue_s": 0.0, "transfer_s": 0.0, "prefill_s": 1.0} | predicted
        return choose_decode(
            self.fleet,
            self.ledger,
            self.links,
            t,
            r,
            now,
            standing=self.reach.get(self.fleet, self.links, decoders, self.slot(prefill)),
            prefill=self.slot(prefill),
            predicted=Prediction(**times),
            held=row,
            tbt_slo_s=r.tbt_slo_s or t.slo.tbt_s,
            rng=random.Random(seed),
            explain=True,
        )

    def name(self, choice):
        assert isinstance(choice, DecodeChoice), choice
        return self.fleet.node_at(choice.slot)


def batch(place, node, requests, **more):
    """Requests that decode on the node now."""
    for _ in range(requests):
        place.begin(node, **({"prompt": 100, "output": 100} | more)).first_token(0.0)


# -- who is a candidate -------------------------------------------------------------------------


def test_a_node_that_does_both_keeps_its_prompt_when_nothing_speaks_against_it():
    place = Place(spec("b"), spec("d", role=D))
    choice = place.choose("b")
    assert place.name(choice) == "b"
    assert choice.transfer_s == choice.moved_tokens == 0
    assert choice.tbt_s == pytest.approx(0.01)


def test_a_prefill_node_hands_over_within_its_group():
    place = Place(
        spec("p", role=P),
        spec("d", role=D),
        spec("other", role=D, kv_transfer="bootstrap"),
        spec("alone", role=D, kv_transfer=""),
    )
    choice = place.choose("p")
    assert place.name(choice) == "d"
    assert choice.moved_tokens == 1000
    assert choice.excluded == {Reason.ROLE: ("p",), Reason.NO_PATH: ("other", "alone")}


def test_nodes_without_a_connector_stay_where_they_are():
    place = Place(spec("a", kv_transfer=""), spec("b", kv_transfer=""))
    batch(place, "a", 5)
    assert place.name(place.choose("a")) == "a"
    lone = Place(spec("p", role=P, kv_transfer=""), spec("d", role=D, kv_transfer=""))
    assert lone.choose("p") == {Reason.ROLE: ("p",), Reason.NO_PATH: ("d",)}


def test_a_node_that_no_link_leads_to_is_no_candidate():
    place = Place(
        spec("p", role=P, links=(LinkKind.IB_NDR,)),
        spec("cut", role=D, links=(LinkKind.TCP,)),
    )
    assert place.choose("p") == {Reason.ROLE: ("p",), Reason.NO_PATH: ("cut",)}
    place.fleet.add(spec("d", role=D, links=(LinkKind.IB_NDR,)), COST)
    place.fleet.healthy[place.slot("d")] = True
    place.links.set_node(place.slot("d"), place.fleet.spec(NodeId("d")))
    choice = place.choose("p")
    assert place.name(choice) == "d"
    assert np.isfinite(choice.transfer_s)


def test_reach_is_remembered_for_each_prefill_node_until_nodes_change():
    place = Place(spec("p", role=P), spec("d"), spec("x", kv_transfer=""))

    def reached(prefill):
        r, allowed = request(0, tokens=10), np.ones(place.fleet.capacity, np.bool_)
        decoders = place.standing.get(place.fleet, r, allowed, decode=True)
        found = place.reach.get(place.fleet, place.links, decoders, place.slot(prefill))
        return {place.fleet.node_at(int(s)) for s in np.flatnonzero(found.mask)}, found

    assert reached("p")[0] == {"d"}
    assert reached("x")[0] == {"x"}
    assert reached("p")[1] is reached("p")[1]
    place.fleet.update(spec("x"))
    place.links.set_node(place.slot("x"), spec("x"))
    assert reached("p")[0] == {"d", "x"}


# -- which is chosen ----------------------------------------------------------------------------


def test_transfer_and_time_between_tokens_are_weighed_against_each_other():
    slow_batch = NodeCost(
        prefill=COST.prefill, tbt=(0.01, 0.01, 0.0), kv_bytes_per_token=1e5, layers=1
    )
    place = Place(spec("b"), spec("d", role=D), cost=slow_batch, uniform=Link(bytes_per_s=1e9))
    # Moving 1000 tokens takes 0.1 s and one layer hides nothing of it.
    batch(place, "b", 5, output=10_000, tbt_s=1.0)
    assert place.name(place.choose("b")) == "b"
    assert place.name(place.choose("b", changes={"decode.tbt_weight": 10.0})) == "d"
    batch(place, "b", 7, output=10_000, tbt_s=1.0)
    assert place.name(place.choose("b")) == "d"


def test_kv_that_is_there_already_does_not_move():
    place = Place(spec("p", role=P), spec("d1", role=D), spec("d2", role=D))
    for seed in range(5):
        choice = place.choose("p", held={"d2": 992}, seed=seed)
        assert place.name(choice) == "d2"
        assert choice.moved_tokens == 8


def test_equal_nodes_are_drawn_from():
    place = Place(spec("p", role=P), *(spec(f"d{i}", role=D) for i in range(4)))
    chosen = {place.name(place.choose("p", seed=seed)) for seed in range(60)}
    assert chosen == {"d0", "d1", "d2", "d3"}
    assert place.choose("p").table.tied == 4


def test_a_busy_sender_delays_the_hand_over():
    place = Place(spec("p", role=P), spec("d", role=D), uniform=Link(bytes_per_s=1e9))
    # 0.1 s on the link; one of ten layers comes after a second of computing.
    assert place.choose("p").transfer_s == pytest.approx(0.01)
    place.fleet.handover_until_s[0] = 5.0
    assert place.choose("p").transfer_s == pytest.approx(5.0 + 0.1 - 0.9)
    assert place.choose("p", queue_s=5.0).transfer_s == pytest.approx(0.01)
    place.fleet.egress_until_s[0] = 7.0
    assert place.choose("p").transfer_s == pytest.approx(7.0 + 0.1 - 0.9)


# -- limits -------------------------------------------------------------------------------------

BY_BATCH = NodeCost(prefill=COST.prefill, tbt=(0.0, 0.01, 0.0), kv_bytes_per_token=1e5, layers=10)
"""10 ms between tokens for every request of the batch."""


def test_a_node_where_the_request_would_miss_its_limit_is_passed_over():
    place = Place(spec("p", role=P), spec("d1", role=D), spec("d2", role=D), cost=BY_BATCH)
    for _ in range(5):
        place.begin("p", "d1", output=1000, tbt_s=0.05)
    r = request(0, tokens=10, output_tokens_expected=10, tbt_slo_s=0.05)
    assert place.name(place.choose("p", r)) == "d2"


def test_the_limits_of_those_already_decoding_are_kept_too():
    place = Place(spec("p", role=P), spec("d1", role=D), spec("d2", role=D), cost=BY_BATCH)
    place.begin("p", "d1", output=1000, tbt_s=0.05, tbt_slo_s=0.015)
    for _ in range(3):
        place.begin("p", "d2", output=1000, tbt_s=0.05, tbt_slo_s=1.0)
    choice = place.choose("p")
    assert place.name(choice) == "d2"
    assert choice.table.columns["feasible"].tolist() == [False, True]
    assert choice.feasible


def test_where_no_limit_can_be_kept_the_least_slowed_is_named_infeasible():
    place = Place(spec("p", role=P), spec("d1", role=D), spec("d2", role=D), cost=BY_BATCH)
    for node, requests in (("d1", 30), ("d2", 25)):
        for _ in range(requests):
            place.begin("p", node, output=1000, tbt_s=1.0)
    choice = place.choose("p")
    assert place.name(choice) == "d2"
    assert not choice.feasible
    assert choice.tbt_s == choice.tbt_least_s == pytest.approx(0.26)


def test_early_rejection_looks_at_the_batch_of_the_prefills_end():
    place = Place(spec("p", role=P), spec("d", role=D), cost=BY_BATCH)
    for output in (10, 10, 500):
        place.begin("p", "d", output=output, prefill_s=0.0, tbt_s=0.01)
    early = place.choose("p", prefill_s=1.0)
    assert early.tbt_s == early.tbt_least_s == pytest.approx(0.02)
    assert early.table.columns["batch"].tolist() == [3]
    assert early.table.columns["batch_then"].tolist() == [1]
    assert early.decode_s == pytest.approx(0.1)
    late = place.choose("p", prefill_s=1.0, changes={"admission.early_rejection": False})
    assert late.tbt_s == pytest.approx(0.04)
    assert late.table.columns["batch_then"].tolist() == [3]


def test_the_batch_to_come_includes_who_waits_on_the_same_node():
    place = Place(spec("b", kv_transfer=""), cost=BY_BATCH)
    for _ in range(3):
        place.begin("b", output=1000, tbt_s=0.05)
    assert place.choose("b", queue_s=3.0).tbt_s == pytest.approx(0.04)
    now = place.choose("b", queue_s=3.0, changes={"admission.early_rejection": False})
    assert now.tbt_s == pytest.approx(0.01)


def test_prompts_that_wait_hold_no_kv_yet_on_their_node():
    by_kv = NodeCost(prefill=COST.prefill, tbt=(0.0, 0.0, 1e-6), kv_bytes_per_token=1e5, layers=10)
    place = Place(spec("b", kv_transfer="", kv_capacity_tokens=3000), cost=by_kv)
    place.begin("b", prompt=2500, output=100)
    choice = place.choose("b", changes={"admission.early_rejection": False})
    assert choice.tbt_s == pytest.approx(1100e-6)
    batch(place, "b", 1, prompt=1900, output=50)
    assert place.choose("b") == {Reason.KV_HEADROOM: ("b",)}


def test_headroom_and_batch_slots_are_needed_where_the_prompt_goes():
    place = Place(
        spec("p", role=P),
        spec("small", role=D, kv_capacity_tokens=2000),
        spec("full", role=D, batch_max=1),
        spec("short", role=D, context_tokens_max=1000),
        spec("d", role=D),
    )
    place.begin("p", "small", prompt=900, output=10)
    place.begin("p", "full", prompt=1, output=1)
    choice = place.choose("p")
    assert place.name(choice) == "d"
    assert choice.excluded == {
        Reason.ROLE: ("p",),
        Reason.CONTEXT: ("short",),
        Reason.BATCH_CAP: ("full",),
        Reason.KV_HEADROOM: ("small",),
    }


def test_the_table_shows_what_was_compared():
    place = Place(spec("p", role=P), spec("d1", role=D), spec("d2", role=D))
    table = place.choose("p", held={"d1": 496}).table
    assert table.nodes == ("d1", "d2")
    assert table.columns["missing_tokens"].tolist() == [504, 1000]
    assert set(table.terms) == {"transfer", "tbt", "move"}
    assert table.total == pytest.approx(sum(table.terms.values()))
    assert table.nodes[table.chosen] == "d1"


# -- the second look ----------------------------------------------------------------------------


def room(place, refused, *, changes=None, limit=0.2, r=None):
    r = r or request(0, tokens=1000, output_tokens_expected=100)
    allowed = np.ones(place.fleet.capacity, np.bool_)
    cache = StandingCache()
    left = with_decode_room(
        place.fleet,
        place.ledger,
        Tunables().changed(changes or {}),
        r,
        left=cache.get(place.fleet, r, allowed, decode=False),
        decoders=cache.get(place.fleet, r, allowed, decode=True),
        refused=place.slot(refused),
        when_s=0.0,
        tbt_limit_s=limit,
    )
    return {place.fleet.node_at(int(s)) for s in np.flatnonzero(left.mask)}, left.excluded


def test_prefill_nodes_with_nowhere_to_go_fall_out_with_the_reason():
    place = Place(
        spec("refused", kv_transfer=""),
        spec("free", kv_transfer=""),
        spec("capped", kv_transfer="", batch_max=1),
        spec("full", kv_transfer="", kv_capacity_tokens=1500),
        spec("slow", kv_transfer=""),
        spec("lone", role=P, kv_transfer=""),
        cost=BY_BATCH,
    )
    batch(place, "capped", 1)
    batch(place, "full", 1, prompt=600)
    batch(place, "slow", 20, output=1000, tbt_s=1.0)
    left, excluded = room(place, "refused")
    assert left == {"free"}
    assert excluded == {
        Reason.NO_PATH: ("lone", "refused"),
        Reason.BATCH_CAP: ("capped",),
        Reason.KV_HEADROOM: ("full",),
        Reason.TBT_SLO: ("slow",),
    }


def test_a_prefill_node_counts_as_able_with_a_node_of_its_group():
    place = Place(
        spec("refused", kv_transfer=""),
        spec("p1", role=P, kv_transfer="x"),
        spec("d1", role=D, kv_transfer="x"),
        spec("p2", role=P, kv_transfer="y"),
        spec("d2", role=D, kv_transfer="y", batch_max=1),
    )
    place.begin("p2", "d2")
    left, excluded = room(place, "refused")
    assert left == {"p1"}
    assert excluded[Reason.BATCH_CAP] == ("p2",)


def test_without_admission_slowness_excludes_nobody():
    place = Place(spec("a", kv_transfer=""), spec("slow", kv_transfer=""), cost=BY_BATCH)
    batch(place, "slow", 20, output=1000, tbt_s=1.0)
    assert room(place, "a")[0] == set()
    assert room(place, "a", changes={"admission.mode": "off"})[0] == {"slow"}


def test_the_second_look_uses_the_batch_that_the_rules_name():
    place = Place(spec("a", kv_transfer=""), spec("b", kv_transfer=""), cost=BY_BATCH)
    batch(place, "b", 20, output=1, tbt_s=0.0)
    assert room(place, "a")[0] == {"b"}
    assert room(place, "a", changes={"admission.early_rejection": False})[0] == set()

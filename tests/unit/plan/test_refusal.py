"""Rejections through the conductor: status, code, prediction, and when to come back."""

import pytest
from fleet_cases import conductor, decided, give, refused, request, spec

from core.domain import Health, NodeId, Reason, Rejection, Role

MS = {"a": (0.0, 1e-3, 0.0), "b": (0.0, 1e-3, 0.0)}
"""A millisecond a new token."""


def two(**more):
    return conductor(spec("a", kv_transfer=""), spec("b", kv_transfer=""), costs=MS, **more)


def fill(c, node, count=1, *, tokens=1000, now=0.0, **more):
    """Requests reserved on one node, whatever the policy thinks."""
    others = frozenset(s.id for s in c.fleet.nodes() if s.id != node)
    made = []
    for _ in range(count):
        d = decided(c, request(0, tokens=tokens, tried=others, **more), now)
        made.append(c.begin(d, now))
    return made


# -- nobody -------------------------------------------------------------------------------------


def test_an_unknown_model_is_not_found():
    found = refused(two(), request(model="nope"))
    assert (found.status, found.code) == (404, "unknown_model")
    assert "'nope'" in found.message
    assert found.retry_after_s == 0
    assert found.excluded == {Reason.MODEL: ("a", "b")}


def test_an_adapter_that_nobody_holds_is_not_found_by_its_own_name():
    found = refused(two(), request(adapter="x"))
    assert (found.status, found.code) == (404, "unknown_model")
    assert "'x'" in found.message


def test_an_empty_fleet_knows_no_model():
    assert refused(conductor(), request()).status == 404


def test_a_tenant_without_a_node_finds_no_model_whoever_is_up():
    c = conductor(spec("a", tenants=frozenset({"t"})))
    found = refused(c, request(tenant="u"))
    assert (found.status, found.code) == (404, "unknown_model")
    assert "'u'" in found.message
    assert found.excluded == {Reason.TENANT: ("a",)}
    decided(c, request(tenant="t"))


def test_a_prompt_longer_than_every_context_is_the_callers_fault():
    c = conductor(spec("a", context_tokens_max=500), spec("b", kv_capacity_tokens=600))
    found = refused(c, request(0, tokens=1000))
    assert (found.status, found.code) == (400, "context_too_long")
    assert "1000 tokens" in found.message
    assert found.excluded == {Reason.CONTEXT: ("a",), Reason.KV_HEADROOM: ("b",)}


def test_a_longer_context_on_a_dead_node_makes_it_worth_retrying():
    c = conductor(spec("a", context_tokens_max=500), spec("b"))
    c.set_health(NodeId("b"), Health.DEAD, 0.0)
    found = refused(c, request(0, tokens=1000))
    assert (found.status, found.code) == (503, "no_candidates")


@pytest.mark.parametrize("how", ["dead", "draining", "tripped", "tried"])
def test_a_model_that_nobody_can_serve_now_is_unavailable(how):
    c, r = two(), request()
    for node in (NodeId("a"), NodeId("b")):
        if how == "dead":
            c.set_health(node, Health.DEAD, 1.0)
        elif how == "draining":
            c.drain(node, True, 1.0)
        elif how == "tripped":
            c.breakers.trip(c.fleet.slot(node), 1.0, reason="test", actor="test")
        else:
            r = r.after_failure(node)
    found = refused(c, r, 2.0)
    assert (found.status, found.code) == (503, "no_candidates")
    assert found.retry_after_s == 1.0
    assert "2 " in found.message
    assert found.candidates is None
    assert found.predicted is None


def test_other_models_nodes_say_nothing_of_this_one():
    c = conductor(spec("a", queue_max=1), spec("other", models=("n",)), spec("d", role=Role.DECODE))
    fill(c, "a")
    found = refused(c, request())
    assert found.status == 429
    assert found.excluded[Reason.MODEL] == ("other",)


def test_full_queues_ask_to_come_back_when_the_first_prefill_ends():
    c = conductor(spec("a", queue_max=1), spec("b", queue_max=1), costs=MS)
    fill(c, "a", tokens=5000, now=1.0)
    fill(c, "b", tokens=3000, now=1.0)
    found = refused(c, request(), 2.0)
    assert (found.status, found.code) == (429, "no_candidates")
    assert found.excluded == {Reason.QUEUE_FULL: ("a", "b")}
    assert found.retry_after_s == pytest.approx(2.0)


def test_nodes_that_the_prompt_never_fits_do_not_hide_that_the_others_are_full():
    c = conductor(
        spec("full", queue_max=1), spec("short", context_tokens_max=500),
        spec("small", kv_capacity_tokens=500), costs={"full": MS["a"]},
    )  # fmt: skip
    fill(c, "full", tokens=4000)
    found = refused(c, request(0, tokens=1000), 1.0)
    assert (found.status, found.code) == (429, "no_candidates")
    assert set(found.excluded) == {Reason.QUEUE_FULL, Reason.CONTEXT, Reason.KV_HEADROOM}
    assert found.retry_after_s == pytest.approx(3.0), "the small node's batch says nothing"


def test_the_wait_for_room_is_bounded_on_both_sides():
    c = conductor(spec("a", queue_max=1), costs={"a": (0.0, 0.01, 0.0)})
    fill(c, "a", tokens=2900, now=0.0)
    assert refused(c, request(), 0.0).retry_after_s == pytest.approx(29.0)
    assert refused(c, request(), 500.0).retry_after_s == pytest.approx(0.1)
    c.apply(c.tunables.changed({"admission.retry_after_max_s": 5.0}), 2)
    assert refused(c, request(), 0.0).retry_after_s == pytest.approx(5.0)


def test_full_batches_ask_to_come_back_when_a_request_is_expected_to_end():
    c = conductor(spec("a", batch_max=1, kv_transfer=""), changes={"slo.tbt_s": 10.0})
    (r,) = fill(c, "a", output_tokens_expected=500)
    r.first_token(0.0)
    found = refused(c, request(), 0.0)
    assert (found.status, found.code) == (429, "no_decode_candidates")
    assert found.excluded == {Reason.BATCH_CAP: ("a",)}
    assert found.retry_after_s == pytest.approx(500 * r.decision.predicted.tbt_s)
    assert found.candidates is not None


def test_a_prefill_node_without_anywhere_to_decode_is_unavailable():
    c = conductor(spec("p", role=Role.PREFILL, kv_transfer=""), spec("d", role=Role.DECODE))
    found = refused(c, request())
    assert (found.status, found.code) == (503, "no_decode_candidates")
    assert found.excluded == {Reason.ROLE: ("p",), Reason.NO_PATH: ("d",)}
    decided(c, request(output_tokens_expected=0))


# -- late ---------------------------------------------------------------------------------------


def test_a_first_token_that_would_come_too_late_everywhere_is_refused_with_the_prediction():
    c = two(changes={"slo.ttft_s": 2.0})
    fill(c, "a", tokens=1500)
    fill(c, "b", tokens=1800)
    found = refused(c, request(0, tokens=1000))
    assert (found.status, found.code) == (429, "predicted_ttft_slo")
    assert found.predicted.queue_s == pytest.approx(1.5)
    assert found.predicted.ttft_s == pytest.approx(2.5)
    assert found.retry_after_s == pytest.approx(0.5)
    assert "2.5 s" in found.message
    assert found.candidates.nodes == ("a", "b")
    decided(c, request(0, tokens=1000), 0.5)


def test_the_requests_own_limit_counts_before_the_configured_one():
    c = two(changes={"slo.ttft_s": 2.0})
    assert refused(c, request(0, tokens=1000, ttft_slo_s=0.9)).code == "predicted_ttft_slo"
    fill(c, "a", tokens=1500)
    fill(c, "b", tokens=1500)
    decided(c, request(0, tokens=1000, ttft_slo_s=3.0))


def test_one_node_in_time_is_enough_even_if_the_policy_prefers_another():
    c = two(changes={"slo.ttft_s": 2.0, "policy": "linear", "linear.beta": 0.0})
    give(c, "a", list(request(40).keys[16]))
    fill(c, "a", tokens=1900)
    assert decided(c, request(40, tokens=1000)).prefill == "a"


def test_a_long_prompt_says_that_no_queue_is_to_blame():
    found = refused(two(changes={"slo.ttft_s": 2.0}), request(0, tokens=3000))
    assert "even without a queue" in found.message
    assert found.retry_after_s == 0


def test_admission_can_be_off():
    c = two(changes={"slo.ttft_s": 0.01, "slo.tbt_s": 0.001, "admission.mode": "off"})
    decided(c, request(0, tokens=3000))


def test_lower_classes_lose_their_share_of_the_limit_as_load_grows():
    c = two(changes={"slo.ttft_s": 30.0, "load.horizon_s": 20.0})
    fill(c, "a", tokens=10_000, priority=5)
    fill(c, "b", tokens=10_000, priority=5)
    # Load 0.5; five classes below lose 0.2 * 5 * 0.5 = half of 30 s.
    lower = request(0, tokens=6000)
    found = refused(c, lower)
    assert found.code == "predicted_ttft_slo"
    assert "limit of 15 s" in found.message
    decided(c, request(0, tokens=6000, priority=5))
    decided(c, request(0, tokens=6000, priority=4))
    decided(c, request(0, tokens=4000))


def test_early_rejection_goes_by_the_load_that_is_expected():
    changes = {"slo.ttft_s": 30.0, "load.horizon_s": 20.0}
    c = two(changes=changes)
    fill(c, "a", tokens=10_000, priority=5)
    fill(c, "b", tokens=10_000, priority=5)
    decided(c, request(0, tokens=4000))
    c.growth = 1.6  # half again as much load soon: 0.8, so 0.2 of the limit is left
    assert "limit of 6 s" in refused(c, request(0, tokens=4000)).message
    decided(c, request(0, tokens=6000, priority=5))  # the highest class loses nothing
    c.apply(c.tunables.changed({"admission.early_rejection": False}), 2)
    decided(c, request(0, tokens=4000))


# -- slow ---------------------------------------------------------------------------------------


def slow_pair(**changes):
    """Two nodes of 10 ms between tokens for each request of the batch."""
    c = two(changes=changes)
    for node in ("a", "b"):
        c.fleet.set_tbt(NodeId(node), (0.0, 0.01, 0.0))
    return c


def decode(c, node, count, **more):
    more = {"output_tokens_expected": 10_000, "tbt_slo_s": 100.0} | more
    for one in fill(c, node, count, tokens=10, **more):
        one.first_token(0.0)


def test_tokens_that_would_come_too_slowly_everywhere_are_refused():
    c = slow_pair(**{"slo.tbt_s": 0.05})
    decode(c, "a", 5)
    decode(c, "b", 5)
    found = refused(c, request())
    assert (found.status, found.code) == (429, "predicted_tbt_slo")
    assert found.predicted.tbt_s == pytest.approx(0.06)
    assert found.retry_after_s > 0
    assert "60 ms" in found.message


def test_the_best_prefill_node_gives_way_when_its_batch_is_too_slow():
    c = slow_pair(**{"slo.tbt_s": 0.05})
    give(c, "a", list(request(64).keys[16]))
    assert decided(c, request(64)).prefill == "a"
    decode(c, "a", 5)
    found = decided(c, request(64))
    assert found.prefill == found.decode == "b"
    assert found.excluded == {Reason.TBT_SLO: ("a",)}
    assert found.reachable_tokens == 1008


def test_giving_way_must_still_be_in_time():
    c = slow_pair(**{"slo.tbt_s": 0.05, "slo.ttft_s": 0.5})
    give(c, "a", list(request(64).keys[16]))
    decode(c, "a", 5)
    assert refused(c, request(64)).code == "predicted_ttft_slo"


def test_a_batch_that_is_full_gives_way_too():
    c = conductor(spec("a", kv_transfer="", batch_max=2), spec("b", kv_transfer=""), costs=MS)
    give(c, "a", list(request(64).keys[16]))
    decode(c, "a", 2)
    assert decided(c, request(64)).decode == "b"


def test_the_limit_of_those_already_decoding_is_kept_for_them():
    c = slow_pair(**{"slo.tbt_s": 0.5})
    decode(c, "a", 3, tbt_slo_s=0.035)
    decode(c, "b", 3, tbt_slo_s=0.035)
    found = refused(c, request())
    assert (found.status, found.code) == (429, "predicted_tbt_slo")
    assert "already decoding" in found.message


def test_lower_classes_lose_their_share_of_the_tbt_limit():
    c = slow_pair(**{"slo.tbt_s": 0.05, "load.horizon_s": 0.02})
    fill(c, "a", tokens=20, priority=5)
    fill(c, "b", tokens=20, priority=5)
    decode(c, "a", 2, priority=5)
    decode(c, "b", 2, priority=5)
    # Load 1: five classes below keep the least share, 0.1 of 50 ms.
    assert refused(c, request(0, tokens=5)).code == "predicted_tbt_slo"
    decided(c, request(0, tokens=5, priority=5))


# -- every rejection ----------------------------------------------------------------------------


def test_a_rejection_carries_what_the_record_needs():
    c = two(changes={"slo.ttft_s": 0.1})
    give(c, "a", list(request(10).keys[16]))
    r = request(10, tokens=1000)
    found = refused(c, r, 7.0)
    assert isinstance(found, Rejection)
    assert found.request is r
    assert (found.now_s, found.policy, found.revision) == (7.0, "min_ttft", 1)
    assert found.reachable_tokens == 160
    assert found.id != refused(c, r, 7.0).id


def test_a_rejection_counts_nowhere():
    c = two(changes={"slo.ttft_s": 0.1})
    assert isinstance(c.schedule(request(0, tokens=1000), 0.0), Rejection)
    assert not c.ledger.open
    assert c.ledger.begun == 0
    c.ledger.check_integrity()

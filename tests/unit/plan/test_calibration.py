"""Fits that replace a node's profile: what they learn from, and when they go live."""

import random

import pytest
from fleet_cases import conductor, decided, give, outcome, request, spec

from core.domain import NodeId, OutcomeKind
from core.plan.calibration import FitSource

TRUE = (0.02, 2e-4, 1e-9)


@pytest.fixture
def c():
    return conductor(spec("a", kv_transfer=""), changes={"admission.mode": "off"})


def serve(c, tokens, *, cached=0, now=0.0, seconds=None, alone=True, **more):
    """One request whose prefill takes what TRUE says, or `seconds`."""
    c0, c1, c2 = TRUE
    took = c0 + c1 * (tokens - cached) + c2 * (tokens**2 - cached**2)
    r = c.begin(decided(c, request(0, tokens=tokens), now), now)
    other = None if alone else c.begin(decided(c, request(0, tokens=10), now), now)
    r.first_token(now + (took if seconds is None else seconds))
    r.finish(outcome(**({"cached_tokens": cached} | more)), now + 100.0)
    if other is not None:
        other.finish(outcome(), now + 100.0)
    return r


def learn(c, count=64, **more):
    rng = random.Random(3)
    for i in range(count):
        serve(c, rng.randrange(500, 20_000), now=i * 1000.0, **more)


def prefill(c):
    return c.calibration.prefill(NodeId("a"))


def test_a_fit_goes_live_once_it_predicts_better(c):
    prior = prefill(c)
    assert prior.source is FitSource.PROFILE
    assert prior.observations == 0
    learn(c)
    found = prefill(c)
    assert found.source is FitSource.FITTED
    assert found.observations == 64
    assert found.error < 0.01 < found.prior_error
    assert found.coefficients[1] == pytest.approx(TRUE[1], rel=0.02)
    slot = c.fleet.slot(NodeId("a"))
    assert (c.fleet.c0[slot], c.fleet.c1[slot], c.fleet.c2[slot]) == found.coefficients


def test_what_the_engine_reused_is_taken_off(c):
    rng = random.Random(5)
    for i in range(64):
        tokens = rng.randrange(2000, 20_000)
        serve(c, tokens, cached=tokens // 2, now=i * 1000.0)
    assert prefill(c).coefficients[1] == pytest.approx(TRUE[1], rel=0.05)


def test_prompts_that_are_all_alike_leave_the_profile_and_tell_its_error(c):
    slot = c.fleet.slot(NodeId("a"))
    c0, c1, c2 = (float(x[slot]) for x in (c.fleet.c0, c.fleet.c1, c.fleet.c2))
    for i in range(64):
        serve(c, 1000, now=i * 1000.0, seconds=c0 + c1 * 1000 + c2 * 1000**2 + 0.25)
    found = prefill(c)
    assert found.source is FitSource.PROFILE
    took = c0 + c1 * 1000 + c2 * 1000**2
    assert found.error == found.prior_error == pytest.approx(0.25 / (took + 0.25))
    assert found.coefficients == (c0, c1, c2)


def test_slopes_that_were_seen_outlast_prompts_that_are_all_alike(c):
    learn(c, 64)
    for i in range(512):
        serve(c, 1000, now=1e6 + i * 1000.0)
    assert prefill(c).source is FitSource.FITTED
    assert prefill(c).coefficients[1] == pytest.approx(TRUE[1], rel=0.02)


def test_a_profile_that_is_right_already_stays(c):
    slot = c.fleet.slot(NodeId("a"))
    c0, c1, c2 = (float(x[slot]) for x in (c.fleet.c0, c.fleet.c1, c.fleet.c2))
    rng = random.Random(3)
    for i in range(64):
        n = rng.randrange(500, 20_000)
        serve(c, n, now=i * 1000.0, seconds=c0 + c1 * n + c2 * n * n)
    assert prefill(c).prior_error == pytest.approx(0.0, abs=1e-9)
    assert (c.fleet.c0[slot], c.fleet.c1[slot], c.fleet.c2[slot]) == pytest.approx((c0, c1, c2))


def test_a_fit_that_gets_worse_than_the_profile_gives_it_back(c):
    slot = c.fleet.slot(NodeId("a"))
    prior = tuple(float(x[slot]) for x in (c.fleet.c0, c.fleet.c1, c.fleet.c2))
    learn(c)
    assert prefill(c).source is FitSource.FITTED
    c0, c1, c2 = prior
    rng = random.Random(4)
    for i in range(1600):
        n = rng.randrange(500, 20_000)
        noise = 1.0 if i % 4 == 3 else rng.choice([0.3, 4.0])
        serve(c, n, now=1e6 + i * 1000.0, seconds=(c0 + c1 * n + c2 * n * n) * noise)
    assert prefill(c).source is FitSource.PROFILE
    assert (c.fleet.c0[slot], c.fleet.c1[slot], c.fleet.c2[slot]) == prior


@pytest.mark.parametrize(
    "more",
    [
        {"alone": False},
        {"cached_tokens": None},
        {"kind": OutcomeKind.ENGINE_ERROR},
        {"kind": OutcomeKind.CLIENT_ABORT},
    ],
    ids=["in company", "reuse not told", "failed", "aborted"],
)
def test_what_cannot_be_compared_teaches_nothing(c, more):
    serve(c, 1000, **more)
    assert prefill(c).observations == 0


def test_a_prompt_that_fetched_teaches_nothing_of_prefill():
    c = conductor(
        spec("a", can_fetch=True, kv_transfer=""),
        spec("b", can_fetch=True, kv_transfer=""),
        costs={"a": (0.0, 1e-2, 0.0), "b": (0.0, 1e-2, 0.0)},
        changes={"policy": "least_loaded"},
    )
    give(c, "b", list(request(64).keys[16]))
    c.begin(decided(c, request(0, tokens=10, tried=frozenset({NodeId("a")}))), 0.0)
    d = decided(c, request(64))
    assert (d.prefill, d.fetch_from) == ("a", "b")
    held = c.begin(d, 0.0)
    held.first_token(3.0)
    held.finish(outcome(cached_tokens=1008), 4.0)
    assert prefill(c).observations == 0


def test_a_restarted_nodes_late_answers_teach_nothing(c):
    r = c.begin(decided(c, request(0, tokens=1000)), 0.0)
    c.restarted(NodeId("a"), 0.5)
    r.first_token(1.0)
    r.finish(outcome(cached_tokens=0, tpot_s=0.01), 2.0)
    assert prefill(c).observations == 0
    assert c.calibration.tbt(NodeId("a")).observations == 0


def test_a_successor_of_the_same_name_learns_from_its_own_requests(c):
    r = c.begin(decided(c, request(0, tokens=1000)), 0.0)
    c.remove(NodeId("a"), 0.5)
    with pytest.raises(KeyError):
        prefill(c)
    c.register(spec("a"), 0.6)
    r.first_token(1.0)
    r.finish(outcome(cached_tokens=0), 2.0)
    assert prefill(c).observations == 0


def test_time_between_tokens_is_fitted_to_the_batch():
    c = conductor(spec("a", kv_transfer=""), changes={"admission.mode": "off"})
    rng = random.Random(1)
    for i in range(16):
        now = i * 100.0
        batch = []
        for _ in range(rng.randrange(1, 12)):
            r = c.begin(decided(c, request(0, tokens=rng.randrange(100, 5000)), now), now)
            r.first_token(now)
            batch.append(r)
        for r in batch:
            tpot = 0.02 + 0.003 * r.batch_seen + 1e-6 * r.kv_seen
            r.finish(outcome(tpot_s=tpot), now + 50.0)
    found = c.calibration.tbt(NodeId("a"))
    assert found.source is FitSource.FITTED
    assert found.coefficients == pytest.approx((0.02, 0.003, 1e-6), rel=0.05)
    slot = c.fleet.slot(NodeId("a"))
    assert c.fleet.d1[slot] == pytest.approx(0.003, rel=0.05)


def test_a_new_price_starts_the_fit_afresh(c):
    learn(c)
    c.update_spec(spec("a", kv_transfer="", speed=0.5), 0.0)
    found = prefill(c)
    assert found.source is FitSource.PROFILE
    assert found.observations == 0
    learn(c, 4)
    c.update_spec(spec("a", kv_transfer="", speed=0.5, batch_max=7), 0.0)
    assert prefill(c).observations == 4


def test_an_embedder_may_switch_learning_off():
    c = conductor(spec("a"), learn=False)
    serve(c, 1000)
    assert prefill(c).observations == 0

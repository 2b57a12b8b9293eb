"""The ledger: what is counted, for how long, and given back once."""

import random

import numpy as np
import pytest
from fleet_cases import COST, decision, fleet, outcome, spec

from core.domain import NodeId, OutcomeKind, Role
from core.errors import IntegrityError
from core.fleet.ledger import Ledger, Phase

COUNTED = (
    "queued_tokens", "queued_s", "prefilling", "decoding", "kv_tokens", "decode_kv",
    "prompt_tokens",
)  # fmt: skip


@pytest.fixture
def state():
    return fleet(spec("a"), spec("b"), spec("p", role=Role.PREFILL), spec("d", role=Role.DECODE))


@pytest.fixture
def ledger(state):
    return Ledger(state)


def row(state, node):
    slot = state.slot(NodeId(node))
    return {name: float(getattr(state, name)[slot]) for name in COUNTED}


def begin(ledger, *nodes, now=0.0, tbt_slo_s=0.2, **more):
    return ledger.begin(decision(ledger.fleet, *nodes, **more), now, tbt_slo_s=tbt_slo_s)


def idle(state):
    return not any(getattr(state, name).any() for name in COUNTED)


# -- one node -----------------------------------------------------------------------------------


def test_load_counts_from_the_moment_of_selection(state, ledger):
    begin(ledger, "a", prompt=1000, cached=400, output=50, prefill_s=0.6, transfer_s=0.1)
    assert row(state, "a") == {
        "queued_tokens": 600,
        "queued_s": pytest.approx(0.7),
        "prefilling": 1,
        "decoding": 0,
        "kv_tokens": 1050,
        "decode_kv": 0,
        "prompt_tokens": 1000,
    }
    ledger.check_integrity()


def test_the_first_token_moves_it_from_the_queue_to_the_batch(state, ledger):
    r = begin(ledger, "a", prompt=1000, output=50)
    r.first_token(1.0)
    assert r.phase is Phase.DECODE
    assert row(state, "a") == {
        "queued_tokens": 0,
        "queued_s": 0,
        "prefilling": 0,
        "decoding": 1,
        "kv_tokens": 1050,
        "decode_kv": 1050,
        "prompt_tokens": 1000,
    }
    ledger.check_integrity()


def test_finish_gives_everything_back_and_counts_the_outcome(state, ledger):
    r = begin(ledger, "a")
    r.first_token(1.0)
    r.finish(outcome(), 2.0)
    assert idle(state)
    assert ledger.closed == {OutcomeKind.OK: 1}
    assert not ledger.open
    assert r.outcome == outcome()


def test_a_second_finish_is_counted_and_changes_nothing(state, ledger):
    closed = []
    ledger.on_close = lambda r, o, now: closed.append((o.kind, now))
    r, other = begin(ledger, "a"), begin(ledger, "a")
    r.finish(outcome(OutcomeKind.CLIENT_ABORT), 1.0)
    before = row(state, "a")
    r.finish(outcome(), 2.0)
    r.prefill_done(2.0)
    r.first_token(2.0)
    assert row(state, "a") == before
    assert ledger.repeated_closes == 1
    assert closed == [(OutcomeKind.CLIENT_ABORT, 1.0)]
    assert other.phase is Phase.PREFILL


def test_prefill_done_twice_moves_once(state, ledger):
    r = begin(ledger, "a")
    r.prefill_done(1.0, cached_tokens=64)
    r.prefill_done(2.0, cached_tokens=96)
    assert row(state, "a")["decoding"] == 1
    assert r.prefilled_s == 1.0
    assert r.cached_tokens == 96


def test_first_token_is_told_while_open_only(ledger):
    told = []
    ledger.on_first_token = lambda r, now: told.append(now)
    r = begin(ledger, "a")
    r.prefill_done(1.0)
    r.first_token(1.5)
    r.finish(outcome(), 2.0)
    r.first_token(3.0)
    assert told == [1.5]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (None, OutcomeKind.LOST),
        (RuntimeError("x"), OutcomeKind.LOST),
        (KeyboardInterrupt(), OutcomeKind.CLIENT_ABORT),
    ],
)
def test_leaving_the_context_without_an_outcome_closes_it(state, ledger, error, kind):
    seen = []
    ledger.on_close = lambda r, o, now: seen.append((o.kind, o.error, now))
    begin(ledger, "b", now=5.0).finish(outcome(), 9.0)
    r = begin(ledger, "a", now=2.0)
    try:
        with r:
            if error:
                raise error
    except (RuntimeError, KeyboardInterrupt):
        pass
    assert idle(state)
    assert seen[-1] == (kind, type(error).__name__ if error else "", 9.0)


def test_a_finished_reservation_leaves_its_context_quietly(ledger):
    with begin(ledger, "a") as r:
        r.finish(outcome(), 1.0)
    assert ledger.closed == {OutcomeKind.OK: 1}
    assert ledger.repeated_closes == 0


# -- the queue ----------------------------------------------------------------------------------


def test_the_head_of_the_queue_is_the_first_that_came(state, ledger):
    slot = state.slot(NodeId("a"))
    first = begin(ledger, "a", now=1.0, prefill_s=2.0)
    second = begin(ledger, "a", now=1.5, prefill_s=3.0)
    third = begin(ledger, "a", now=1.6, prefill_s=4.0)
    assert (state.head_s[slot], state.head_started_s[slot]) == (2.0, 1.0)
    first.prefill_done(3.5)
    assert (state.head_s[slot], state.head_started_s[slot]) == (3.0, 3.5)
    third.finish(outcome(), 4.0)
    assert (state.head_s[slot], state.head_started_s[slot]) == (3.0, 3.5)
    second.prefill_done(6.0)
    assert state.head_s[slot] == 0.0


def test_only_a_prefill_that_had_the_queue_to_itself_is_alone(ledger):
    first = begin(ledger, "a")
    assert first.alone
    second = begin(ledger, "a")
    assert not first.alone
    assert not second.alone
    assert begin(ledger, "b").alone


def test_the_queue_takes_fetching_and_computing_but_not_the_hand_over(state, ledger):
    begin(ledger, "p", "d", prefill_s=1.0, transfer_s=0.25, handover_s=8.0)
    assert row(state, "p")["queued_s"] == 1.25


def test_the_last_picked_are_numbered_in_order(state, ledger):
    for node in ("a", "b", "a"):
        begin(ledger, node)
    a, b = state.slot(NodeId("a")), state.slot(NodeId("b"))
    assert state.last_picked[a] > state.last_picked[b] > 0
    assert state.last_picked[state.slot(NodeId("p"))] == -1


def test_the_mean_prefill_time_is_that_of_all_and_later_forgets(ledger):
    for seconds in (1.0, 2.0, 6.0):
        begin(ledger, "a", prefill_s=seconds)
    assert ledger.mean_prefill_s == pytest.approx(3.0)
    for _ in range(8000):
        begin(ledger, "a", prefill_s=0.5).finish(outcome(), 0.0)
    assert ledger.mean_prefill_s == pytest.approx(0.5, rel=0.01)


# -- two nodes ----------------------------------------------------------------------------------


def test_a_moved_request_is_promised_its_decode_place_at_once(state, ledger):
    begin(ledger, "p", "d", prompt=1000, output=50)
    assert row(state, "p")["kv_tokens"] == 1000
    assert row(state, "d") == {
        "queued_tokens": 0,
        "queued_s": 0,
        "prefilling": 0,
        "decoding": 1,
        "kv_tokens": 1050,
        "decode_kv": 1050,
        "prompt_tokens": 0,
    }
    ledger.check_integrity()


def test_a_moved_prompt_leaves_its_prefill_node_with_the_prefill(state, ledger):
    r = begin(ledger, "p", "d")
    r.prefill_done(1.0)
    assert not any(row(state, "p").values())
    assert row(state, "d")["decoding"] == 1
    ledger.check_integrity()
    r.finish(outcome(), 2.0)
    assert idle(state)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_an_abort_in_either_phase_frees_both_nodes(state, ledger, phase):
    r = begin(ledger, "p", "d")
    if phase == "decode":
        r.prefill_done(1.0)
    r.finish(outcome(OutcomeKind.CLIENT_ABORT), 1.5)
    assert idle(state)
    ledger.check_integrity()


def test_the_strictest_limit_of_a_batch_follows_its_members(state, ledger):
    slot = state.slot(NodeId("d"))
    loose = begin(ledger, "p", "d", tbt_slo_s=0.5)
    strict = begin(ledger, "p", "d", tbt_slo_s=0.05)
    same = begin(ledger, "p", "d", tbt_slo_s=0.05)
    assert state.strictest_tbt_s[slot] == 0.05
    strict.finish(outcome(), 1.0)
    assert state.strictest_tbt_s[slot] == 0.05
    same.finish(outcome(), 1.0)
    assert state.strictest_tbt_s[slot] == 0.5
    loose.finish(outcome(), 1.0)
    assert state.strictest_tbt_s[slot] == np.inf


# -- the batch to come --------------------------------------------------------------------------


def test_the_batch_to_come_holds_who_ends_later(state, ledger):
    slot = state.slot(NodeId("d"))
    begin(ledger, "p", "d", prompt=100, output=100, prefill_s=1.0, tbt_s=0.01)  # ends at 2
    begin(ledger, "p", "d", prompt=100, output=300, prefill_s=1.0, tbt_s=0.01)  # ends at 4
    assert ledger.batch_at(slot, 1.0) == (2, 600.0)
    assert ledger.batch_at(slot, 3.0) == (1, 300.0)
    assert ledger.batch_at(slot, 4.0) == (0, 0.0)
    assert ledger.drain_s(slot, 0.5) == pytest.approx(1.5)
    assert ledger.drain_s(slot, 9.0) == 0.0


def test_who_waits_on_the_node_itself_will_be_in_its_batch(state, ledger):
    slot = state.slot(NodeId("a"))
    begin(ledger, "a", prompt=100, output=100, prefill_s=1.0, tbt_s=0.01)
    assert row(state, "a")["decoding"] == 0
    assert ledger.batch_at(slot, 1.5) == (1, 200.0)


def test_the_end_is_expected_anew_from_the_first_token(state, ledger):
    slot = state.slot(NodeId("a"))
    r = begin(ledger, "a", output=100, prefill_s=1.0, tbt_s=0.01)
    r.first_token(5.0)
    assert ledger.batch_at(slot, 5.9)[0] == 1
    assert ledger.batch_at(slot, 6.1)[0] == 0
    ledger.check_integrity()


def test_a_request_that_generates_nothing_is_no_part_of_the_batch_to_come(state, ledger):
    r = begin(ledger, "p", output=0)
    slot = state.slot(NodeId("p"))
    assert ledger.batch_at(slot, 0.0) == (0, 0.0)
    r.prefill_done(1.0)
    assert ledger.drain_s(slot, 1.0) == 0.0
    ledger.check_integrity()
    r.finish(outcome(), 1.0)
    assert idle(state)


def test_the_batch_seen_includes_the_request_itself(ledger):
    first = begin(ledger, "p", "d", prompt=100, output=100)
    second = begin(ledger, "p", "d", prompt=200, output=100)
    assert (first.batch_seen, first.kv_seen) == (1, 200)
    assert (second.batch_seen, second.kv_seen) == (2, 500)


# -- generations --------------------------------------------------------------------------------


def restart(state, ledger, node):
    slot = state.slot(NodeId(node))
    ledger.void(slot, int(state.generation[slot]))
    state.restart(NodeId(node))


def test_what_a_restarted_node_owed_is_void(state, ledger):
    r = begin(ledger, "a")
    decoding = begin(ledger, "a")
    decoding.first_token(1.0)
    restart(state, ledger, "a")
    assert idle(state)
    ledger.check_integrity()
    again = begin(ledger, "a", prompt=500, output=0)
    before = row(state, "a")
    r.first_token(2.0)
    r.finish(outcome(), 3.0)
    decoding.finish(outcome(), 3.0)
    assert row(state, "a") == before
    assert ledger.void_releases > 0
    ledger.check_integrity()
    again.finish(outcome(), 4.0)
    assert idle(state)


def test_a_late_release_does_not_touch_the_next_node_of_the_row(state, ledger):
    r = begin(ledger, "p", "d")
    slot = state.slot(NodeId("d"))
    ledger.void(slot, int(state.generation[slot]))
    state.remove(NodeId("d"))
    assert state.add(spec("e", role=Role.DECODE), COST) == slot
    other = begin(ledger, "p", "e", prompt=10, output=10)
    r.prefill_done(1.0)
    r.finish(outcome(), 2.0)
    assert row(state, "e")["decoding"] == 1
    ledger.check_integrity()
    other.finish(outcome(), 3.0)
    assert idle(state)


def test_a_decision_carried_out_too_late_counts_nowhere(state, ledger):
    late = decision(state, "a")
    moved = decision(state, "p", "d")
    restart(state, ledger, "a")
    restart(state, ledger, "d")
    r = ledger.begin(late, 1.0, tbt_slo_s=0.2)
    assert idle(state)
    half = ledger.begin(moved, 1.0, tbt_slo_s=0.2)
    assert row(state, "p")["prefilling"] == 1
    assert not any(row(state, "d").values())
    for one in (r, half):
        one.first_token(2.0)
        ledger.check_integrity()
        one.finish(outcome(), 3.0)
    assert idle(state)
    ledger.check_integrity()


# -- priorities, holds, integrity ---------------------------------------------------------------


def test_the_top_priority_is_that_of_open_requests(ledger):
    assert ledger.top_priority == 0
    low, high = begin(ledger, "a", priority=-3), begin(ledger, "a", priority=4)
    assert ledger.top_priority == 4
    high.finish(outcome(), 1.0)
    assert ledger.top_priority == -3
    usual = begin(ledger, "a")
    assert ledger.top_priority == 0
    usual.finish(outcome(), 1.0)
    assert ledger.top_priority == -3
    low.finish(outcome(), 1.0)
    assert ledger.top_priority == 0
    assert ledger.priorities == {}


def test_held_time_counts_in_the_queue_until_released_once(state, ledger):
    first = begin(ledger, "a", prefill_s=1.0)
    hold = ledger.hold(state.slot(NodeId("a")), 4.0, tokens=333.3, now=0.0)
    assert not first.alone
    assert row(state, "a")["queued_s"] == 5.0
    assert row(state, "a")["prefilling"] == 2
    ledger.check_integrity()
    first.finish(outcome(), 1.0)
    assert state.head_s[state.slot(NodeId("a"))] == 4.0
    ledger.release(hold, 2.0)
    ledger.release(hold, 2.0)
    assert idle(state)
    assert ledger.begun == 1
    ledger.check_integrity()


def test_held_time_of_a_past_generation_is_void(state, ledger):
    hold = ledger.hold(state.slot(NodeId("a")), 4.0, tokens=10.0, now=0.0)
    restart(state, ledger, "a")
    begin(ledger, "a")
    ledger.release(hold, 1.0)
    assert row(state, "a")["prefilling"] == 1
    ledger.check_integrity()


@pytest.mark.parametrize("name", COUNTED)
def test_integrity_notices_a_counter_that_drifted(state, ledger, name):
    begin(ledger, "a").first_token(1.0)
    begin(ledger, "a")
    ledger.check_integrity()
    getattr(state, name)[state.slot(NodeId("a"))] += 1
    with pytest.raises(IntegrityError, match=name):
        ledger.check_integrity()


def test_integrity_notices_a_stale_limit_and_a_lost_reservation(state, ledger):
    r = begin(ledger, "p", "d")
    state.strictest_tbt_s[state.slot(NodeId("d"))] = 0.01
    with pytest.raises(IntegrityError, match="strictest"):
        ledger.check_integrity()
    state.strictest_tbt_s[state.slot(NodeId("d"))] = 0.2
    ledger.check_integrity()
    r.finish(outcome(), 1.0)
    ledger.begun += 1
    with pytest.raises(IntegrityError, match="begun"):
        ledger.check_integrity()


def test_ten_thousand_aborts_in_any_order_leave_exactly_nothing(state, ledger):
    rng = random.Random(7)
    nodes = [("a",), ("b",), ("p", "d"), ("a", "d"), ("p", "b")]
    waiting = []
    for i in range(10_000):
        one = begin(
            ledger,
            *rng.choice(nodes),
            now=i * 0.01,
            prompt=rng.randrange(20_000),
            output=rng.randrange(500),
            prefill_s=rng.random() * 3,
            tbt_slo_s=rng.choice([0.05, 0.1, 0.2]),
        )
        waiting.append(one)
        if rng.random() < 0.5:
            rng.choice(waiting).prefill_done(i * 0.01)
        if len(waiting) > 40:
            gone = waiting.pop(rng.randrange(len(waiting)))
            gone.finish(outcome(OutcomeKind.CLIENT_ABORT), i * 0.01)
        if not i % 1000:
            ledger.check_integrity()
    for one in waiting:
        one.finish(outcome(OutcomeKind.CLIENT_ABORT), 101.0)
    assert idle(state)
    assert ledger.closed == {OutcomeKind.CLIENT_ABORT: 10_000}
    ledger.check_integrity()

from __future__ import annotations

import pytest

from core.domain import NodeId, OutcomeKind, Slot
from core.errors import Invalid
from core.fleet.breaker import BreakerBoard
from core.fleet.switch import TABLE, Signal, State, backoff_s, following
from core.tunables import Breaker

OK, ERROR = OutcomeKind.OK, OutcomeKind.ENGINE_ERROR


def board(nodes: int = 4, **rules: float) -> BreakerBoard:
    made = BreakerBoard(Breaker(**rules))  # type: ignore[arg-type]
    for i in range(nodes):
        made.add(Slot(i), NodeId(f"n{i}"), 0.0)
    return made


def send(b: BreakerBoard, slot: int, kind: OutcomeKind, now: float, times: int = 1):
    events = []
    for _ in range(times):
        events += b.record(Slot(slot), kind, now, ticket=b.begin(Slot(slot)))
    return events


def state(b: BreakerBoard, slot: int = 0) -> State:
    return b.switch(Slot(slot)).state


# -- the table -------------------------------------------------------------------------------


def test_every_state_has_every_signal():
    assert set(TABLE) == set(State)
    for row in TABLE.values():
        assert len(row) == len(Signal)


@pytest.mark.parametrize(
    ("before", "signal", "after"),
    [
        ("closed", Signal.LIMIT, "open"),
        ("closed", Signal.FAILURE, "closed"),
        ("open", Signal.TIMER, "half_open"),
        ("open", Signal.SUCCESS, "open"),
        ("half_open", Signal.ENOUGH, "closed"),
        ("half_open", Signal.FAILURE, "open"),
        ("tripped", Signal.TIMER, "half_open"),
        ("tripped", Signal.ENOUGH, "tripped"),
        ("held", Signal.LIMIT, "held"),
        ("held", Signal.TIMER, "closed"),
    ],
)
def test_rows(before: str, signal: Signal, after: str):
    assert following(State(before), signal) is State(after)


def test_an_operator_always_wins():
    for before in State:
        assert following(before, Signal.TRIP) is State.TRIPPED
        assert following(before, Signal.RESET) is State.CLOSED
        assert following(before, Signal.HOLD) is State.HELD


def test_backoff_doubles_to_its_cap():
    times = [backoff_s(n, open_s=30, open_max_s=300) for n in (1, 2, 3, 4, 5, 5000)]
    assert times == [30, 60, 120, 240, 300, 300]


# -- opening ---------------------------------------------------------------------------------


def test_consecutive_failures_open():
    b = board()
    assert send(b, 0, ERROR, 1.0, 4) == []
    (event,) = send(b, 0, ERROR, 1.0)
    assert (event.before, event.after, event.cause) == ("closed", "open", "consecutive_failures")
    assert (event.node, event.machine, event.until_s) == ("n0", "node_breaker", 31.0)
    assert event.data["consecutive"] == 5
    assert b.allowed(2.0)[:4].tolist() == [False, True, True, True]


def test_a_success_between_failures_starts_the_count_again():
    b = board()
    for _ in range(3):
        send(b, 0, ERROR, 1.0, 4)
        send(b, 0, OK, 1.0)
    assert state(b) is State.CLOSED


def test_error_rate_opens_only_with_enough_requests():
    b = board(error_rate=0.5, error_rate_requests_min=20)
    for _ in range(9):
        send(b, 0, ERROR, 1.0)
        send(b, 0, OK, 1.0)
    assert send(b, 0, ERROR, 1.0) == []  # 10 of 19: more than half, too few requests
    (event,) = send(b, 0, ERROR, 1.0)
    assert (event.cause, event.data["requests"]) == ("error_rate", 20)


def test_old_failures_leave_the_window():
    b = board(window_s=30.0, error_rate_requests_min=20)
    for i in range(15):
        send(b, 0, ERROR if i % 3 else OK, 1.0)
    for i in range(15):
        send(b, 0, OK if i % 3 else ERROR, 40.0)
    assert state(b) is State.CLOSED


@pytest.mark.parametrize("kind", [OutcomeKind.REFUSED, OutcomeKind.CLIENT_ABORT, OutcomeKind.LOST])
def test_what_is_not_the_nodes_fault_never_counts(kind: OutcomeKind):
    b = board()
    assert send(b, 0, kind, 1.0, 500) == []
    assert state(b) is State.CLOSED
    send(b, 0, ERROR, 1.0, 4)
    send(b, 0, kind, 1.0, 100)
    assert [e.after for e in send(b, 0, ERROR, 1.0)] == ["open"]


# -- half-open ---------------------------------------------------------------------------------


def opened(**rules: float) -> BreakerBoard:
    b = board(**rules)
    send(b, 0, ERROR, 0.0, 5)
    return b


def test_timer_admits_one_trial_at_a_time_and_three_successes_close():
    b = opened()
    assert not b.allowed(29.9)[0]
    assert b.allowed(30.0)[0]
    ticket = b.begin(Slot(0))
    assert not b.allowed(30.1)[0]
    assert [e.after for e in b.record(Slot(0), OK, 30.5, ticket=ticket)] == ["half_open"]
    assert b.allowed(30.6)[0]
    assert send(b, 0, OK, 31.0) == []
    (event,) = send(b, 0, OK, 32.0)
    assert (event.after, event.cause) == ("closed", "trials_passed")


def test_a_failed_trial_opens_for_twice_as_long():
    b = opened()
    b.tick(30.0)
    (event,) = send(b, 0, ERROR, 31.0)
    assert (event.before, event.after, event.until_s) == ("half_open", "open", 91.0)


def test_first_bytes_are_enough_to_close():
    b = opened()
    b.tick(30.0)
    tickets = []
    for _ in range(3):
        assert b.allowed(30.0)[0]
        tickets.append(b.begin(Slot(0)))
        events = b.first_byte(Slot(0), 30.0, ticket=tickets[-1])
    assert [e.after for e in events] == ["closed"]
    for ticket in tickets:
        assert b.record(Slot(0), ERROR, 31.0, ticket=ticket) == ()  # of a state that is over


def test_a_first_byte_is_not_counted_again_at_the_end():
    b = opened()
    b.tick(30.0)
    ticket = b.begin(Slot(0))
    b.first_byte(Slot(0), 30.0, ticket=ticket)
    b.first_byte(Slot(0), 30.0, ticket=ticket)
    b.record(Slot(0), OK, 31.0, ticket=ticket)
    send(b, 0, OK, 31.0)
    assert state(b) is State.HALF_OPEN


def test_a_stream_that_breaks_after_its_first_byte_still_fails_the_trial():
    b = opened()
    b.tick(30.0)
    ticket = b.begin(Slot(0))
    b.first_byte(Slot(0), 30.0, ticket=ticket)
    assert [e.after for e in b.record(Slot(0), ERROR, 31.0, ticket=ticket)] == ["open"]


def test_a_refused_or_aborted_trial_frees_its_place_and_decides_nothing():
    b = opened()
    b.tick(30.0)
    send(b, 0, OutcomeKind.REFUSED, 30.0)
    send(b, 0, OutcomeKind.CLIENT_ABORT, 30.0)
    assert state(b) is State.HALF_OPEN
    assert b.allowed(30.0)[0]


def test_answers_to_requests_begun_before_the_opening_are_stale():
    b = board()
    early = [b.begin(Slot(0)) for _ in range(10)]
    send(b, 0, ERROR, 0.0, 5)
    b.tick(30.0)
    for ticket in early:
        assert b.record(Slot(0), ERROR, 31.0, ticket=ticket) == ()
    assert state(b) is State.HALF_OPEN


def test_time_spent_closed_takes_doublings_back():
    b = opened()
    b.tick(30.0)
    send(b, 0, ERROR, 30.0)  # streak 2, until 90
    b.tick(90.0)
    send(b, 0, OK, 90.0, 3)
    (event,) = send(b, 0, ERROR, 91.0, 5)
    assert event.until_s == 91.0 + 120.0  # at once: streak 3
    b.tick(211.0)
    send(b, 0, OK, 211.0, 3)
    (event,) = send(b, 0, ERROR, 211.0 + 90.0, 5)
    assert event.until_s == 301.0 + 30.0  # 90 s closed forgive three


# -- operators ---------------------------------------------------------------------------------


def test_a_trip_outlasts_automatic_signals_and_ends_in_trials():
    b = board()
    (event,) = b.trip(Slot(0), 10.0, reason="firmware", actor="ann", for_s=600.0)
    assert (event.after, event.cause, event.reason, event.actor) == (
        "tripped", "manual_trip", "firmware", "ann",
    )  # fmt: skip
    assert event.until_s == 610.0
    send(b, 0, OK, 20.0, 50)
    send(b, 0, ERROR, 20.0, 50)
    b.tick(609.9)
    assert (state(b), b.switch(Slot(0)).until_s) == (State.TRIPPED, 610.0)
    assert [e.after for e in b.tick(610.0)] == ["half_open"]


def test_a_trip_without_expiry_stays_until_reset():
    b = board()
    b.trip(Slot(0), 10.0, reason="bad", actor="ann")
    b.tick(1e9)
    assert state(b) is State.TRIPPED
    assert [e.after for e in b.reset(Slot(0), 1e9, reason="ok", actor="bob")] == ["closed"]
    assert b.allowed(1e9)[0]


def test_a_hold_ignores_failures_until_its_expiry():
    b = opened()
    b.reset(Slot(0), 1.0, reason="false alarm", actor="ann", hold_s=100.0)
    assert send(b, 0, ERROR, 2.0, 50) == []
    assert b.allowed(2.0)[0]
    assert [e.after for e in b.tick(101.0)] == ["closed"]
    assert [e.after for e in send(b, 0, ERROR, 102.0, 5)] == ["open"]


@pytest.mark.parametrize(
    ("reason", "for_s", "field"), [(" ", None, "reason"), ("x", 0.0, "expiry")]
)
def test_manual_acts_are_checked(reason: str, for_s: float | None, field: str):
    with pytest.raises(Invalid) as caught:
        board().trip(Slot(0), 1.0, reason=reason, actor="ann", for_s=for_s)
    assert caught.value.field == field


# -- the fleet -----------------------------------------------------------------------------------


def test_at_most_the_share_is_ejected_and_the_rest_is_noted_once():
    b = board(8, ejected_share_max=0.25, panic_share=0.1)
    for slot in range(8):
        send(b, slot, ERROR, 1.0, 5)
    assert b.ejected == b.ejected_cap == 2
    assert send(b, 7, ERROR, 1.0, 20) == []
    b2 = board(8, ejected_share_max=0.125)
    send(b2, 0, ERROR, 1.0, 5)
    (event,) = send(b2, 1, ERROR, 1.0, 5)
    assert (event.cause, event.before, event.after) == ("max_ejected_share", "closed", "closed")


@pytest.mark.parametrize(("nodes", "cap"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (9, 4)])
def test_cap_is_at_least_one_and_never_the_last(nodes: int, cap: int):
    assert board(nodes).ejected_cap == cap


def test_a_lone_node_is_never_ejected():
    b = board(1)
    send(b, 0, ERROR, 1.0, 100)
    assert b.allowed(1.0)[0]


def test_panic_ignores_suspicion_but_not_an_operator():
    b = board(4, ejected_share_max=1.0)
    b.trip(Slot(3), 1.0, reason="x", actor="ann")
    send(b, 0, ERROR, 1.0, 5)
    assert not b.panic
    events = send(b, 1, ERROR, 1.0, 5)
    assert [(e.machine, e.after) for e in events] == [("node_breaker", "open"), ("panic", "panic")]
    assert b.panic and b.allowed(1.0)[:4].tolist() == [True, True, True, False]
    b.reset(Slot(0), 2.0, reason="x", actor="ann")
    assert not b.panic and b.allowed(2.0)[:4].tolist() == [True, False, True, False]


def test_dead_nodes_count_as_unavailable():
    b = board(4)
    b.set_dead(Slot(2), True)
    b.set_dead(Slot(3), True)
    send(b, 0, ERROR, 1.0, 5)
    assert [e.after for e in b.tick(1.0)] == [] and b.panic
    b.set_dead(Slot(2), False)
    assert [e.after for e in b.tick(2.0)] == ["calm"]


def test_a_reused_slot_starts_afresh_and_late_outcomes_of_the_old_node_are_dropped():
    b = board()
    old = b.begin(Slot(0))
    send(b, 0, ERROR, 1.0, 5)
    b.remove(Slot(0))
    assert not b.allowed(1.0)[0]
    b.record(Slot(0), ERROR, 1.0, ticket=old)
    b.add(Slot(0), NodeId("new"), 2.0)
    for _ in range(9):
        b.record(Slot(0), ERROR, 2.0, ticket=old)
    assert state(b) is State.CLOSED and b.allowed(2.0)[0]


def test_grows_with_the_fleet():
    b = board(2)
    b.grow(128)
    b.add(Slot(100), NodeId("n100"), 0.0)
    assert len(b.allowed(0.0)) == 128
    assert b.allowed(0.0).nonzero()[0].tolist() == [0, 1, 100]


def test_new_thresholds_apply_to_the_next_outcome():
    b = board()
    send(b, 0, ERROR, 1.0, 2)
    b.configure(Breaker(consecutive_failures=3))
    assert [e.after for e in send(b, 0, ERROR, 1.0)] == ["open"]


def test_a_new_process_is_not_blamed_for_the_old_one():
    b = board()
    late = b.begin(Slot(0))
    send(b, 0, ERROR, 0.5, 5)
    assert state(b) is State.OPEN
    (event,) = b.restarted(Slot(0), 1.0)
    assert (event.before, event.after, event.cause) == ("open", "closed", "engine_restarted")
    assert b.switch(Slot(0)).streak == 1  # the next opening lasts longer all the same
    assert b.record(Slot(0), ERROR, 1.0, ticket=late) == ()
    send(b, 0, ERROR, 1.0, 4)
    assert b.restarted(Slot(0), 2.0) == ()
    assert send(b, 0, ERROR, 2.0, 4) == []


def test_a_restart_leaves_what_an_operator_set():
    b = board()
    b.trip(Slot(0), 1.0, reason="broken fan", actor="ada", for_s=60.0)
    b.reset(Slot(1), 1.0, reason="needed", actor="ada", hold_s=60.0)
    for slot in (0, 1):
        assert b.restarted(Slot(slot), 2.0) == ()
        assert b.switch(Slot(slot)).until_s == 61.0
    assert (state(b, 0), state(b, 1)) == (State.TRIPPED, State.HELD)

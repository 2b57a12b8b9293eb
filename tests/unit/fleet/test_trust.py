from __future__ import annotations

import pytest

from core.domain import NodeId, Slot, Trust
from core.fleet.trust import COOLING, FORGET, SHOWN, TABLE, Signal, Standing, TrustBoard
from core.tunables import TrustRules

S0 = Slot(0)


def board(start: Trust = Trust.EXACT, **rules: float) -> TrustBoard:
    made = TrustBoard(TrustRules(**rules))  # type: ignore[arg-type]
    made.add(S0, NodeId("n0"), 0.0, signal=start)
    return made


def observe(b: TrustBoard, now: float, predicted: int, reported: int | None, times: int = 1):
    events = []
    for _ in range(times):
        events += b.observe(S0, now, predicted=predicted, reported=reported, slack_tokens=16)
    return events


def test_every_standing_has_every_signal_and_a_face():
    assert set(TABLE) == set(SHOWN) == set(Standing)
    assert all(len(row) == len(Signal) for row in TABLE.values())


def test_no_row_stays_cooling_after_its_time():
    for standing in COOLING:
        assert TABLE[standing][Signal.COOLED.value] not in COOLING


def test_credit_never_follows_from_an_untrusted_stream():
    for standing in (Standing.GAP, Standing.GAP_COOLING):
        for signal in (Signal.LOST, Signal.PHANTOM, Signal.COOLED):
            assert SHOWN[TABLE[standing][signal.value]] is Trust.DEGRADED


@pytest.mark.parametrize(
    ("start", "credited"),
    [(Trust.EXACT, True), (Trust.APPROXIMATE, True), (Trust.DEGRADED, False), (Trust.OFF, False)],
)
def test_credit_by_start(start: Trust, credited: bool):
    b = board(start)
    assert b.trust(S0) is start
    assert bool(b.credited[0]) is credited


def test_agreement_keeps_trust():
    b = board()
    assert observe(b, 1.0, 1600, 1600, 100) == []
    assert observe(b, 1.0, 1600, 1584, 100) == []  # one block less: the last token is computed
    assert b.node(S0).phantom_share == 0.0


def test_phantom_credit_beyond_the_share_degrades_after_a_full_window():
    b = board(window=20, phantom_share=0.2)
    observe(b, 1.0, 1600, 1600, 14)
    assert observe(b, 1.0, 1600, 0, 5) == []
    (event,) = observe(b, 2.0, 1600, 0)
    assert (event.before, event.after, event.cause) == ("live", "cooling", "phantom_credit")
    assert event.data["phantom_share"] == 0.3
    assert event.until_s == 32.0
    assert Standing(event.after) in FORGET
    assert b.trust(S0) is Trust.DEGRADED and not b.credited[0]


def test_share_at_the_limit_is_tolerated():
    b = board(window=20, phantom_share=0.2)
    observe(b, 1.0, 1600, 1600, 16)
    assert observe(b, 1.0, 1600, 0, 4) == []


def test_requests_without_report_or_credit_are_not_comparable():
    b = board(window=2)
    assert observe(b, 1.0, 1600, None, 100) == []
    assert observe(b, 1.0, 16, 0, 100) == []
    assert len(b.node(S0).samples) == 0


def test_cool_down_ends_in_an_empty_window_and_doubles_on_relapse():
    b = board(window=5, cooldown_s=30.0, cooldown_max_s=100.0)
    lengths, now = [], 0.0
    for _ in range(4):
        (event,) = observe(b, now, 1000, 0, 5)
        lengths.append(event.until_s - now)
        now = event.until_s
        assert b.tick(now - 0.1) == ()
        assert [e.after for e in b.tick(now)] == ["live"]
        assert not b.node(S0).samples
    assert lengths == [30.0, 60.0, 100.0, 100.0]


def test_good_windows_take_a_relapse_back():
    b = board(window=5, cooldown_s=30.0, cooldown_max_s=100.0)
    observe(b, 0.0, 1000, 0, 5)
    b.tick(30.0)
    observe(b, 50.0, 1000, 1000, 10)
    assert b.node(S0).relapses == 1
    observe(b, 130.0, 1000, 1000, 1)
    assert b.node(S0).relapses == 0


def test_gap_and_repair():
    b = board()
    (event,) = b.signal(S0, Signal.LOST, 5.0, cause="replay_too_short")
    assert (event.after, event.cause, event.until_s) == ("gap", "replay_too_short", None)
    assert b.trust(S0) is Trust.DEGRADED
    assert b.signal(S0, Signal.LOST, 6.0) == ()
    assert b.tick(1e9) == ()
    (event,) = b.signal(S0, Signal.COMPLETE, 7.0)
    assert event.after == "live" and b.credited[0]


def test_a_repair_does_not_shorten_a_cool_down():
    b = board(window=5)
    observe(b, 0.0, 1000, 0, 5)
    b.signal(S0, Signal.LOST, 1.0)
    (event,) = b.signal(S0, Signal.COMPLETE, 2.0)
    assert (event.after, event.until_s) == ("cooling", 30.0)
    assert b.trust(S0) is Trust.DEGRADED
    assert [e.after for e in b.tick(30.0)] == ["live"]


def test_a_cool_down_does_not_repair_a_gap():
    b = board(window=5)
    observe(b, 0.0, 1000, 0, 5)
    b.signal(S0, Signal.LOST, 1.0)
    assert [e.after for e in b.tick(30.0)] == ["gap"]
    assert b.trust(S0) is Trust.DEGRADED
    assert [e.after for e in b.signal(S0, Signal.COMPLETE, 31.0)] == ["live"]


def test_phantom_history_is_switched_off_for_a_while():
    b = board(Trust.APPROXIMATE, window=5)
    (event,) = observe(b, 0.0, 1000, 100, 5)
    assert (event.before, event.after) == ("history", "history_cooling")
    assert b.trust(S0) is Trust.OFF
    b.tick(30.0)
    assert b.trust(S0) is Trust.APPROXIMATE


def test_credit_missed_is_shown_and_never_punished():
    b = board(window=5)
    assert observe(b, 0.0, 1000, 2000, 50) == []
    assert b.node(S0).missed_share == 1.0


def test_nothing_is_learnt_without_credit():
    b = board(Trust.DEGRADED, window=5)
    assert observe(b, 0.0, 1000, 0, 50) == []
    assert b.trust(S0) is Trust.DEGRADED


def test_a_removed_node_is_forgotten_and_late_news_of_it_dropped():
    b = board()
    b.remove(S0)
    assert b.signal(S0, Signal.COMPLETE, 1.0) == ()
    assert observe(b, 1.0, 1000, 0, 50) == []
    assert b.trust(S0) is Trust.OFF and not b.credited[0]


def test_grows_with_the_fleet():
    b = board()
    b.add(Slot(40), NodeId("n40"), 0.0, signal=Trust.EXACT)
    b.grow(64)
    assert len(b.credited) == 64
    assert b.credited.nonzero()[0].tolist() == [0, 40]

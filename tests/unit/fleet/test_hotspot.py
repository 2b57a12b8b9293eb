from __future__ import annotations

import pytest

from core.errors import Invalid
from core.fleet.hotspot import GROUP_TABLE, GROUPS_MAX, Heat, HotspotDetector, Sign
from core.fleet.switch import State
from core.tunables import Hotspot

HOT, NODES = 0xABCD, 8


def detector(**rules: float) -> HotspotDetector:
    return HotspotDetector(Hotspot(**rules), 0.0)  # type: ignore[arg-type]


def feed(
    d: HotspotDetector, now: float, *, hot: int, other: int = 0, chosen: int = 0, holders=(0,)
):
    events = []
    for _ in range(other):
        events += d.observe(None, now, chosen=5, holders=(), nodes=NODES)
    for _ in range(hot):
        events += d.observe(HOT, now, chosen=chosen, holders=holders, nodes=NODES)
    return events


def moves(events, machine: str = "hotspot"):
    return [(e.before, e.after) for e in events if e.machine == machine]


def test_the_table_is_whole():
    assert set(GROUP_TABLE) == set(Heat)
    assert all(len(row) == len(Sign) for row in GROUP_TABLE.values())


def test_group_is_named_by_its_last_leading_block():
    d = detector(group_blocks=4)
    assert d.group_of([1, 2, 3, 4, 5]) == 4
    assert d.group_of([1, 2, 3]) is None


def test_stage_1_compares_the_shares():
    # x / x' = 20/140 = 1/7 = |M| / |M'|: not above. One more request is.
    d = detector()
    assert feed(d, 1.0, other=140, hot=20, chosen=5) == []
    (event,) = feed(d, 1.0, hot=1, chosen=5)
    assert (event.before, event.after) == ("calm", "alert")
    assert event.data == {
        "group": "000000000000abcd", "requests": 21, "total": 161, "holders": 1, "nodes": 8,
    }  # fmt: skip


@pytest.mark.parametrize("holders", [(), tuple(range(NODES))])
def test_without_holders_or_without_others_there_is_no_hotspot(holders: tuple[int, ...]):
    assert feed(detector(), 1.0, hot=500, holders=holders) == []


def test_a_group_below_the_minimum_is_silent():
    assert feed(detector(requests_min=20), 1.0, hot=19) == []


def test_stage_2_needs_a_run_of_twice_the_holders():
    d = detector()
    feed(d, 1.0, hot=20, chosen=5, holders=(0, 1))
    assert feed(d, 1.0, hot=3, chosen=1, holders=(0, 1)) == []
    assert feed(d, 1.0, hot=1, chosen=5, holders=(0, 1)) == []  # the run is broken
    assert feed(d, 1.0, hot=3, chosen=0, holders=(0, 1)) == []
    (event,) = feed(d, 2.0, hot=1, chosen=0, holders=(0, 1))
    assert (event.before, event.after, event.until_s) == ("alert", "filtered", 12.0)
    assert d.excluded(HOT, 2.0) == {0, 1}
    assert d.excluded(0x1234, 2.0) == frozenset()
    assert d.excluded(None, 2.0) == frozenset()


def filtered(**rules: float) -> HotspotDetector:
    d = detector(**rules)
    assert moves(feed(d, 1.0, hot=21)) == [("calm", "alert"), ("alert", "filtered")]
    return d


def test_the_filter_ends_with_the_cool_down():
    d = filtered()
    assert d.excluded(HOT, 10.9) == {0}
    assert d.excluded(HOT, 11.0) == frozenset()
    assert moves(d.tick(12.0)) == [("filtered", "calm")]


def test_tick_ends_filters_without_traffic():
    d = filtered()
    (event,) = d.tick(30.0)
    assert (event.after, event.now_s) == ("calm", 11.0)
    assert d.groups(30.0)[0].excluded == frozenset()


def test_holders_that_spread_end_the_alert():
    d = detector()
    feed(d, 1.0, hot=25, other=25, chosen=5)
    assert d.groups(1.0)[0].heat is Heat.ALERT
    # x/x' = 1 against 4/4: at the threshold, kept; against 6/2: well below, calm.
    assert feed(d, 1.0, hot=0, other=1) == []
    (event,) = feed(d, 1.0, hot=1, chosen=7, holders=(0, 1, 2, 3, 4, 5))
    assert (event.before, event.after) == ("alert", "calm")


def test_requests_leave_the_window():
    d = detector(window_s=60.0)
    feed(d, 0.0, hot=19, chosen=5)
    assert feed(d, 61.0, hot=1, chosen=5) == []
    assert d.groups(61.0)[0].requests == 1


def fire_repeatedly(d: HotspotDetector, times: int):
    now, events = 1.0, list(feed(d, 1.0, hot=21))
    for _ in range(times - 1):
        now += 10.0
        events += feed(d, now, hot=21)
    return now, events


def test_repeated_firing_opens_the_global_breaker_and_a_quiet_trial_closes_it():
    d = detector(trips_to_open=3, open_s=30.0)
    now, events = fire_repeatedly(d, 3)
    assert moves(events, "global_breaker") == [("closed", "open")]
    assert d.breaker.fallback(now) and d.breaker.fallback(now + 29.9)
    assert not d.breaker.fallback(now + 30.0)
    assert d.breaker.switch.state is State.HALF_OPEN
    assert moves(d.tick(now + 60.0), "global_breaker") == [
        ("open", "half_open"),
        ("half_open", "closed"),
    ]


def test_a_firing_in_the_trial_opens_for_twice_as_long():
    d = detector(trips_to_open=3, open_s=30.0)
    now, _ = fire_repeatedly(d, 3)
    events = feed(d, now + 35.0, hot=21)
    assert moves(events, "global_breaker") == [("open", "half_open"), ("half_open", "open")]
    assert d.breaker.switch.until_s == now + 35.0 + 60.0


def test_firings_far_apart_or_of_other_groups_do_not_add_up():
    d = detector(trips_to_open=2)
    feed(d, 1.0, hot=21)
    feed(d, 100.0, hot=21)
    for _ in range(21):
        d.observe(0x77, 100.0, chosen=3, holders=(3,), nodes=NODES)
    assert [g.firings for g in d.groups(100.0)] == [1, 1]
    assert d.breaker.switch.state is State.CLOSED


def test_round_robin_placements_do_not_count_as_runs():
    d = detector()
    d.breaker.trip(0.5, reason="test", actor="ann")
    assert moves(feed(d, 1.0, hot=100)) == [("calm", "alert")]


def test_a_manual_trip_forces_round_robin_until_its_expiry_or_a_reset():
    d = detector()
    (event,) = d.breaker.trip(1.0, reason="bad policy", actor="ann", for_s=100.0)
    assert (event.machine, event.after, event.actor) == ("global_breaker", "tripped", "ann")
    assert d.breaker.fallback(100.9) and not d.breaker.fallback(101.0)
    d.breaker.trip(200.0, reason="again", actor="ann")
    assert d.breaker.fallback(1e9)
    assert [e.after for e in d.breaker.reset(1e9, reason="fixed", actor="bob")] == ["closed"]
    assert not d.breaker.fallback(1e9)


def test_a_hold_keeps_the_policy_in_charge():
    d = detector(trips_to_open=2)
    d.breaker.reset(0.5, reason="known", actor="ann", hold_s=1000.0)
    _, events = fire_repeatedly(d, 5)
    assert moves(events, "global_breaker") == []
    assert not d.breaker.fallback(50.0)


def test_manual_acts_need_a_reason():
    with pytest.raises(Invalid):
        detector().breaker.trip(1.0, reason="", actor="ann")


def test_memory_is_bounded_and_the_hot_group_survives():
    d = detector()
    feed(d, 1.0, hot=15, chosen=5)
    for i in range(5 * GROUPS_MAX):
        d.observe(1_000_000 + i, 1.0, chosen=3, holders=(3,), nodes=NODES)
    assert len(d._groups) <= 2 * GROUPS_MAX
    assert d.groups(1.0)[0].group == HOT and d.groups(1.0)[0].requests == 15


def test_groups_are_ranked_and_described():
    d = filtered()
    d.observe(0x77, 1.0, chosen=3, holders=(3,), nodes=NODES)
    first, second = d.groups(1.0)
    assert (first.group, first.heat, first.requests, first.holders) == (HOT, Heat.FILTERED, 21, 1)
    assert first.share == pytest.approx(21 / 22)
    assert second.group == 0x77
    assert len(d.groups(1.0, limit=1)) == 1


def test_a_new_window_starts_counting_afresh():
    d = detector()
    feed(d, 100.0, hot=15, chosen=5)
    d.configure(Hotspot(window_s=600.0))
    assert d.groups(100.0) == []
    feed(d, 100.0, hot=3, chosen=5)
    assert d.groups(100.0)[0].requests == 3

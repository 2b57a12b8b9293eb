"""Alerts on synthetic series: each rule fires on its own cause, and nothing else does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from core.control.alert_rules import MONITORS, RULES
from core.control.alerts import RESOLVED_KEPT_S, TABLE, AlertBoard, AlertState, Sign
from core.errors import Conflict, NotFound
from core.tunables import Tunables

LIMITS = Tunables().alerts
T0 = datetime(2026, 1, 1, tzinfo=UTC)
CALM = {
    "product_cv": 0.4, "product_max": 1.5, "hit_achieved": 0.6, "hit_reachable": 0.65,
    "hit_ratio": 0.92, "hit_spread": 0.2, "group_share": 0.3, "firings": 0.0, "hot_groups": 0.0,
    "decision_p99": 0.0004, "burn_fast": 0.2, "burn_slow": 0.1, "burn_long": 0.3, "panic": 0.0,
    "audit_broken": 0.0, "signal_lost": 0.0, "spool": 0.01, "records_dropped": 0.0,
    "nodes_dead": 0.0, "loop_lag": 0.004, "decision_felt": 0.02,
}  # fmt: skip
BAD = {
    "product_cv": 2.5, "hit_ratio": 0.3, "hit_spread": 0.9, "firings": 9.0, "decision_p99": 0.004,
    "burn_fast": 20.0, "burn_slow": 7.0, "burn_long": 1.4, "panic": 1.0, "signal_lost": 301.0,
    "audit_broken": 1.0, "spool": 0.51, "records_dropped": 1.0, "loop_lag": 0.06,
    "nodes_dead": 1.0,
}  # fmt: skip
ALSO = {"decision_felt": 0.3}


def play(board, values, *, seconds, start_s=0.0, step_s=5.0, evidence=None):
    """Sample after sample of the same values; what moved, with the time of it."""
    moved, now = [], start_s
    while now <= start_s + seconds:
        at = T0 + timedelta(seconds=now)
        for m in board.evaluate(values, LIMITS, now, at, evidence=evidence):
            moved.append((now, m.alert.rule.name, m.before.value, m.alert.state.value))
        now += step_s
    return moved


def states(board) -> dict[str, str]:
    return {
        a.rule.name: a.state.value for a in board.alerts() if a.state is not AlertState.INACTIVE
    }


def test_every_rule_watches_a_monitor_and_has_a_limit():
    assert set(CALM) == {m.name for m in MONITORS}
    assert set(BAD) == {r.monitor for r in RULES}
    assert set(ALSO) == {r.also for r in RULES if r.also}
    for rule in RULES:
        assert hasattr(LIMITS, rule.limit)
        assert not rule.also or hasattr(LIMITS, rule.also_limit)


def test_every_state_has_every_sign():
    assert set(TABLE) == set(AlertState) and all(len(row) == len(Sign) for row in TABLE.values())


def test_a_calm_hour_alerts_nobody():
    board = AlertBoard()
    assert play(board, CALM, seconds=3600) == []


def test_slow_decisions_that_nobody_feels_alert_nobody():
    """A laptop's p99 of 4 ms: over the limit, and unfelt."""
    board = AlertBoard()
    assert play(board, {**CALM, "decision_p99": 0.004, "decision_felt": 0.07}, seconds=3600) == []
    few = {**CALM, "decision_p99": 0.4, "decision_felt": None}
    assert play(board, few, seconds=600, start_s=3605) == []


def test_a_real_regression_of_decisions_fires_with_what_stands_behind_it():
    board = AlertBoard()
    slow = {**CALM, "decision_p99": 0.03, "decision_felt": 0.4}
    facts = {"decision_felt": {"decisions": 900, "ttft_p50_s": 0.075}}
    moved = play(board, slow, seconds=400, evidence=facts)
    assert moved == [
        (0.0, "decisions_slow", "inactive", "pending"),
        (300.0, "decisions_slow", "pending", "firing"),
    ]
    alert = board.get("decisions_slow")
    assert (alert.value, alert.also) == (0.03, 0.4)
    assert alert.evidence["decisions"] == 900 and alert.evidence["limit"] == LIMITS.decision_s
    # No longer felt: resolved, whatever the first monitor says.
    calm = {**slow, "decision_felt": 0.05}
    moved = play(board, calm, seconds=5, start_s=405)
    assert moved == [(405, "decisions_slow", "firing", "resolved")]


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
def test_each_cause_fires_its_alert_and_only_it(rule):
    board = AlertBoard()
    play(board, CALM, seconds=600)
    bad = {**CALM, rule.monitor: BAD[rule.monitor]}
    if rule.also:
        bad[rule.also] = ALSO[rule.also]
    moved = play(board, bad, seconds=600, start_s=605)
    fired = 605 + rule.for_s
    expected = [(fired, rule.name, "pending" if rule.for_s else "inactive", "firing")]
    if rule.for_s:
        expected.insert(0, (605, rule.name, "inactive", "pending"))
    assert moved == expected
    assert states(board) == {rule.name: "firing"}
    alert = board.get(rule.name)
    assert alert.evidence["value"] == BAD[rule.monitor] == alert.worst
    assert alert.since == T0 + timedelta(seconds=605)
    moved = play(board, CALM, seconds=5, start_s=1300)
    assert moved == [(1300, rule.name, "firing", "resolved")]
    assert play(board, CALM, seconds=10, start_s=1300 + RESOLVED_KEPT_S) == [
        (1300 + RESOLVED_KEPT_S, rule.name, "resolved", "inactive")
    ]


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
def test_at_the_limit_itself_nothing_fires(rule):
    board = AlertBoard()
    play(board, {**CALM, rule.monitor: float(getattr(LIMITS, rule.limit))}, seconds=600)
    assert states(board) == {}


def test_a_short_trouble_stays_pending():
    board = AlertBoard()
    bad = {**CALM, "loop_lag": 0.2}
    assert [m[3] for m in play(board, bad, seconds=50)] == ["pending"]
    assert [m[3] for m in play(board, CALM, seconds=20, start_s=55)] == ["inactive"]
    assert [m[3] for m in play(board, bad, seconds=50, start_s=80)] == ["pending"]


def test_no_value_ends_what_was_pending_and_leaves_what_fires():
    board = AlertBoard()
    play(board, {**CALM, "hit_ratio": 0.1, "records_dropped": 3.0}, seconds=20)
    assert states(board) == {"hit_missed": "pending", "records_dropped": "firing"}
    play(board, {**CALM, "hit_ratio": None, "records_dropped": None}, seconds=20, start_s=25)
    assert states(board) == {"records_dropped": "firing"}


def test_an_acknowledgement_lasts_as_long_as_the_alert():
    board, bad = AlertBoard(), {**CALM, "panic": 1.0}
    with pytest.raises(Conflict, match="inactive"):
        board.acknowledge("panic", author="ada", at=T0, note="known")
    with pytest.raises(NotFound):
        board.acknowledge("panik", author="ada", at=T0, note="known")
    play(board, bad, seconds=5)
    board.acknowledge("panic", author="ada", at=T0, note="rack two is moved")
    play(board, bad, seconds=100, start_s=10)
    assert board.get("panic").acknowledged.note == "rack two is moved"
    play(board, CALM, seconds=5, start_s=200)
    assert board.get("panic").acknowledged is None
    play(board, bad, seconds=5, start_s=300)
    assert states(board) == {"panic": "firing"} and board.get("panic").acknowledged is None


def test_evidence_names_what_stands_behind_the_value():
    board = AlertBoard()
    play(board, {**CALM, "signal_lost": 400.0}, seconds=5, evidence={"signal_lost": {"node": "a"}})
    assert board.get("cache_signal_lost").evidence == {"value": 400.0, "limit": 300.0, "node": "a"}


def test_pages_come_first():
    board = AlertBoard()
    play(board, {**CALM, "panic": 1.0, "burn_slow": 9.0}, seconds=5)
    assert [a.rule.name for a in board.alerts()][:2] == ["slo_burn_slow", "panic"]


def test_of_equal_alerts_the_newest_comes_first_and_one_that_somebody_knows_of_last():
    board, bad = AlertBoard(), {**CALM, "panic": 1.0}
    play(board, bad, seconds=5)
    play(board, {**bad, "signal_lost": 400.0}, seconds=5, start_s=10)
    assert [a.rule.name for a in board.alerts()][:2] == ["cache_signal_lost", "panic"]
    board.acknowledge("cache_signal_lost", author="ada", at=T0, note="known")
    assert [a.rule.name for a in board.alerts()][:2] == ["panic", "cache_signal_lost"]

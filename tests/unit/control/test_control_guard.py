"""The guard: which rule fires, what it blames, and that it does not flap."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from core.control.guard import Counts, Guard, State, Tally
from core.control.resume import resumed, steps
from core.control.revisions import Kind, Revision
from core.ports import TimeBucket
from core.tunables import Guard as Rules
from core.tunables import Tunables

RULES = Rules(time_s=1800.0, objective=0.99, sample_min=50, rest_s=300.0)


def feed(guard: Guard, revision: int, *, start_s: float, end_s: float, bad_share: float,
         rate: float = 2.0, error: bool = False, tick: bool = True):  # fmt: skip
    """`rate` requests a second; the first evidence and its time."""
    count, bad = round((end_s - start_s) * rate), 0
    for n in range(count):
        now = start_s + n / rate
        is_bad = int((n + 1) * bad_share) > bad
        bad += is_bad
        guard.observe(revision, now, bad=is_bad, error=error and is_bad)
        if tick and n % 10 == 0:
            found = guard.tick(now, RULES, live=revision)
            if found is not None:
                return found, now
    return None, end_s


def test_windows_count_what_is_in_them():
    tally = Tally()
    for second in range(1000):
        tally.add(float(second), bad=second % 10 == 0, error=False)
    counts = tally.window(1000.0, 300.0)
    assert 300 <= counts.total <= 320 and counts.bad == pytest.approx(counts.total / 10, abs=2)
    assert counts.burn(0.99) == pytest.approx(10.0, rel=0.1)
    assert tally.window(1e6, 300.0).total == 0


def test_a_total_loss_of_the_objective_is_rolled_back_within_the_guard_time():
    guard = Guard(1)
    feed(guard, 1, start_s=0, end_s=3600, bad_share=0.0)
    guard.changed(3600.0, RULES)
    evidence, at = feed(guard, 2, start_s=3600, end_s=5400, bad_share=1.0)
    assert evidence is not None and guard.state is State.CONDEMNED
    # The slow rule's windows still hold an hour of good traffic: burn 100 has to be spread
    # over enough bad requests before 6 h and 30 min burn at 6, or 1 h at 14.4.
    assert 3600 < at < 3600 + 600
    assert evidence.suspects_rate == pytest.approx(100.0)
    assert evidence.before_rate == 0.0


WALL = datetime(2026, 5, 1, tzinfo=UTC)


def stored(number: int, ago_s: float, alpha: float, kind: Kind = Kind.CHANGE) -> Revision:
    tunables = Tunables().changed({"linear.alpha": alpha})
    return Revision(
        number=number, base=number - 1, at=WALL - timedelta(seconds=ago_s), author="op",
        reason="why", kind=kind, tunables=tunables, changes={},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("history", "state", "good"),
    [
        ([stored(1, 9e4, 0.1)], State.QUIET, 1),
        ([stored(1, 9e4, 0.1), stored(2, 600, 0.2)], State.WATCHING, 1),
        ([stored(1, 9e4, 0.1), stored(2, 3000, 0.2), stored(3, 600, 0.3)], State.WATCHING, 2),
        ([stored(1, 9e4, 0.1), stored(2, 1000, 0.2), stored(3, 600, 0.3)], State.WATCHING, 1),
        ([stored(1, 9e4, 0.1), stored(2, 1801, 0.2)], State.QUIET, 2),
        ([stored(1, 9e4, 0.1), stored(2, 600, 0.2), stored(3, 300, 0.1)], State.QUIET, 3),
        ([stored(1, 9e4, 0.1), stored(2, 600, 0.2), stored(3, 200, 0.1, Kind.GUARD)],
         State.RESTING, 3),
        ([stored(1, 9e4, 0.1), stored(2, -60, 0.2)], State.WATCHING, 1),  # a clock that went back
    ],
)  # fmt: skip
def test_a_restart_takes_nothing_off_the_guard_time(history, state, good):
    guard = resumed(history, now=50.0, wall=WALL)
    assert (guard.state, guard.good) == (state, good)
    if state is State.WATCHING:
        changed_s = min(50.0 - (WALL - history[-1].at).total_seconds(), 50.0)
        assert guard.until_s == pytest.approx(changed_s + 1800.0)


@pytest.mark.parametrize(("bad_before", "condemned"), [(0, True), (10, False)])
def test_what_was_stored_before_a_restart_speaks_as_if_there_had_been_none(bad_before, condemned):
    guard = resumed([stored(1, 9e4, 0.1), stored(2, 600, 0.2)], now=50.0, wall=WALL)

    def bucket(ago_s: int, bad: int) -> TimeBucket:
        start = WALL - timedelta(seconds=ago_s)
        return TimeBucket(start=start, decisions=10, finished=10, slo_missed=bad)

    seen = [bucket(ago_s, bad_before if ago_s > 600 else 10) for ago_s in range(3600, 0, -10)]
    guard.recall(steps(seen, now=50.0, wall=WALL))
    evidence = guard.tick(50.0, RULES, live=2)
    assert (evidence is not None) is condemned
    if evidence is not None:
        assert (evidence.rule, evidence.suspects.total, evidence.before.bad) == ("fast", 300, 0)


def test_what_may_have_been_the_clients_fault_condemns_no_change_after_a_restart():
    start = WALL - timedelta(seconds=60)
    stored_ones = TimeBucket(
        start=start, decisions=90, rejected=50, finished=40, failed=30, aborted=4
    )
    assert [seen for _, seen in steps([stored_ones], now=50.0, wall=WALL)] == [Counts(6, 0, 0)]


def test_slow_burn_is_found_by_the_long_windows():
    guard = Guard(1)
    feed(guard, 1, start_s=0, end_s=600, bad_share=0.0)
    guard.changed(600.0, RULES)
    evidence, _ = feed(guard, 2, start_s=600, end_s=2400, bad_share=0.09)
    assert evidence is not None and evidence.rule == "slow"


def test_failures_are_found_by_their_share():
    guard = Guard(1)
    feed(guard, 1, start_s=0, end_s=3600, bad_share=0.0)
    guard.changed(3600.0, RULES)
    evidence, at = feed(guard, 2, start_s=3600, end_s=4200, bad_share=0.5, error=True)
    assert evidence is not None and evidence.rule == "errors" and at < 3660


def test_good_traffic_ends_the_suspicion():
    guard = Guard(1)
    guard.changed(0.0, RULES)
    assert feed(guard, 2, start_s=0, end_s=1800, bad_share=0.005) == (None, 1800)
    assert guard.tick(1801.0, RULES, live=2) is None
    assert (guard.state, guard.good) == (State.QUIET, 2)


def test_a_fault_that_was_there_before_is_not_the_changes():
    guard = Guard(1)
    feed(guard, 1, start_s=0, end_s=3600, bad_share=0.5)
    guard.changed(3600.0, RULES)
    assert feed(guard, 2, start_s=3600, end_s=5400, bad_share=0.5)[0] is None


def test_a_fault_of_requests_decided_before_the_change_is_not_the_changes():
    guard = Guard(1)
    feed(guard, 1, start_s=0, end_s=3600, bad_share=0.0)
    guard.changed(3600.0, RULES)
    assert feed(guard, 1, start_s=3600, end_s=5000, bad_share=1.0)[0] is None


def test_few_requests_are_not_judged():
    guard = Guard(1)
    guard.changed(0.0, RULES)
    assert feed(guard, 2, start_s=0, end_s=24, bad_share=1.0, error=True)[0] is None


def test_switched_off_it_only_watches():
    guard, off = Guard(1), Rules(enabled=False)
    guard.changed(0.0, off)
    for n in range(1000):
        guard.observe(2, n * 0.1, bad=True, error=True)
        assert guard.tick(n * 0.1, off, live=2) is None


def test_its_own_rollback_is_not_judged_and_the_next_one_waits():
    guard = Guard(1)
    guard.changed(0.0, RULES)
    evidence, at = feed(guard, 2, start_s=0, end_s=600, bad_share=1.0, error=True)
    assert evidence is not None
    assert guard.tick(at + 1, RULES, live=2) is evidence, "asked again until it is stored"
    guard.rolled_back(at + 1, 3, RULES)
    assert (guard.state, guard.good) == (State.RESTING, 3)
    # The restored revision does badly too: it is not the guard's to roll back further.
    assert feed(guard, 3, start_s=at + 1, end_s=at + 250, bad_share=1.0, error=True)[0] is None
    # The operator applies the bad change again: it is watched, but the rest holds.
    guard.changed(at + 251, RULES)
    evidence, then = feed(guard, 4, start_s=at + 251, end_s=at + 500, bad_share=1.0, error=True)
    assert evidence is None or then >= at + 301


def test_changes_in_a_row_are_suspected_together():
    guard = Guard(1)
    guard.changed(0.0, RULES)
    feed(guard, 2, start_s=0, end_s=60, bad_share=0.0)
    guard.changed(60.0, RULES)
    evidence, _ = feed(guard, 3, start_s=60, end_s=300, bad_share=1.0, error=True)
    assert evidence is not None and guard.good == 1

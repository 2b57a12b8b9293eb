"""Properties of the control room: the book, expiries, the shadow's budget, the guard."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from core.control import schedule
from core.control.canary import takes
from core.control.guard import STEP_S, Guard, State, Tally
from core.control.revisions import Book, Kind, Revision, StaleBase, from_record
from core.control.shadow import Budget
from core.domain import Request, RequestId
from core.errors import Invalid
from core.tunables import Guard as Rules
from core.tunables import Shadow, Tunables, diff, leaves

AT = datetime(2026, 1, 2, tzinfo=UTC)
WHO = {"at": AT, "author": "ada", "reason": "because"}
NUMBERS = [leaf for leaf in leaves(Tunables()) if leaf.low is not None]
PATHS = st.sampled_from([leaf.path for leaf in NUMBERS if not leaf.path.startswith("weighted.")])


@st.composite
def one_change(draw):
    """A path with a value that may lie outside its bounds."""
    path = draw(PATHS)
    leaf = next(n for n in NUMBERS if n.path == path)
    low, high = float(leaf.low), float(leaf.high)
    value = draw(st.sampled_from([low, high, leaf.default, low - 1.0, high + 1.0]))
    return path, value


def start() -> Revision:
    return Revision(number=1, base=0, at=AT, author="", reason="", kind=Kind.START,
                    tunables=Tunables(), changes={})  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(one_change(), st.booleans(), st.booleans()), max_size=25))
def test_the_live_revision_is_the_last_valid_one(steps):
    """A naive twin keeps a plain list of trees."""
    book, twin, numbers = Book(start()), [Tunables()], [1]
    for (path, value), stale, candidate in steps:
        base = book.live.number - 1 if stale else book.live.number
        kind = Kind.CANARY if candidate else Kind.CHANGE
        before = book.live
        try:
            made = book.change({path: value}, base=base, kind=kind, **WHO)
        except StaleBase:
            assert stale
        except Invalid as error:
            assert not stale and error.field in (path, "changes", "breaker.open_max_s")
        else:
            assert not stale and made.number == max(numbers) + 1
            assert diff(before.tunables, made.tunables) == made.changes
            book.adopt(made)
            numbers.append(made.number)
            if not candidate:
                twin.append(twin[-1].changed({path: value}))
            assert from_record(made.record()) == made
        assert book.live.tunables == twin[-1]


@settings(max_examples=60, deadline=None)
@given(st.lists(one_change(), min_size=1, max_size=6))
def test_an_expiry_never_touches_what_others_set(changes):
    book = Book(start())
    try:
        mine = book.change(dict(changes), base=1, **WHO)
    except Invalid:
        return
    book.adopt(mine)
    end = schedule.expiry_of(mine, AT + timedelta(hours=1), id="e")
    others = {}
    for path, (old, new) in list(mine.changes.items())[::2]:
        leaf = next(n for n in NUMBERS if n.path == path)
        other = next((v for v in (leaf.low, leaf.high, leaf.default) if v not in (old, new)), None)
        if other is None:
            continue
        try:
            book.adopt(book.change({path: other}, base=book.live.number, **WHO))
            others[path] = other
        except Invalid:
            continue
    back, _ = schedule.still_meant(end, book.live.tunables)
    assert set(back) == set(mine.changes) - set(others)
    assert all(back[path] == mine.changes[path][0] for path in back)


@settings(max_examples=40, deadline=None)
@given(
    st.floats(0.0, 1.0),
    st.lists(st.tuples(st.floats(1e-6, 1e-2), st.floats(1e-6, 1e-2)), max_size=300),
)
def test_scoring_costs_at_most_its_share_and_one_surprise(share, steps):
    budget, rules, worst = Budget(), Shadow(cost_share_max=share), 0.0
    for decided_s, scoring_s in steps:
        if budget.allows(decided_s, rules, lag_s=0.0):
            budget.spent(scoring_s)
            worst = max(worst, scoring_s)
        assert budget.spent_s <= share * budget.decided_s + worst + 1e-12


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 60.0), st.booleans()), max_size=200),
       st.sampled_from([300.0, 1800.0, 3600.0]))  # fmt: skip
def test_windows_agree_with_a_naive_count(gaps, seconds):
    tally, now, seen = Tally(), 0.0, []
    for gap, bad in gaps:
        now += gap
        tally.add(now, bad=bad, error=False)
        seen.append((now, bad))
    counts = tally.window(now, seconds)
    inside = [b for at, b in seen if at > now - seconds]
    at_most = [b for at, b in seen if at > now - seconds - STEP_S]
    assert len(inside) <= counts.total <= len(at_most)
    assert sum(inside) <= counts.bad <= sum(at_most)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.floats(0.0, 1.0))
def test_the_guard_never_rolls_back_twice_within_its_rest(seed, bad_share):
    """Random traffic and changes: rollbacks stand apart by the rest, and never without change."""
    rng, rules = random.Random(seed), Rules(sample_min=5, rest_s=120.0, time_s=200.0)
    guard, live, now, at, pending_change = Guard(1), 1, 0.0, [], False
    for _ in range(400):
        now += rng.expovariate(1.0)
        if rng.random() < 0.02:
            live += 1
            guard.changed(now, rules)
            pending_change = True
        bad = rng.random() < bad_share
        guard.observe(live, now, bad=bad, error=bad)
        if guard.tick(now, rules, live=live) is not None:
            assert pending_change, "nothing was changed since the last rollback"
            assert guard.good < live
            at.append(now)
            live += 1
            guard.rolled_back(now, live, rules)
            pending_change = False
            assert guard.state is State.RESTING
    assert all(b - a >= rules.rest_s for a, b in itertools.pairwise(at))


@settings(max_examples=40, deadline=None)
@given(st.text(min_size=1), st.integers(1, 2**31), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_larger_share_only_adds_sessions(session, salt, a, b):
    request = Request(id=RequestId("r"), model="m", prompt_tokens=1, session=session)
    low, high = sorted((a, b))
    if takes(request, share=low, salt=salt):
        assert takes(request, share=high, salt=salt)

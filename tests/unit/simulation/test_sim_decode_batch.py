import heapq
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.simulation.decode_batch import DecodeBatch

COST = (0.010, 0.0005, 2e-8)


def naive(joins):
    """Step by step: members join at boundaries; returns end time and gaps by member."""
    waiting = sorted(enumerate(joins), key=lambda item: (item[1][0], item[0]))
    now, members, done = 0.0, {}, {}
    gaps = {i: [] for i in range(len(joins))}
    while waiting or members:
        if not members:
            now = max(now, waiting[0][1][0])
        while waiting and waiting[0][1][0] <= now + 1e-12:
            i, (at, kv, steps) = waiting.pop(0)
            members[i] = [kv, steps]
            gaps[i].append(now - at)
        kv = sum(m[0] for m in members.values())
        step = COST[0] + COST[1] * len(members) + COST[2] * kv
        now += step
        for i in list(members):
            gaps[i].append(step)
            members[i][0] += 1
            members[i][1] -= 1
            if not members[i][1]:
                done[i] = now
                del members[i]
    out = {}
    for i, (wait, first, *rest) in gaps.items():
        out[i] = (done[i], [wait + first, *rest])
    return out


def analytic(joins):
    """The same over DecodeBatch, event by event."""
    batch = DecodeBatch(COST)
    events = [(at, 0, i) for i, (at, _, _) in enumerate(joins)]
    heapq.heapify(events)
    first, joined, out = {}, {}, {}
    while events:
        now, kind, what = heapq.heappop(events)
        if kind == 0:
            at, kv, steps = joins[what]
            first[what] = batch.join(what, now, kv_tokens=kv, steps=steps)
            joined[what] = batch.at_s - at
        elif what != batch.version:
            continue
        else:
            for i in batch.settle(now):
                at, kv, steps = joins[i]
                batch.left(kv + steps)
                tbt, mean = batch.tbt_s(first[i], first[i] + steps, joined[i])
                out[i] = (now, tbt, mean)
        if batch.leaves:
            heapq.heappush(events, (batch.next_leave_s(), 1, batch.version))
    return out


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 400).map(lambda n: n * 0.00713), st.integers(1, 50_000),
                  st.integers(1, 60)),
        min_size=1, max_size=12,
    )
)  # fmt: skip
def test_equals_stepping(joins):
    expected, actual = naive(joins), analytic(joins)
    for i, (end, gaps) in expected.items():
        longest = sorted(gaps, reverse=True)[: max(math.ceil(len(gaps) * 0.1), 1)]
        assert actual[i][0] == pytest.approx(end, rel=1e-6)
        assert actual[i][2] == pytest.approx(sum(gaps) / len(gaps), rel=1e-6)
        # Within a stretch all gaps count as its mean, so the longest are a little low.
        assert actual[i][1] == pytest.approx(sum(longest) / len(longest), rel=0.02)


def test_one_member_takes_the_cost_models_time():
    batch = DecodeBatch(COST)
    batch.join("a", 5.0, kv_tokens=1000, steps=3)
    step = COST[0] + COST[1] + COST[2] * 1000
    assert batch.next_leave_s() == pytest.approx(5.0 + 3 * step + COST[2] * 3)

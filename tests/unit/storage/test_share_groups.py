"""Tables of groups: merged, capped and packed, they say what a dictionary would."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.share_groups import COUNTS, Groups, by_owner, capped, grouped, merged, packed, unpacked

NAMES = st.sampled_from(["", "a", "b", "node-é", "c"])
COUNT = st.integers(0, 1 << 40)
ROWS = st.lists(st.tuples(NAMES, NAMES, NAMES, NAMES, *[COUNT] * len(COUNTS)), max_size=12)


def sums(groups: Groups) -> Counter[tuple[object, ...]]:
    """Every count by what it is of; zeros too, so that no group is missed."""
    found: Counter[tuple[object, ...]] = Counter()
    for row in groups.table:
        for name, count in zip(COUNTS, row[5:].tolist(), strict=True):
            found[(*groups.names(row), int(row[4]), name)] += count
    return found


def plain(rows: list[tuple[object, ...]]) -> Counter[tuple[object, ...]]:
    found: Counter[tuple[object, ...]] = Counter()
    for *names, tenth in ((*row[:4], row[4:]) for row in rows):
        for name, count in zip(COUNTS, tenth, strict=True):
            found[(*names, 0, name)] += count
    return found


@given(st.lists(ROWS, max_size=4), st.sampled_from([1, 5, 200_000]))
def test_parts_add_up(parts, pending):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("storage.share_groups.PENDING_MAX", pending)
        whole = merged(grouped(rows, 7) for rows in parts)
    assert sums(whole) == plain([row for rows in parts for row in rows])
    assert len(whole.table) == len(sums(whole)) // len(COUNTS), "each group once"
    assert whole.oldest_us == (7 if any(parts) else 0)


@given(ROWS)
def test_packed_comes_back(rows):
    groups = grouped(rows, 9)
    again = unpacked(packed(groups), 9)
    assert (sums(again), again.oldest_us) == (sums(groups), 9)


@given(ROWS, st.integers(0, 5))
def test_capped_keeps_the_largest_and_every_sum(rows, most):
    groups = merged([grouped(rows, 1)])
    few = capped(groups, most)
    apart = [row for row in few.table if not row[4]]
    assert len(apart) == min(most, len(groups.table))
    least = min((int(row[5]) for row in apart), default=0)
    left = sorted(groups.table[:, 5].tolist(), reverse=True)[most:]
    assert all(count <= least for count in left) or not apart
    assert sums(by_owner(few)) == sums(by_owner(groups))
    assert few.decisions == groups.decisions
    assert set(few.nodes) <= {"", *groups.nodes}


@given(ROWS)
def test_ranked_is_by_decisions_then_names(rows):
    groups = merged([grouped(rows, 1)])
    ranked = [(-int(row[5]), *groups.names(row)) for row in groups.ranked()]
    assert ranked == sorted(ranked)

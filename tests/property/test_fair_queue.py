"""Who is next: nothing lost, bands first, tenants fairly, arrivals in order."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from core.plan.fair_queue import PROBES_MAX, FairQueue, Waiting

arrivals = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(-1, 1), st.integers(1, 50)), max_size=40
)


def filled(found) -> tuple[FairQueue[int], list[Waiting[int]]]:
    queue: FairQueue[int] = FairQueue()
    made = [Waiting(t, p, float(c), c, i) for i, (t, p, c) in enumerate(found)]
    for one in made:
        queue.push(one)
    return queue, made


def drained(queue: FairQueue[int]) -> list[Waiting[int]]:
    out = []
    while (one := queue.pick(lambda _: True)) is not None:
        out.append(one)
    return out


@given(arrivals)
@settings(deadline=None)
def test_everybody_leaves_once_bands_in_order_and_each_tenant_in_its_own(found):
    queue, made = filled(found)
    assert len(queue) == len(made) and queue.nbytes == sum(w.nbytes for w in made)
    out = drained(queue)
    assert sorted(w.what for w in out) == list(range(len(made)))
    assert [w.priority for w in out] == sorted((w.priority for w in made), reverse=True)
    for key in {(w.tenant, w.priority) for w in made}:
        mine = [w.what for w in out if (w.tenant, w.priority) == key]
        assert mine == sorted(mine)
    assert len(queue) == queue.nbytes == queue.cost == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), min_size=2, max_size=60))
@settings(deadline=None)
def test_tenants_with_somebody_waiting_stay_close(found):
    queue, made = filled([(t, 0, c) for t, c in found])
    left = Counter(w.tenant for w in made)
    largest = max(w.cost for w in made)
    served: Counter[str] = Counter()
    for one in drained(queue):
        served[one.tenant] += one.cost
        left[one.tenant] -= 1
        waiting = [t for t in left if left[t]]
        for a in waiting:
            for b in waiting:
                assert abs(served[a] - served[b]) <= 2 * largest


@given(arrivals, st.sets(st.integers(0, 39)))
@settings(deadline=None)
def test_who_is_not_ready_is_passed_over_and_keeps_the_place(found, blocked):
    queue, made = filled(found)
    out = []
    while (one := queue.pick(lambda what: what not in blocked)) is not None:
        out.append(one.what)
    assert set(out) == {w.what for w in made} - blocked
    assert {w.what for w in queue} == {w.what for w in made} & blocked
    rest = [w.what for w in drained(queue)]
    assert set(rest) == {w.what for w in made} & blocked


@given(arrivals, st.sets(st.integers(0, 39)))
@settings(deadline=None)
def test_discarding_leaves_the_others_as_they_were(found, gone):
    queue, made = filled(found)
    for one in made:
        if one.what in gone:
            assert queue.discard(one)
            assert not queue.discard(one)
    assert queue.cost == sum(w.cost for w in made if w.what not in gone)
    assert {w.what for w in drained(queue)} == {w.what for w in made} - gone


def test_a_tenant_that_was_away_saves_up_no_claim():
    queue: FairQueue[int] = FairQueue()
    for i in range(10):
        queue.push(Waiting("busy", 0, 10.0, 1, i))
    for _ in range(8):
        assert queue.pick(lambda _: True) is not None
    for i in range(10, 20):
        queue.push(Waiting("late", 0, 10.0, 1, i))
    turns = [one.tenant for one in drained(queue)[:4]]
    assert turns.count("busy") == 2


def test_the_lowest_band_gives_way_to_a_higher_one_only():
    queue, made = filled([("a", 0, 5), ("b", -1, 5), ("b", -1, 5)])
    assert queue.least(-1) is None
    assert queue.least(0) is made[2]
    assert queue.least(1) is made[2]
    assert FairQueue[int]().least(5) is None


def test_one_who_comes_first_again_is_before_its_tenants_others():
    queue, made = filled([("a", 0, 5), ("a", 0, 5)])
    one = queue.pick(lambda _: True)
    assert one is made[0]
    queue.push(one, first=True)
    assert [w.what for w in drained(queue)] == [0, 1]


def test_a_bounded_number_is_asked():
    queue, _ = filled([("a", 0, 1)] * (3 * PROBES_MAX))
    asked = []
    assert queue.pick(lambda what: bool(asked.append(what))) is None
    assert len(asked) == PROBES_MAX

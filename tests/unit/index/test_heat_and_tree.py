import math
import random

import pytest

from core.domain import Medium, Slot
from core.hashing import root_key, trace_keys
from core.index.heat import WINDOW_S, Heat
from core.index.prefix_index import PrefixIndex

ROOT = root_key("m", block_size=16)


def branch(base, ids):
    return base + trace_keys(ids, base[-1] if base else ROOT)


def index_of(nodes=3):
    index = PrefixIndex()
    for slot in range(nodes):
        index.add_node(Slot(slot), block_size=16)
    return index


def test_a_steady_stream_of_accesses_shows_its_rate():
    heat, keys = Heat(), branch([], range(10))
    for i in range(6000):
        heat.touch(keys, 16, i / 10)
    point = heat.get(keys[-1])
    assert heat.rate(point, 600.0) == pytest.approx(10.0, rel=0.01)
    assert heat.rate(point, 600.0 + WINDOW_S) == pytest.approx(10.0 / math.e, rel=0.01)
    assert point.hits == 6000
    assert point.last_s == 599.9


def test_rates_survive_days_of_uptime():
    heat, keys = Heat(), branch([], range(3))
    for hour in range(0, 24 * 30, 5):
        for i in range(600):
            heat.touch(keys, 16, hour * 3600 + i)
        assert heat.rate(heat.get(keys[-1]), hour * 3600 + 600) == pytest.approx(1.0, rel=0.02)


def test_counters_are_bounded_and_the_used_ones_stay():
    heat, hot = Heat(points_max=1000), branch([], range(8))
    for i in range(5000):
        heat.touch(trace_keys([i], 7), 16, float(i))
        if i % 50 == 0:
            heat.touch(hot, 16, float(i))
    assert len(heat) <= 1000
    assert heat.get(hot[-1]).hits == 100
    assert heat.get(trace_keys([3], 7)[0]) is None


def test_hot_lists_the_deepest_prefix_of_a_group_up_to_its_branch():
    index = index_of()
    system = branch([], range(100))
    for i in range(50):
        prompt = branch(system, [1000 + i, 2000 + i])
        index.store(Slot(i % 2), prompt, root=ROOT)
        index.touch(prompt, 16, i * 0.1)
    for i in range(5):
        other = branch([], [9000, 9001, 9100 + i])
        index.store(Slot(2), other, root=ROOT)
        index.touch(other, 16, 5.0)
    first, second = index.hot(5.0, 2)
    assert (first.key, first.depth_blocks, first.tokens) == (system[-1], 100, 1600)
    assert (first.hits, first.holders) == (50, (0, 1))
    assert first.rate_per_s == pytest.approx(50 / 60, rel=0.1)
    assert (second.depth_blocks, second.holders, second.hits) == (2, (2,), 5)
    assert index.hot(5.0, 0) == []
    assert PrefixIndex().hot(0.0, 5) == []


def test_an_access_of_nothing_counts_nothing():
    index = index_of()
    index.touch([], 16, 1.0)
    assert index.stats().touched == 0


def test_the_tree_collapses_chains_and_marks_holders():
    index = index_of()
    system = branch([], range(20))
    left, right = branch(system, [100, 101]), branch(system, [200, 201, 202])
    index.store(Slot(0), left, root=ROOT)
    index.store(Slot(1), left[:15], root=ROOT)
    index.store(Slot(0), right, root=ROOT)
    index.touch(right, 16, 4.0)
    cells = {cell.key: cell for cell in index.tree(10.0)}
    shape = {
        (cell.blocks, cell.depth_tokens, cell.holders, cells[cell.parent].depth_tokens)
        for cell in cells.values()
        if cell.parent is not None
    }
    assert shape == {(15, 240, 2, 0), (5, 320, 1, 240), (2, 352, 1, 320), (3, 368, 1, 320)}
    assert cells[ROOT].parent is None
    assert cells[right[-1]].hits == 1
    assert cells[right[-1]].age_s == 6.0
    assert cells[left[-1]].age_s is None


def test_the_tree_keeps_roots_apart_and_can_show_one():
    index = index_of()
    salted = root_key("m", salt="tenant", block_size=16)
    index.store(Slot(0), trace_keys([1, 2], ROOT), root=ROOT)
    index.store(Slot(1), trace_keys([1, 2], salted), root=salted)
    assert {cell.key for cell in index.tree(0.0) if cell.parent is None} == {ROOT, salted}
    only = index.tree(0.0, salted)
    assert [cell.key for cell in only] == [salted, trace_keys([1, 2], salted)[-1]]
    assert index.tree(0.0, 12345)[1:] == []


def test_the_tree_stays_in_its_budget_and_counts_the_rest():
    index = index_of()
    system = branch([], range(5))
    for i in range(3000):
        index.store(Slot(0), branch(system, [10_000 + i, 20_000 + i]), root=ROOT)
    hot = branch(system, [10_777, 20_777])
    index.touch(hot, 16, 1.0)
    cells = index.tree(1.0, budget=8, children_max=4)
    others = [cell for cell in cells if cell.others]
    assert len(cells) <= 8 + len(others)
    assert sum(cell.others for cell in others) == 3000 - 4
    assert others[0].parent == system[-1]
    assert hot[-1] in {cell.key for cell in cells}


def test_the_tree_can_be_taken_in_slices_while_the_table_changes():
    index, rng = index_of(), random.Random(1)
    chains = [branch([], [i, *range(1000 * i, 1000 * i + 900)]) for i in range(1, 9)]
    for chain in chains:
        index.store(Slot(0), chain, root=ROOT)
    slices = index.tree_slices(0.0)
    pauses = 0
    while True:
        try:
            next(slices)
        except StopIteration as end:
            cells = end.value
            break
        pauses += 1
        index.remove(Slot(0), rng.choice(chains)[::-1])
        index.forget(Slot(0)) if pauses == 3 else None
    assert pauses >= 2
    assert all(cell.blocks <= 901 for cell in cells)
    index.check_integrity()


def test_media_rows_split_the_match():
    from core.domain import Medium

    index = index_of(2)
    keys = branch([], range(6))
    index.store(Slot(0), keys, root=ROOT)
    index.store(Slot(0), keys[3:], medium=Medium.CPU, parent=keys[2])
    index.store(Slot(0), keys[5:], medium=Medium.DISK, parent=keys[4])
    gpu = index.match_media({16: keys})[Medium.GPU]
    assert gpu.tolist() == [96, 0]
    index.remove(Slot(0), keys[3:])
    index.remove(Slot(0), keys[5:], medium=Medium.CPU)
    rows = index.match_media({16: keys})
    assert [rows[m].tolist() for m in Medium] == [[48, 0], [32, 0], [16, 0]]
    assert sum(rows.values()).tolist() == index.match({16: keys}).tolist()


def test_a_prefix_is_described_by_its_last_block():
    index = index_of()
    head = branch([], range(8))
    index.store(Slot(0), head, root=ROOT)
    index.store(Slot(1), head[:4], medium=Medium.CPU, root=ROOT)
    index.store(Slot(0), branch(head, [91])[8:], parent=head[-1], root=ROOT)
    index.store(Slot(0), branch(head, [92])[8:], parent=head[-1], root=ROOT)
    index.touch(head, 16, 10.0)
    facts = index.prefix(head[3], 12.0)
    assert facts.listed
    assert facts.holders == ((0, Medium.GPU), (1, Medium.CPU))
    assert (facts.children, facts.ahead_blocks, facts.block_size) == (1, 4, 16)
    assert (facts.depth_blocks, facts.hits, facts.age_s) == (4, 1, 2.0)
    end = index.prefix(head[-1], 12.0)
    assert (end.children, end.ahead_blocks, end.holders) == (2, 0, ((0, Medium.GPU),))
    unknown = index.prefix(77, 12.0)
    assert not unknown.listed
    assert (unknown.holders, unknown.children, unknown.depth_blocks) == ((), 0, None)


def test_the_tree_of_very_long_chains_costs_bounded_steps_and_shows_every_branch():
    index = index_of()
    rng = random.Random(3)
    for i in range(60):
        index.store(Slot(i % 3), [rng.getrandbits(62) for _ in range(3000)], root=ROOT)
    slices, pauses = index.tree_slices(0.0, budget=100, children_max=60), 0
    while True:
        try:
            next(slices)
            pauses += 1
        except StopIteration as end:
            cells = end.value
            break
    heads = [c for c in cells if c.parent == ROOT and not c.others]
    assert len(heads) == 60
    assert max(c.blocks for c in heads) < 3000
    assert sum(c.blocks for c in cells) <= 62_000
    assert pauses >= 20
    cut = heads[0]
    below = index.tree(0.0, cut.key, budget=50)
    assert sum(c.blocks for c in below) == 3000 - cut.blocks

import numpy as np
import pytest

from core.domain import Medium, Slot
from core.errors import IntegrityError
from core.hashing import chain, root_key, trace_keys
from core.index.naive import NaiveIndex
from core.index.prefix_index import PrefixIndex

ROOT = root_key("m", block_size=16)


def keys_of(blocks, *, tag=0, root=ROOT):
    return trace_keys([tag * 100_000 + i for i in range(blocks)], root)


def index_of(nodes=2, **kwargs):
    index = PrefixIndex(**kwargs)
    for slot in range(nodes):
        index.add_node(Slot(slot), block_size=16)
    return index


@pytest.mark.parametrize("make", [PrefixIndex, NaiveIndex])
def test_golden_row_of_the_design_document(make):
    """S1 4.3: block size 8, 8000 tokens; nodes hold the first 6000, 5000, 4096, 2048, 2048."""
    tokens = np.random.default_rng(1).integers(0, 32_000, 8000, dtype=np.uint32)
    keys = chain(tokens, 8, root_key("m", block_size=8))
    index = make()
    held = [6000, 5000, 4096, 2048, 2048]
    for slot, count in enumerate(held):
        index.add_node(Slot(slot), block_size=8)
        index.store(Slot(slot), keys[: count // 8])
    assert index.match({8: keys}).tolist() == held


def test_nodes_of_other_block_sizes_do_not_count():
    index = PrefixIndex()
    tokens = np.arange(256, dtype=np.uint32)
    for slot, size in enumerate((16, 32)):
        index.add_node(Slot(slot), block_size=size)
        index.store(Slot(slot), chain(tokens, size, root_key("m", block_size=size)))
    keys = {size: chain(tokens, size, root_key("m", block_size=size)) for size in (16, 32, 64)}
    assert index.match(keys).tolist() == [256, 256]
    assert index.match({16: keys[16]}).tolist() == [256, 0]
    assert index.match({64: keys[64]}).tolist() == [0, 0]
    assert index.match({32: keys[16]}).tolist() == [0, 0]
    assert index.match({16: [], 32: []}).tolist() == [0, 0]
    assert index.match({}).tolist() == [0, 0]


def test_a_removed_middle_block_stops_the_match_until_it_returns():
    index, keys = index_of(), keys_of(40)
    for slot in (0, 1):
        index.store(Slot(slot), keys)
    index.remove(Slot(0), [keys[17]])
    assert index.match({16: keys}).tolist() == [17 * 16, 640]
    assert index.stats().open_nodes == index.stats().orphans == 1
    index.store(Slot(0), [keys[17]], parent=keys[16])
    assert index.match({16: keys}).tolist() == [640, 640]
    assert index.stats().open_nodes == 0
    index.check_integrity()


def test_children_may_come_before_their_parent():
    index, keys = index_of(1), keys_of(9)
    index.store(Slot(0), keys[4:], parent=keys[3])
    assert index.match({16: keys}).tolist() == [0]
    assert index.stats().orphans == 1
    index.store(Slot(0), keys[:4], root=ROOT)
    assert index.match({16: keys}).tolist() == [144]
    assert index.stats().orphans == 0
    index.check_integrity()


def test_a_reused_slot_inherits_nothing():
    index, keys = index_of(), keys_of(10)
    index.store(Slot(0), keys)
    index.store(Slot(1), keys[:5])
    index.remove_node(Slot(0))
    index.add_node(Slot(0), block_size=16)
    assert index.match({16: keys}).tolist() == [0, 80]
    assert index.holders(keys[0]) == [1]
    index.store(Slot(0), keys[:2])
    assert index.match({16: keys}).tolist() == [32, 80]
    while index.sweep(4):
        pass
    assert index.match({16: keys}).tolist() == [32, 80]
    assert index.stats().entries == 5
    assert index.stats().unswept_lanes == 0
    index.check_integrity()


def test_forgetting_over_and_over_stays_bounded():
    index, keys = index_of(2), keys_of(3)
    index.store(Slot(1), keys)
    for _ in range(2000):
        index.store(Slot(0), keys)
        index.forget(Slot(0))
    assert index.match({16: keys}).tolist() == [0, 48]
    assert index.stats().unswept_lanes <= 257
    index.check_integrity()


def test_a_block_is_held_while_any_medium_holds_it():
    index, keys = index_of(1), keys_of(4)
    index.store(Slot(0), keys)
    index.store(Slot(0), keys[2:], medium=Medium.CPU, parent=keys[1])
    index.remove(Slot(0), keys[1:])
    assert index.match({16: keys}).tolist() == [16]
    index.store(Slot(0), [keys[1]], medium=Medium.DISK, parent=keys[0])
    assert index.match({16: keys}).tolist() == [64]
    index.remove(Slot(0), keys[2:], medium=Medium.CPU)
    assert index.match({16: keys}).tolist() == [32]
    index.remove(Slot(0), keys, medium=Medium.CPU)
    assert index.match({16: keys}).tolist() == [32]
    index.check_integrity()


def test_1024_nodes_at_different_depths():
    index, keys = index_of(1024), keys_of(1030)
    for slot in range(1024):
        index.store(Slot(slot), keys[: slot + 1])
    assert index.match({16: keys}).tolist() == [16 * (slot + 1) for slot in range(1024)]
    assert index.holders(keys[1020]) == [1020, 1021, 1022, 1023]
    index.check_integrity()


def test_removal_in_either_order_leaves_nothing():
    for turn in (1, -1):
        index, keys = index_of(2), keys_of(50)
        index.store(Slot(0), keys)
        index.store(Slot(1), keys[:20])
        index.remove(Slot(0), keys[::turn])
        assert index.match({16: keys}).tolist() == [0, 320]
        index.remove(Slot(1), keys[:20][::turn])
        assert index.stats().entries == 0
        assert index.stats().open_nodes == 0
        index.check_integrity()


def test_unknown_slots_and_double_registration_are_errors():
    index = index_of(1)
    with pytest.raises(ValueError, match="slot 7 has no node"):
        index.store(Slot(7), [1])
    with pytest.raises(ValueError, match="slot 0 already has a node"):
        index.add_node(Slot(0), block_size=16)
    with pytest.raises(ValueError, match="block_size must be >= 1"):
        index.add_node(Slot(1), block_size=0)
    with pytest.raises(ValueError, match="keys of one run must differ"):
        index.store(Slot(0), [5, 6, 5])


def test_rows_have_the_fleets_length():
    index = index_of(2)
    assert index.match({16: keys_of(2)}).shape == (2,)
    index.grow(64)
    assert index.match({16: keys_of(2)}).shape == (64,)
    index.grow(8)
    assert index.match({16: keys_of(2)}).shape == (64,)


def test_approximate_nodes_take_routes_and_no_events():
    index, keys = PrefixIndex(), keys_of(10)
    index.add_node(Slot(0), block_size=16, approximate_blocks=6)
    index.add_node(Slot(1), block_size=16)
    for slot in (0, 1):
        index.record_route(Slot(slot), keys, 0.0)
    assert index.match({16: keys}).tolist() == [96, 0]
    with pytest.raises(ValueError, match="takes no events"):
        index.store(Slot(0), keys)
    other = keys[:3] + trace_keys([77, 78], keys[2])
    index.record_route(Slot(0), other, 1.0)
    assert index.match({16: keys}).tolist() == [64, 0]
    assert index.match({16: other}).tolist() == [80, 0]
    index.forget(Slot(0))
    assert index.match({16: other}).tolist() == [0, 0]


def test_the_bound_drops_old_tails_first_and_never_lies():
    index = index_of(1, entries_max=400)
    for tag in range(100):
        index.store(Slot(0), keys_of(20, tag=tag))
        assert index.stats().entries <= 400
    stats = index.stats()
    assert stats.evicted > 1000
    assert index.match({16: keys_of(20, tag=99)}).tolist() == [320]
    assert index.match({16: keys_of(20, tag=0)}).tolist() == [0]
    assert stats.blocks == {0: stats.entries}
    index.check_integrity()


def test_what_continues_a_dropped_prefix_is_refused():
    index = index_of(1, entries_max=10)
    keys = keys_of(30)
    index.store(Slot(0), keys[:20])
    assert index.match({16: keys}).tolist() == [160]
    index.store(Slot(0), keys[20:], parent=keys[19])
    assert index.match({16: keys}).tolist() == [160]
    assert index.stats().refused == 20
    assert index.stats().open_nodes == 0


def test_integrity_check_sees_a_wrong_count():
    index = index_of(1)
    index.store(Slot(0), keys_of(3))
    index._lanes.by_slot[0].blocks = 2
    with pytest.raises(IntegrityError, match="counts 2, holds 3"):
        index.check_integrity()

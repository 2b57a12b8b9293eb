import numpy as np
import pytest

from core.domain import Medium, Slot
from core.hashing import chain, root_key, token_array
from core.index import ingest as module
from core.index.events import Batch, Cleared, Removed, Stored
from core.index.ingest import NodeIngest
from core.index.prefix_index import PrefixIndex

SIZE = 4
TOKENS = token_array(list(range(100, 140)))
SLOT = Slot(0)


def keys_of(tokens=TOKENS, *, adapter="", salt="", extras=None):
    root = root_key("m", adapter=adapter, salt=salt, block_size=SIZE)
    return chain(tokens, SIZE, root, extras=extras or {})


def stored(start, stop, *, base=0, **kwargs):
    """Blocks start..stop of TOKENS, their engine hashes base + number."""
    kwargs.setdefault("parent", base + start - 1 if start else None)
    kwargs.setdefault("tokens", TOKENS[start * SIZE : stop * SIZE])
    kwargs.setdefault("block_size", SIZE)
    return Stored(hashes=list(range(base + start, base + stop)), **kwargs)


def removed(*hashes, **kwargs):
    return Removed(hashes=list(hashes), **kwargs)


class Node:
    def __init__(self, **kwargs):
        self.index = PrefixIndex()
        self.index.add_node(SLOT, block_size=SIZE)
        self.ingest = NodeIngest(self.index, SLOT, model="m", block_size=SIZE, **kwargs)

    def apply(self, *events, rank=None, limit=1000):
        batch = Batch(ts=0.0, events=list(events), rank=rank)
        calls = 1
        while not self.ingest.apply(batch, limit):
            calls += 1
        self.index.check_integrity()
        return calls

    def match(self, keys=None):
        return int(self.index.match({SIZE: keys_of() if keys is None else keys})[0]) // SIZE


def test_stored_blocks_match_and_removed_ones_do_not():
    node = Node()
    node.apply(stored(0, 6))
    assert node.match() == 6
    node.apply(removed(5), removed(4), stored(6, 7, parent=3, tokens=TOKENS[:SIZE]))
    assert node.match() == 4
    node.apply(Cleared(), Cleared())
    assert node.match() == 0
    assert node.ingest.stats().blocks == 0


def test_a_block_with_copies_goes_with_the_last_of_them():
    node = Node()
    node.apply(stored(0, 3))
    node.apply(stored(3, 4), stored(3, 4), stored(3, 4))
    assert node.ingest.stats().copies == 2
    for left in (4, 4, 3):
        node.apply(removed(3))
        assert node.match() == left
    assert node.ingest.stats().copies == 0


def test_a_report_from_the_root_adds_no_copies():
    node = Node()
    node.apply(stored(0, 5))
    node.apply(stored(0, 8))
    assert node.ingest.stats().copies == 0
    assert node.match() == 8
    node.apply(removed(7), removed(6), removed(5), removed(4))
    assert node.match() == 4


def test_engines_that_announce_once_are_taken_at_their_word():
    node = Node(counts_copies=False)
    node.apply(stored(0, 3), stored(2, 3))
    node.apply(removed(2))
    assert node.match() == 2


def test_a_run_waits_for_its_unknown_parent():
    node = Node()
    node.apply(stored(6, 8))
    node.apply(stored(3, 6))
    assert node.match() == 0
    assert node.ingest.stats().orphan_blocks == 5
    node.apply(stored(0, 3))
    assert node.match() == 8
    assert node.ingest.stats().orphan_blocks == 0


def test_a_waiting_run_is_cut_where_its_blocks_are_removed():
    node = Node()
    node.apply(stored(3, 8))
    node.apply(removed(7), removed(6))
    assert node.ingest.stats().orphan_blocks == 3
    node.apply(stored(0, 3))
    assert node.match() == 6
    assert node.ingest.stats().unknown_removed == 0


def test_waiting_runs_are_bounded_in_blocks_and_in_time(monkeypatch):
    monkeypatch.setattr(module, "ORPHAN_BLOCKS_MAX", 10)
    node = Node()
    for base in range(1000, 1100, 10):
        node.apply(stored(1, 4, base=base))
    stats = node.ingest.stats()
    assert stats.orphan_blocks <= 10
    assert stats.orphan_blocks + stats.orphans_dropped == 30
    monkeypatch.setattr(module, "ORPHAN_BATCHES_MAX", 5)
    for _ in range(6):
        node.apply(removed(1))
    assert node.ingest.stats().orphan_blocks == 0
    node.apply(stored(1, 10))
    assert node.ingest.stats().orphan_blocks == 9


def test_a_clear_drops_what_waits():
    node = Node()
    node.apply(stored(3, 6), Cleared(), stored(0, 3))
    assert node.match() == 3


def test_adapter_and_salt_make_other_keys():
    node = Node()
    node.apply(stored(0, 2), stored(0, 3, base=20, adapter="a", parent=None))
    node.apply(stored(0, 4, base=40, adapter="a", salt="t", parent=None))
    node.apply(stored(4, 5, base=40, adapter="a"))
    assert node.match() == 2
    assert node.match(keys_of(adapter="a")) == 3
    assert node.match(keys_of(adapter="a", salt="t")) == 5
    assert node.match(keys_of(salt="t")) == 0


def test_extras_belong_to_their_block_however_the_run_is_cut():
    extras = {2: b"image", 5: b"other"}
    for limit in (1, 2, 3, 100):
        node = Node()
        node.apply(stored(0, 8, extras=extras), limit=limit)
        assert node.match(keys_of(extras=extras)) == 8
        assert node.match() == 2


def test_long_batches_are_applied_in_slices():
    node = Node()
    calls = node.apply(stored(0, 10), *[removed(n) for n in range(9, 4, -1)], limit=3)
    assert calls == 5
    assert node.match() == 5


def test_a_second_batch_cannot_start_before_the_first_is_done():
    node = Node()
    first, second = (Batch(ts=0.0, events=[stored(0, 5)]) for _ in range(2))
    assert not node.ingest.apply(first, 2)
    with pytest.raises(ValueError, match="not applied to its end"):
        node.ingest.apply(second, 2)
    node.ingest.forget()
    assert node.ingest.apply(second, 100)
    assert node.match() == 5


def test_forgetting_forgets_hashes_and_blocks():
    node = Node()
    node.apply(stored(0, 5), stored(8, 9))
    node.ingest.forget()
    assert node.match() == 0
    node.apply(stored(5, 6))
    assert node.ingest.stats().blocks == 0
    assert node.ingest.stats().orphan_blocks == 1


def test_blocks_named_without_tokens_are_copies_in_another_medium():
    node = Node()
    none = np.empty(0, np.uint32)
    node.apply(stored(0, 4))
    node.apply(stored(2, 6, tokens=none, parent=None, medium=Medium.CPU))
    node.apply(removed(3), removed(2))
    assert node.match() == 4
    node.apply(removed(3, medium=Medium.CPU))
    assert node.match() == 3
    node.apply(stored(3, 4))
    assert node.match() == 4


def test_other_ranks_are_ignored():
    node = Node(rank=1)
    node.apply(stored(0, 3), rank=0)
    assert node.match() == 0
    node.apply(stored(0, 2), rank=1)
    node.apply(stored(2, 3))
    assert node.match() == 3
    assert node.ingest.stats().ignored == 1


def test_only_full_attention_groups_decide():
    node = Node()
    node.apply(
        stored(0, 4, group=0, kind="sliding_window"),
        stored(0, 3, group=1, kind="full_attention"),
        stored(0, 5, group=2, kind="full_attention"),
    )
    assert node.match() == 3
    node.apply(removed(3, group=0), removed(2, group=2))
    assert node.match() == 3
    node.apply(removed(2, group=1))
    assert node.match() == 2


def test_without_kinds_group_0_decides():
    node = Node()
    node.apply(stored(0, 4), stored(0, 6, group=1))
    node.apply(removed(3, group=1))
    assert node.match() == 4


def test_another_block_size_is_reported_and_not_applied():
    node = Node()
    assert node.ingest.block_size_seen is None
    node.apply(stored(0, 2, block_size=8, tokens=TOKENS[:16]))
    assert node.ingest.block_size_seen == 8
    assert node.match() == 0


def test_a_node_cannot_claim_more_than_its_bound():
    node = Node(blocks_max=5)
    node.apply(stored(0, 4))
    node.apply(stored(4, 8))
    assert node.match() == 4
    assert node.ingest.stats().refused == 4
    node.apply(removed(3), stored(3, 4))
    assert node.match() == 4


def test_a_hash_that_changes_its_meaning_moves_the_block():
    node = Node()
    node.apply(stored(0, 3))
    node.apply(stored(2, 3, tokens=TOKENS[:SIZE]))
    assert node.match() == 2
    assert node.index.stats().blocks[SLOT] == 3


def test_keys_of_engine_blocks_can_be_asked():
    node = Node()
    node.apply(stored(0, 2))
    assert node.ingest.key_of(1) == keys_of()[1]
    assert node.ingest.key_of(77) is None

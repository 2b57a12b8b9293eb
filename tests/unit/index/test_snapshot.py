import random

import msgspec
import pytest

from core.domain import Medium, NodeId, Slot
from core.errors import MalformedFrame
from core.hashing import chain, root_key, token_array
from core.index.events import Batch, Removed, Stored
from core.index.ingest import NodeIngest
from core.index.prefix_index import PrefixIndex
from core.index.snapshot import Mark, dump, dump_slices, load, restore, restore_slices

SIZE = 4
MARK = Mark(node=NodeId("n1"), epoch="2026-01-01", applied=41, digest=99)


def make(slot=0, *, model="m", others=True):
    index = PrefixIndex()
    index.add_node(Slot(slot), block_size=SIZE)
    if others:
        index.add_node(Slot(slot + 1), block_size=SIZE)
    return index, NodeIngest(index, Slot(slot), model=model, block_size=SIZE)


def apply(ingest, *events):
    batch = Batch(ts=0.0, events=list(events))
    while not ingest.apply(batch, 10_000):
        pass


def stored(hashes, parent, tokens, **kwargs):
    return Stored(
        hashes=hashes, parent=parent, tokens=token_array(tokens), block_size=SIZE, **kwargs
    )


def filled(seed):
    """A node with branches, adapters, copies, a lower medium, and a gap."""
    rng = random.Random(seed)
    index, ingest = make()
    known = []
    for base in range(0, 2000, 20):
        parent, adapter = rng.choice([(None, ""), (None, "a"), *known]) if known else (None, "")
        count = rng.randrange(1, 15)
        hashes = list(range(base, base + count))
        tokens = [rng.randrange(50) for _ in range(SIZE * count)]
        apply(ingest, stored(hashes, parent, tokens, adapter=adapter))
        known.extend((h, adapter) for h in hashes)
        index.store(Slot(1), [ingest.key_of(hashes[0])], parent=None, root=5)
    some = [h for h, _ in known if rng.random() < 0.1]
    apply(ingest, stored(some, None, [], medium=Medium.CPU))
    apply(ingest, Removed(hashes=[h for h, _ in known if rng.random() < 0.05]))
    last = known[-1][0]
    if ingest.key_of(last) is not None:
        apply(ingest, stored([last], last - 1 if last % 20 else None, [1] * SIZE))
    return index, ingest


@pytest.mark.parametrize("seed", range(6))
def test_a_restored_node_is_the_same(seed):
    index, ingest = filled(seed)
    snapshot = load(dump(index, Slot(0), ingest, MARK))
    again, ingest_again = make(slot=5)
    assert restore(snapshot, again, Slot(5), ingest_again)
    again.check_integrity()
    assert again.stats().blocks[5] == index.stats().blocks[0]
    assert again.stats().orphans == index.stats().orphans
    assert again.stats().lower_tier == index.stats().lower_tier
    assert ingest_again.stats().blocks == ingest.stats().blocks
    assert ingest_again.stats().copies == ingest.stats().copies
    for _, _, keys in index.runs(Slot(0)):
        for key in keys:
            assert again.holds(Slot(5), key)
    assert (snapshot.node, snapshot.epoch) == ("n1", "2026-01-01")
    assert (snapshot.applied, snapshot.digest) == (41, 99)


def test_events_go_on_after_a_restore():
    index, ingest = make()
    tokens = list(range(SIZE * 6))
    apply(ingest, stored([10, 11, 12], None, tokens[:12]), stored([12], 11, tokens[8:12]))
    again, ingest_again = make()
    restore(load(dump(index, Slot(0), ingest, MARK)), again, Slot(0), ingest_again)
    keys = chain(token_array(tokens), SIZE, root_key("m", block_size=SIZE))
    apply(ingest_again, Removed(hashes=[12]), stored([13], 12, tokens[12:16]))
    assert again.match({SIZE: keys})[0] == 4 * SIZE
    apply(ingest_again, Removed(hashes=[13]), Removed(hashes=[12]))
    assert again.match({SIZE: keys})[0] == 2 * SIZE


def test_a_snapshot_of_another_model_or_block_size_is_not_taken():
    index, ingest = filled(0)
    snapshot = load(dump(index, Slot(0), ingest, MARK))
    other, other_ingest = make(model="m2")
    assert not restore(snapshot, other, Slot(0), other_ingest)
    assert other.stats().entries == 0


def test_both_directions_pause():
    index, ingest = make()
    for i in range(40):
        apply(ingest, stored(list(range(i * 500, i * 500 + 500)), None, [i] * 4 + [7] * 1996))
    assert sum(1 for _ in dump_slices(index, Slot(0), ingest, MARK)) >= 4
    again, ingest_again = make()
    snapshot = load(dump(index, Slot(0), ingest, MARK))
    assert sum(1 for _ in restore_slices(snapshot, again, Slot(0), ingest_again)) >= 40
    assert again.stats().blocks[0] == 20_000


@pytest.mark.parametrize(
    "data", [b"", b"\x90", b"\x91" * 100_000, msgspec.msgpack.encode({"version": 1})]
)
def test_what_is_no_snapshot_is_refused(data):
    with pytest.raises(MalformedFrame, match="snapshot"):
        load(data)


def test_damaged_snapshots_are_refused():
    index, ingest = filled(1)
    good = msgspec.msgpack.decode(dump(index, Slot(0), ingest, MARK))
    for change in ({"version": 2}, {"held": [["gpu", [1], [], []]]}, {"runs": [[1, True, ["x"]]]}):
        with pytest.raises(MalformedFrame, match="snapshot"):
            load(msgspec.msgpack.encode({**good, **change}))

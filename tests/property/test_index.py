"""The index against its naive twin and against an oracle written from the definition."""

import random
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from core.domain import Medium, Slot
from core.hashing import root_key, trace_keys
from core.index.naive import NaiveIndex
from core.index.prefix_index import PrefixIndex

SIZES = (16, 32)
ROOTS = {size: [root_key(f"model-{i}", block_size=size) for i in range(2)] for size in SIZES}


@dataclass
class Prompts:
    """A few prompts that branch off one another, as chains of keys for each block size."""

    chains: dict[int, list[tuple[int, list[int]]]] = field(default_factory=dict)

    @classmethod
    def make(cls, rng):
        ids = [[rng.randrange(4) for _ in range(rng.randrange(1, 14))] for _ in range(6)]
        for i in range(1, len(ids)):
            if rng.random() < 0.6:
                base = rng.choice(ids[:i])
                ids[i] = base[: rng.randrange(len(base) + 1)] + ids[i]
        return cls(
            {s: [(r, trace_keys(chain, r)) for chain in ids for r in ROOTS[s]] for s in SIZES}
        )


class Oracle:
    """Sets of (slot, key, medium), and match by its definition."""

    def __init__(self):
        self.size = {}
        self.held = set()

    def match(self, keys, slots):
        row = np.zeros(slots, np.int64)
        for slot, size in self.size.items():
            chain = keys.get(size, [])
            has = [any((slot, k, m) in self.held for m in Medium) for k in chain]
            row[slot] = size * (has.index(False) if False in has else len(has))
        return row

    def drop(self, slot):
        self.held = {x for x in self.held if x[0] != slot}


class World:
    """Applies the same random steps to index, twin and oracle."""

    def __init__(self, seed, *, ordered=False, slots=6):
        self.rng = random.Random(seed)
        self.prompts = Prompts.make(self.rng)
        self.index, self.twin, self.oracle = PrefixIndex(), NaiveIndex(), Oracle()
        self.slots = slots
        self.ordered = ordered
        for slot in range(slots):
            self.add(slot)

    def both(self, name, *args, **kwargs):
        getattr(self.index, name)(*args, **kwargs)
        getattr(self.twin, name)(*args, **kwargs)

    def add(self, slot):
        size = self.rng.choice(SIZES)
        self.both("add_node", Slot(slot), block_size=size)
        self.oracle.size[slot] = size

    def chain(self, slot):
        return self.rng.choice(self.prompts.chains[self.oracle.size[slot]])

    def step(self):
        rng = self.rng
        slot = rng.randrange(self.slots)
        if slot not in self.oracle.size:
            self.add(slot)
            return
        act = rng.choices(
            ["store", "remove", "scatter", "clear", "forget", "leave", "sweep"],
            [12, 6, 0 if self.ordered else 3, 0.4, 0.4, 0.4, 2],
        )[0]
        getattr(self, "do_" + act)(slot)

    def do_store(self, slot):
        root, chain = self.chain(slot)
        medium = self.rng.choices(list(Medium), [6, 1, 1])[0]
        start = 0 if self.ordered else self.rng.choice([0, 0, self.rng.randrange(len(chain))])
        keys = chain[start : self.rng.randrange(start, len(chain)) + 1]
        parent = chain[start - 1] if start else None
        for _ in range(self.rng.choice([1, 1, 2])):
            self.both("store", Slot(slot), keys, medium=medium, parent=parent, root=root)
        self.oracle.held.update((slot, k, medium) for k in keys)

    def do_remove(self, slot):
        """A tail of the chain, from the tail; in disordered worlds in any order."""
        _, chain = self.chain(slot)
        if self.ordered:
            held = {k for s, k, _ in self.oracle.held if s == slot}
            pairs = [p for _, c in self.prompts.chains[self.oracle.size[slot]] for p in pairwise(c)]
            keys = []
            for key in reversed(chain):
                if any(up == key and down in held for up, down in pairs):
                    break
                if key in held:
                    held.discard(key)
                    keys.append(key)
            keys = keys[: self.rng.randrange(len(keys) + 1)]
            media = list(Medium)
        else:
            start = self.rng.randrange(len(chain))
            keys = chain[start : self.rng.randrange(start, len(chain)) + 1]
            self.rng.choice([list.reverse, self.rng.shuffle, lambda _: None])(keys)
            media = [self.rng.choices(list(Medium), [6, 1, 1])[0]]
        for medium in media:
            self.both("remove", Slot(slot), keys, medium=medium)
            self.oracle.held.difference_update((slot, k, medium) for k in keys)

    def do_scatter(self, slot):
        """Single keys in random order, as after lost and reordered events."""
        root, chain = self.chain(slot)
        for i in self.rng.sample(range(len(chain)), self.rng.randrange(len(chain) + 1)):
            parent = chain[i - 1] if i else None
            self.both("store", Slot(slot), [chain[i]], parent=parent, root=root)
            self.oracle.held.add((slot, chain[i], Medium.GPU))

    def do_clear(self, slot):
        self.both("clear", Slot(slot))
        self.oracle.drop(slot)

    def do_forget(self, slot):
        self.both("forget", Slot(slot))
        self.oracle.drop(slot)

    def do_leave(self, slot):
        self.both("remove_node", Slot(slot))
        del self.oracle.size[slot]
        self.oracle.drop(slot)
        if self.rng.random() < 0.7:
            self.add(slot)

    def do_sweep(self, slot):
        self.index.sweep(self.rng.choice([1, 3, 1000]))

    def check(self):
        for i in range(len(self.prompts.chains[SIZES[0]])):
            keys = {s: self.prompts.chains[s][i][1] for s in SIZES}
            want = self.oracle.match(keys, self.slots)
            got = self.index.match(keys)
            assert got.tolist() == want.tolist() == self.twin.match(keys).tolist()
            assert self.index.match_few(keys) == want.tolist()
            assert got.dtype == np.int64
            assert all(0 <= t <= s * len(keys[s]) for t, s in zip(got, [32] * 6, strict=True))
            for key in keys[16]:
                assert self.index.holders(key) == self.twin.holders(key)


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_index_equals_twin_equals_oracle_in_any_state(seed, steps):
    world = World(seed)
    for _ in range(steps):
        world.step()
        world.check()
    world.index.check_integrity()


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 80))
@settings(max_examples=40, deadline=None)
def test_in_prefix_closed_states_every_node_is_galloped(seed, steps):
    world = World(seed, ordered=True)
    for _ in range(steps):
        world.step()
        assert world.index.stats().open_nodes == 0
    world.check()
    world.index.check_integrity()


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_sweeping_leaves_no_trace_of_what_vanished(seed, steps):
    world = World(seed)
    for _ in range(steps):
        world.step()
    for slot in list(world.oracle.size):
        world.both("remove_node", Slot(slot))
    while world.index.sweep(3):
        pass
    stats = world.index.stats()
    assert stats.entries == stats.unswept_lanes == stats.lower_tier == 0
    world.index.check_integrity()


@given(seed=st.integers(0, 2**32), capacity=st.integers(1, 20), routes=st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_routing_history_equals_its_twin(seed, capacity, routes):
    rng = random.Random(seed)
    prompts = Prompts.make(rng)
    index, twin = PrefixIndex(), NaiveIndex()
    for each in (index, twin):
        each.add_node(Slot(0), block_size=16, approximate_blocks=capacity)
        each.add_node(Slot(1), block_size=16, approximate_blocks=capacity + 3)
    for now in range(routes):
        root, chain = rng.choice(prompts.chains[16])
        slot = Slot(rng.randrange(2))
        for each in (index, twin):
            each.record_route(slot, chain, float(now), root=root)
        for _, other in prompts.chains[16]:
            assert index.match({16: other}).tolist() == twin.match({16: other}).tolist()
    assert index.stats().open_nodes == 0
    assert max(index.stats().blocks.values()) <= capacity + 3
    index.check_integrity()


@given(seed=st.integers(0, 2**32), bound=st.integers(1, 60), steps=st.integers(1, 80))
@settings(max_examples=40, deadline=None)
def test_a_full_index_knows_a_subset_and_never_too_much(seed, bound, steps):
    world = World(seed)
    world.index = PrefixIndex(entries_max=bound)
    for slot, size in world.oracle.size.items():
        world.index.add_node(Slot(slot), block_size=size)
    for _ in range(steps):
        world.step()
        assert world.index.stats().entries <= bound
        for i in range(len(world.prompts.chains[16])):
            keys = {s: world.prompts.chains[s][i][1] for s in SIZES}
            assert (world.index.match(keys) <= world.oracle.match(keys, world.slots)).all()
    world.index.check_integrity()

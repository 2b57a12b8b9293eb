from collections import OrderedDict

from hypothesis import given, settings
from hypothesis import strategies as st

from core.domain import Medium
from core.simulation.kv_cache import KvCache


class Ear:
    """Rebuilds the holdings from what a listener hears."""

    def __init__(self):
        self.held = {medium: set() for medium in Medium}

    def stored(self, keys, medium, parent):
        self.held[medium] |= set(keys)
        if medium is Medium.GPU and parent is not None:
            assert parent in self.held[Medium.GPU] | self.held[Medium.CPU]

    def removed(self, keys, medium):
        assert set(keys) <= self.held[medium]
        self.held[medium] -= set(keys)


class NaiveCache:
    """Least recently used, one block after the other, deepest first within an access."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.order = OrderedDict()

    def insert(self, keys):
        for key in reversed(keys[: self.capacity]):
            self.order[key] = None
            self.order.move_to_end(key)
        while len(self.order) > self.capacity:
            self.order.popitem(last=False)


def chain(path):
    """Keys of a path in a tree of prompts: equal prefixes, equal keys."""
    return [hash(tuple(path[: i + 1])) for i in range(len(path))]


def on_gpu(cache):
    """The blocks it holds there; its runs are disjoint and listed alike in both tables."""
    held = [key for run in cache.order for key in run]
    assert {run[0]: run for run in cache.order} == cache.runs
    assert len(set(held)) == len(held) == cache.blocks
    return set(held)


paths = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=7).map(chain), min_size=1, max_size=40
)


@settings(max_examples=200, deadline=None)
@given(paths, st.integers(1, 12))
def test_equals_a_plain_lru_and_tells_the_truth(chains, capacity):
    ear = Ear()
    real, naive = KvCache(capacity, ear), NaiveCache(capacity)
    for keys in chains:
        real.insert(keys)
        naive.insert(keys)
        assert on_gpu(real) == set(naive.order) == ear.held[Medium.GPU]
        for other in chains:
            depth = real.match(other)
            assert all(key in naive.order for key in other[:depth])
            assert not any(key in naive.order for key in other[depth:])  # prefix-closed


@settings(max_examples=100, deadline=None)
@given(paths, st.integers(1, 6), st.integers(1, 8))
def test_a_host_tier_keeps_what_the_gpu_evicts(chains, capacity, host):
    ear = Ear()
    cache = KvCache(capacity, ear, host_capacity=host)
    for keys in chains:
        cache.insert(keys)
        assert on_gpu(cache) == ear.held[Medium.GPU]
        assert set(cache.host) == ear.held[Medium.CPU]
        assert len(on_gpu(cache)) <= capacity
        assert len(cache.host) <= host
        assert not on_gpu(cache) & set(cache.host)


def test_reserved_blocks_shrink_the_cache():
    cache = KvCache(10, Ear())
    cache.insert(chain([1] * 8))
    cache.reserve(5)
    assert len(on_gpu(cache)) == 5
    assert cache.match(chain([1] * 8)) == 5
    cache.reserve(-5)
    cache.insert(chain([1] * 8))
    assert cache.match(chain([1] * 8)) == 8

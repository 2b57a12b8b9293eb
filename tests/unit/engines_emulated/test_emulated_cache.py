"""The block pool: reuse, eviction order, physical copies, clearing."""

import random

import pytest

from core.engines.emulated.cache import BlockPool, OutOfBlocks
from core.engines.emulated.events import AllBlocksCleared, BlockRemoved


def pool_of(usable: int) -> BlockPool:
    return BlockPool(usable + 1, block_size=4)


def removed(pool: BlockPool) -> list[int]:
    return [e.block_hashes[0] for e in pool.take_events() if isinstance(e, BlockRemoved)]


def store(pool: BlockPool, hashes: list[int]) -> list[int]:
    blocks = pool.allocate(len(hashes))
    pool.register(blocks, hashes)
    return blocks


def test_one_block_is_reserved():
    pool = pool_of(3)
    assert pool.free_blocks == 3
    assert 0 not in pool.allocate(3)
    assert pool.usage == 1.0
    with pytest.raises(ValueError, match="blocks must be at least 2"):
        BlockPool(1, block_size=4)


def test_released_blocks_stay_reusable_and_do_not_count_as_used():
    pool = pool_of(4)
    blocks = store(pool, [1, 2, 3])
    pool.release(blocks)
    assert pool.usage == 0.0
    assert pool.match([1, 2, 3, 4], 9) == blocks
    assert pool.match([1, 2, 3], 2) == blocks[:2]
    assert pool.match([2, 3], 9) == blocks[1:]
    assert pool.match([9, 1], 9) == []


def test_tails_are_reused_before_heads_and_oldest_sequences_first():
    pool = pool_of(4)
    first = store(pool, [1, 2])
    second = store(pool, [11, 12])
    pool.release(first)
    pool.release(second)
    pool.allocate(1)
    assert removed(pool) == [2]
    pool.allocate(2)
    assert removed(pool) == [1, 12]
    assert pool.match([11, 12], 9) == second[:1]


def test_touch_protects_from_eviction_and_keeps_count():
    pool = pool_of(3)
    blocks = store(pool, [1, 2])
    pool.release(blocks)
    assert pool.unreferenced(blocks) == 2
    pool.touch(blocks)
    pool.touch(blocks)
    pool.release(blocks)
    assert pool.free_blocks == 1
    with pytest.raises(OutOfBlocks):
        pool.allocate(2)
    assert pool.free_blocks == 1, "a refused allocation takes nothing"
    pool.check_integrity()


def test_every_physical_copy_is_announced_when_it_goes():
    pool = pool_of(3)
    copies = [store(pool, [7]) for _ in range(3)]
    for blocks in copies:
        pool.release(blocks)
    assert pool.cached_blocks == 1
    pool.allocate(1)
    assert removed(pool) == [7]
    assert pool.match([7], 1) == copies[1], "another copy serves on"
    pool.check_integrity()
    pool.allocate(2)
    assert removed(pool) == [7, 7]
    assert pool.cached_blocks == 0


def test_reset_needs_an_idle_pool_and_is_announced_once():
    pool = pool_of(3)
    blocks = store(pool, [1, 2])
    assert not pool.reset()
    assert pool.take_events() == []
    pool.release(blocks)
    assert pool.reset()
    assert pool.take_events() == [AllBlocksCleared()]
    assert pool.match([1, 2], 9) == []
    pool.allocate(3)
    assert removed(pool) == [], "cleared content is not removed again"


def test_silent_clear_tells_nobody():
    pool = pool_of(3)
    blocks = store(pool, [1, 2])
    pool.clear_silently()
    assert pool.take_events() == []
    assert pool.match([1], 1) == []
    pool.release(blocks)
    pool.check_integrity()


def test_reading_shows_what_a_block_number_holds_now():
    pool = pool_of(2)
    blocks = store(pool, [1, 2])
    pool.write(blocks[1], 99)
    assert pool.read([*blocks, 0, 77]) == [1, 99, 0, 0]
    pool.release(blocks)
    assert pool.read(blocks) == [1, 99], "until something else is written"
    store(pool, [5])
    assert pool.read([blocks[1]]) == [5]


def test_random_use_keeps_the_tables_consistent():
    rng = random.Random(4)
    pool = pool_of(12)
    live: list[list[int]] = []
    for _ in range(2000):
        if live and (rng.random() < 0.5 or pool.free_blocks < 4):
            pool.release(live.pop(rng.randrange(len(live))))
        else:
            hashes = [rng.randrange(3), *(100 * rng.randrange(3) + i for i in range(3))]
            found = pool.match(hashes, 3)
            if pool.unreferenced(found) + 4 - len(found) > pool.free_blocks:
                continue
            pool.touch(found)
            fresh = pool.allocate(4 - len(found))
            pool.register(fresh, hashes[len(found) :])
            live.append(found + fresh)
        pool.check_integrity()
    used = {block for blocks in live for block in blocks}
    assert pool.used_blocks == len(used)

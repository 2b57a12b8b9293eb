import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import BadRequest
from core.hashing import chain, root_key, token_array, trace_keys

TOKENS = np.arange(100, dtype=np.uint32)


def test_only_whole_blocks_have_keys():
    root = root_key("m", block_size=16)
    assert len(chain(TOKENS, 16, root)) == 6
    assert chain(TOKENS[:15], 16, root) == []
    assert chain(TOKENS[:0], 16, root) == []


def test_keys_are_stable_across_processes_and_versions():
    root = root_key("m", block_size=16)
    assert root == 0x1DA5E3C3F08A1D50
    assert chain(TOKENS[:32], 16, 7) == [0x45F2A4B394C90632, 0xB6571FB59E39B0BF]


@given(
    tokens=st.lists(st.integers(0, 2**32 - 1), max_size=120),
    size=st.integers(1, 17),
    cut=st.integers(0, 12),
)
def test_continuing_equals_hashing_the_whole(tokens, size, cut):
    array = token_array(tokens)
    root = root_key("m", block_size=size)
    whole = chain(array, size, root)
    cut = min(cut, len(whole))
    head = whole[:cut]
    assert head + chain(array[cut * size :], size, head[-1] if head else root) == whole


def test_everything_that_separates_caches_changes_the_root():
    roots = {
        root_key("m", block_size=16),
        root_key("m2", block_size=16),
        root_key("m", block_size=32),
        root_key("m", adapter="a", block_size=16),
        root_key("m", salt="a", block_size=16),
        root_key("ma", block_size=16),
        root_key("m", adapter="as", block_size=16),
        root_key("m", adapter="a", salt="s", block_size=16),
    }
    assert len(roots) == 8


def test_a_changed_token_changes_its_block_and_all_after_it():
    root = root_key("m", block_size=10)
    other = TOKENS.copy()
    other[35] = 7
    before, after = chain(TOKENS, 10, root), chain(other, 10, root)
    assert before[:3] == after[:3]
    assert not set(before[3:]) & set(after[3:])


def test_extras_change_their_block_and_all_after_it():
    root = root_key("m", block_size=10)
    plain = chain(TOKENS, 10, root)
    first, second = (chain(TOKENS, 10, root, extras={4: x}) for x in (b"image-1", b"image-2"))
    assert plain[:4] == first[:4] == second[:4]
    assert len({plain[4], first[4], second[4]}) == 3
    assert len({plain[9], first[9], second[9]}) == 3


def test_token_width_and_layout_do_not_matter():
    wide = np.arange(200, dtype=np.int64)[::2] // 2
    assert chain(token_array(wide), 16, 3) == chain(TOKENS, 16, 3)


def test_trace_keys_chain_their_ids():
    whole = trace_keys([5, 6, 7], 9)
    assert whole[:2] == trace_keys([5, 6], 9)
    assert whole[2] != trace_keys([6, 5, 7], 9)[2]
    assert trace_keys([], 9) == []
    assert trace_keys([2**64 - 1], 9) != trace_keys([0], 9)


@pytest.mark.parametrize(
    "ids",
    [
        [-1],
        [2**32],
        [1.5],
        ["1"],
        [True, 5],
        [None],
        np.array([-1]),
        np.array([2**32]),
        np.array([1.0]),
        np.array([[1]]),
        np.array([True]),
    ],
)
def test_what_is_no_token_id_is_refused_by_name(ids):
    with pytest.raises(BadRequest, match="token ids must be") as error:
        token_array(ids, field="prompt[0]")
    assert error.value.field == "prompt[0]"


def test_token_array_keeps_values():
    assert token_array([0, 1, 2**32 - 1]).tolist() == [0, 1, 2**32 - 1]
    assert token_array([]).size == 0
    assert token_array((3, 4)).dtype == np.uint32

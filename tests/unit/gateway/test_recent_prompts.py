"""The bounded memory of recent prompts."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from core.gateway.moves.recent import KnownPrompt, RecentPrompts
from core.hashing import chain, root_key

ROOT = root_key("m", block_size=4)


def known(tokens: list[int]) -> KnownPrompt:
    array = np.array(tokens, np.uint32)
    return KnownPrompt(
        served="m", base="m", adapter="", salt="", tokens=array, keys={4: chain(array, 4, ROOT)}
    )


def test_a_prefix_is_found_by_its_key_and_depth():
    recent = RecentPrompts(10_000)
    prompt = known(list(range(1, 19)))
    recent.add(prompt)
    key = prompt.keys[4][2]
    found = recent.find(key, 3)
    assert found is not None and found.tokens.tolist() == list(range(1, 13))
    assert list(found.keys) == prompt.keys[4][:3]
    assert recent.find(key, 2) is None
    assert recent.search(key) == found
    assert recent.search(12345) is None


def test_the_newest_prompts_stay_and_the_bound_holds():
    recent = RecentPrompts(3 * known(list(range(16))).nbytes)
    prompts = [known(list(range(n, n + 16))) for n in range(5)]
    for prompt in prompts:
        recent.add(prompt)
    assert len(recent) == 3 and recent.dropped == 2
    assert recent.nbytes <= recent.bytes_max
    assert recent.search(prompts[0].keys[4][0]) is None
    assert recent.search(prompts[4].keys[4][3]) is not None


def test_a_prompt_larger_than_the_memory_is_left_out():
    recent = RecentPrompts(100)
    recent.add(known(list(range(64))))
    assert len(recent) == 0 and recent.nbytes == 0 and recent.dropped == 1


def test_clearing_forgets_everything():
    recent = RecentPrompts(10_000)
    recent.add(known(list(range(8))))
    recent.clear()
    assert len(recent) == 0 and recent.nbytes == 0


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=20), max_size=12),
    st.integers(50, 2000),
)
def test_whatever_is_remembered_is_right_and_within_the_bound(prompts, bytes_max):
    recent = RecentPrompts(bytes_max)
    for tokens in prompts:
        recent.add(known(tokens))
        assert recent.nbytes <= bytes_max
    for tokens in prompts:
        prompt = known(tokens)
        for depth, key in enumerate(prompt.keys[4], 1):
            found = recent.find(key, depth)
            if found is not None:
                assert found.tokens.tolist() == tokens[: depth * 4]
                assert recent.search(key) is not None

"""The board of prompts under way against a naive look at all of them."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from core.hashing import chain, root_key
from core.index.coming import LINGER_S, Coming
from core.index.heat import depths_of

ROOT = root_key("m", block_size=1)
prompts = st.lists(st.integers(0, 2), min_size=0, max_size=40)


def keys_of(tokens: list[int]) -> list[int]:
    return chain(np.array(tokens, np.uint32), 1, ROOT)


def shared(a: list[int], b: list[int]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


class Board(RuleBasedStateMachine):
    """Random lives of prompts on four nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.board = Coming()
        self.open: dict[int, tuple[int, int, list[int], int]] = {}
        self.generation = [1, 1, 1, 1]
        self.serial = 0

    @rule(slot=st.integers(0, 3), tokens=prompts, held=st.integers(0, 6))
    def begin(self, slot: int, tokens: list[int], held: int) -> None:
        if not tokens:
            return
        self.serial += 1
        self.board.begin(
            self.serial, slot=slot, generation=self.generation[slot], keys=keys_of(tokens),
            block_size=1, held_blocks=held,
        )  # fmt: skip
        if held < len(tokens):
            self.open[self.serial] = (slot, self.generation[slot], tokens, held)

    @rule(pick=st.integers(0, 100))
    def end(self, pick: int) -> None:
        if self.open:
            name = list(self.open)[pick % len(self.open)]
            self.board.end(name)
            self.board.end(name)
            del self.open[name]

    @rule(slot=st.integers(0, 3))
    def restart(self, slot: int) -> None:
        self.generation[slot] += 1

    @rule(tokens=prompts)
    def ask(self, tokens: list[int]) -> None:
        found = self.board.find({1: keys_of(tokens)}, self.generation)
        for slot in range(4):
            best = 0
            sampled = 0
            for at, generation, other, held in self.open.values():
                if at == slot and generation == self.generation[slot]:
                    common = shared(tokens, other)
                    best = max(best, common)
                    points = [d for d in depths_of(len(other)) if held < d <= common]
                    both = set(points) & set(depths_of(len(tokens)) if tokens else ())
                    sampled = max([sampled, *both])
            assert sampled <= found.get(slot, 0) <= best

    @invariant()
    def sound(self) -> None:
        self.board.check_integrity()
        assert len(self.board) == len(self.open)


TestBoard = Board.TestCase
TestBoard.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.lists(st.floats(0, 100), max_size=20))
@settings(deadline=None)
def test_what_is_done_lingers_and_then_goes(times):
    board = Coming()
    for name, at in enumerate(sorted(times)):
        board.begin(
            name, slot=0, generation=1, keys=keys_of([1, 2, name]), block_size=1, held_blocks=0
        )
        board.done(name, at)
    for at in sorted(times):
        board.sweep(at + LINGER_S / 2)
        assert len(board) >= sum(1 for t in times if t > at)
    board.sweep(101 + LINGER_S)
    assert len(board) == 0
    board.check_integrity()


def test_the_end_of_what_is_shared_is_found_between_the_sampled_depths():
    board = Coming()
    board.begin(
        1, slot=2, generation=1, keys=keys_of([1] * 37 + [2] * 20), block_size=1, held_blocks=0
    )
    found = board.find({1: keys_of([1] * 37 + [3] * 90)}, [1, 1, 1])
    assert found == {2: 37}


def test_a_prompt_that_its_node_holds_whole_is_not_entered():
    board = Coming()
    board.begin(1, slot=0, generation=1, keys=keys_of([1, 2, 3]), block_size=1, held_blocks=3)
    assert len(board) == 0 and board.find({1: keys_of([1, 2, 3])}, [1]) == {}


def test_the_number_of_prompts_is_bounded():
    board = Coming(prompts_max=2)
    for name in range(5):
        board.begin(
            name, slot=0, generation=1, keys=keys_of([name, 2]), block_size=1, held_blocks=0
        )
    assert len(board) == 2 and board.left_out == 3
    board.end(4)
    board.end(0)
    board.check_integrity()
    assert len(board) == 1

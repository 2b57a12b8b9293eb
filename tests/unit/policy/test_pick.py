"""The draw among equal totals."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from core.clock import seeded
from core.errors import IntegrityError
from core.policy import pick

NAN = float("nan")


def test_takes_the_best_in_the_direction_of_the_sense() -> None:
    values = np.array([2.0, 1.0, 3.0])
    assert pick(values, "min", seeded(0)) == (1, 1)
    assert pick(values, "max", seeded(0)) == (2, 1)


def test_ties_spread_over_all_tied_rows() -> None:
    values = np.array([1.0, 5.0, 1.0, 1.0, 5.0])
    rng = seeded(7)
    picks = Counter(pick(values, "min", rng)[0] for _ in range(3000))
    assert set(picks) == {0, 2, 3}
    assert min(picks.values()) > 800
    assert pick(values, "min", rng)[1] == 3
    firsts = {pick(values, "min", seeded(seed))[0] for seed in range(40)}
    assert firsts == {0, 2, 3}


def test_the_same_seed_gives_the_same_picks() -> None:
    values = np.zeros(8)
    a, b = seeded(3), seeded(3)
    assert [pick(values, "min", a) for _ in range(50)] == [
        pick(values, "min", b) for _ in range(50)
    ]


def test_no_draw_is_used_up_where_one_row_wins() -> None:
    rng = seeded(3)
    before = rng.getstate()
    pick(np.array([1.0, 2.0]), "min", rng)
    assert rng.getstate() == before


@pytest.mark.parametrize("sense", ["min", "max"])
def test_rounding_does_not_break_a_tie(sense: str) -> None:
    values = np.array([0.1 + 0.2, 0.3, 0.3 + 1e-17])
    assert pick(values, sense, seeded(0))[1] == 3
    assert pick(-values, sense, seeded(0))[1] == 3
    apart = np.array([1.0, 1.0 + 1e-9])
    assert pick(apart, sense, seeded(0))[1] == 1


@pytest.mark.parametrize("sense", ["min", "max"])
def test_what_is_not_a_number_never_wins(sense: str) -> None:
    for seed in range(10):
        assert pick(np.array([NAN, 4.0, NAN, 4.0]), sense, seeded(seed))[0] in (1, 3)
        assert pick(np.array([NAN, 4.0]), sense, seeded(seed)) == (1, 1)


def test_no_number_at_all_is_an_error() -> None:
    with pytest.raises(IntegrityError, match="none of 2 totals"):
        pick(np.array([NAN, NAN]), "min", seeded(0))


@pytest.mark.parametrize("edge", [np.inf, -np.inf])
@pytest.mark.parametrize("sense", ["min", "max"])
def test_infinite_totals_compare_like_others(sense: str, edge: float) -> None:
    values = np.array([edge, 1.0, edge])
    wins = (edge < 0) == (sense == "min")
    row, tied = pick(values, sense, seeded(1))
    assert (row in (0, 2), tied) == (True, 2) if wins else (row, tied) == (1, 1)
    assert pick(np.array([edge, edge]), sense, seeded(0))[1] == 2

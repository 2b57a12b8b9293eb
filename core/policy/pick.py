"""The best total, and a seeded draw among equals: position never decides."""

from __future__ import annotations

import math
from random import Random
from typing import Literal

from core.errors import IntegrityError
from core.policy.base import Totals

_FEW = 64
"""Up to this many rows a list is quicker than an array."""
TIE_RELATIVE = 1e-12
"""Totals this close, relative to the best, are equal: they differ by rounding alone."""


def pick(total: Totals, sense: Literal["min", "max"], rng: Random) -> tuple[int, int]:
    """(row of the winner, how many rows tied for it) of totals of shape (k,), k >= 1.

    A total that is not a number never wins; IntegrityError when no total is a number.
    """
    if isinstance(total, list):
        return _pick_few(total, sense, rng)
    if len(total) <= _FEW:
        return _pick_few(total.tolist(), sense, rng)
    row = int(total.argmin() if sense == "min" else total.argmax())
    best = float(total[row])
    if best != best:  # argmin and argmax stop at the first NaN
        best = _best_number(total.tolist(), sense)
    margin = _margin(best)
    near = total <= best + margin if sense == "min" else total >= best - margin
    rows = near.nonzero()[0]
    tied = len(rows)
    return (int(rows[0]) if tied == 1 else int(rows[rng.randrange(tied)])), tied


def _pick_few(values: list[float], sense: Literal["min", "max"], rng: Random) -> tuple[int, int]:
    """The same over a list: for few rows quicker than array operations."""
    costs = values if sense == "min" else [-value for value in values]
    row, best, second = _least_two(costs)
    most = best + _margin(best)
    if second > most:
        return row, 1
    rows = [row for row, cost in enumerate(costs) if cost <= most]
    if not rows:
        raise _no_number(values)
    return (rows[0] if len(rows) == 1 else rng.choice(rows)), len(rows)


def _least_two(values: list[float]) -> tuple[int, float, float]:
    """The row of the least number, that number, and the next; infinite where there is none.

    One loop is quicker than calls of `min` and the like, which cost as much as fifty steps of it.
    """
    best = second = math.inf
    row = at = -1
    for value in values:
        at += 1
        if value < best:
            best, second, row = value, best, at
        elif value < second:
            second = value
    return row, best, second


def _margin(best: float) -> float:
    return abs(best) * TIE_RELATIVE if math.isfinite(best) else 0.0


def _best_number(values: list[float], sense: Literal["min", "max"]) -> float:
    numbers = [v for v in values if v == v]
    if not numbers:
        raise _no_number(values)
    return min(numbers) if sense == "min" else max(numbers)


def _no_number(values: list[float]) -> IntegrityError:
    return IntegrityError(f"none of {len(values)} totals is a number", field="total")

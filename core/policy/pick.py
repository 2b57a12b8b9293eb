"""The best total, and a seeded draw among equals: position never decides."""

from __future__ import annotations

import math
from random import Random
from typing import Literal

from core.errors import IntegrityError
from core.policy.base import Floats

TIE_RELATIVE = 1e-12
"""Totals this close, relative to the best, are equal: they differ by rounding alone."""


def pick(total: Floats, sense: Literal["min", "max"], rng: Random) -> tuple[int, int]:
    """(row of the winner, how many rows tied for it) of totals of shape (k,), k >= 1.

    A total that is not a number never wins; IntegrityError when no total is a number.
    """
    row = int(total.argmin() if sense == "min" else total.argmax())
    best = float(total[row])
    if best != best:  # argmin and argmax stop at the first NaN
        best = _best_number(total.tolist(), sense)
    margin = abs(best) * TIE_RELATIVE if math.isfinite(best) else 0.0
    near = total <= best + margin if sense == "min" else total >= best - margin
    rows = near.nonzero()[0]
    tied = len(rows)
    return (int(rows[0]) if tied == 1 else int(rows[rng.randrange(tied)])), tied


def _best_number(values: list[float], sense: Literal["min", "max"]) -> float:
    numbers = [v for v in values if v == v]
    if not numbers:
        raise IntegrityError(f"none of {len(values)} totals is a number", field="total")
    return min(numbers) if sense == "min" else max(numbers)

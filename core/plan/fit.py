"""Cost coefficients learned from what a node really took (S1; F: regression on telemetry).

Least squares of the very forms of `core.plan.cost_model`, on a window of recent observations:
memory is bounded and old behaviour is forgotten. Residuals are relative, so that short prompts
count as much as long ones, and Huber weights keep single stalls from bending the fit. Every
fourth observation is held out: the error is measured on what the fit has not seen.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

Coefficients = tuple[float, float, float]
Floats = npt.NDArray[np.float64]

_SUBSETS = tuple(list(s) for size in (3, 2, 1) for s in itertools.combinations(range(3), size))
_HUBER = 3.0
"""Residuals beyond this many medians lose weight."""


class _Window:
    """The latest observations in a ring: three features and the seconds each took."""

    def __init__(self, size: int) -> None:
        self._rows = np.zeros((size, 4))
        self._count = 0

    def __len__(self) -> int:
        return min(self._count, len(self._rows))

    def add(self, row: tuple[float, float, float, float]) -> None:
        self._rows[self._count % len(self._rows)] = row
        self._count += 1

    @property
    def features(self) -> Floats:
        return self._rows[: len(self), :3]

    @property
    def seconds(self) -> Floats:
        return self._rows[: len(self), 3]


class LinearFit:
    """seconds = w0 x0 + w1 x1 + w2 x2 with w >= 0, over a window; see PrefillFit and TbtFit.

    Feature 0 is the constant 1. Ready after `least` observations to fit, a quarter of that held
    out, whose first varying feature spans at least a factor of 2 from its 10th to its 90th
    percentile. Cost: O(1) a observation, one small solve per `coefficients` after new ones.
    """

    SPREAD = 2.0
    HOLD_OUT = 4

    def __init__(self, *, window: int = 256, least: int = 24) -> None:
        self._train = _Window(window)
        self._held = _Window(max(window // self.HOLD_OUT, 8))
        self._least = least
        self._seen = 0
        self._solution: Coefficients | None = None

    @property
    def observations(self) -> int:
        """How many were ever taken in."""
        return self._seen

    @property
    def enough(self) -> bool:
        """Whether there are observations enough to judge by."""
        held = len(self._held) >= self._least // self.HOLD_OUT
        return held and len(self._train) >= self._least

    @property
    def ready(self) -> bool:
        """Whether there are enough observations, and spread enough, to replace a prior."""
        if not self.enough:
            return False
        low, high = np.percentile(self._train.features[:, 1], (10, 90))
        return bool(high >= self.SPREAD * max(low, 1e-9))

    def coefficients(self) -> Coefficients:
        """(w0, w1, w2) of the window; all 0 before the first observation."""
        if self._solution is None:
            self._solution = _solve(self._train.features, self._train.seconds)
        return self._solution

    @property
    def error(self) -> float:
        """Median relative error on the held-out observations; NaN while there are none."""
        return self.error_of(self.coefficients())

    def error_of(self, coefficients: Coefficients) -> float:
        """The same for other coefficients, such as the prior's: replace it when ours is less."""
        if not len(self._held):
            return float("nan")
        predicted = self._held.features @ np.array(coefficients)
        return float(np.median(np.abs(predicted / self._held.seconds - 1.0)))

    def _take(self, x1: float, x2: float, seconds: float) -> None:
        if not (0 < seconds < np.inf and 0 <= x1 < np.inf and 0 <= x2 < np.inf):
            return
        self._seen += 1
        held = self._seen % self.HOLD_OUT == 0
        (self._held if held else self._train).add((1.0, x1, x2, seconds))
        self._solution = self._solution if held else None


class PrefillFit(LinearFit):
    """(c0, c1, c2) of t(L, p) = c0 + c1 (L - p) + c2 (L^2 - p^2) from observed prefills."""

    def observe(self, length: int, prefix: int, seconds: float) -> None:
        """One prefill of `length` tokens, `prefix` of them cached as the engine reports it.

        `seconds` is compute alone, without queueing. Values that cannot be are ignored: a
        prefix outside 0..length, a duration that is not a positive number.
        """
        if 0 <= prefix <= length:
            self._take(length - prefix, float(length) ** 2 - float(prefix) ** 2, seconds)


class TbtFit(LinearFit):
    """(d0, d1, d2) of TBT(b, k) = d0 + d1 b + d2 k from observed decode steps."""

    def observe(self, batch: float, kv_tokens: float, seconds: float) -> None:
        """One token gap of `seconds` in a batch of `batch` requests holding `kv_tokens`."""
        self._take(batch, kv_tokens, seconds)


def _solve(features: Floats, seconds: Floats) -> Coefficients:
    """Non-negative least squares of relative residuals, twice: plain, then Huber-weighted."""
    if not len(seconds):
        return 0.0, 0.0, 0.0
    scale = np.maximum(features.max(axis=0), 1e-12)
    relative = features / scale / seconds[:, None]
    first = _non_negative(relative, np.ones(len(seconds)))
    residual = np.abs(relative @ first - 1.0)
    bound = _HUBER * max(float(np.median(residual)), 1e-9)
    root = np.sqrt(np.minimum(1.0, bound / np.maximum(residual, 1e-300)))
    w = _non_negative(relative * root[:, None], root) / scale
    return float(w[0]), float(w[1]), float(w[2])


def _non_negative(x: Floats, y: Floats) -> Floats:
    """argmin |x w - y| over w >= 0 for three columns: the best of all subsets, exactly."""
    gram, target = x.T @ x, x.T @ y
    best, best_loss = np.zeros(3), 0.0
    for columns in _SUBSETS:
        w = np.zeros(3)
        w[columns] = np.linalg.lstsq(gram[np.ix_(columns, columns)], target[columns])[0]
        if (w[columns] < 0).any():
            continue
        loss = float(w @ gram @ w - 2 * w @ target)
        if loss < best_loss:
            best, best_loss = w, loss
    return best

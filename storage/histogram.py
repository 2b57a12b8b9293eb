"""Log-linear histograms of seconds: small, mergeable, with a stated error. Pure.

A value counts in whole microseconds. Every power of two is divided into 64 equal buckets, so a
bucket's middle is within 1/128 (0.8 %) of any value in it; values up to 63 us are exact, and
those above 38 hours count as 38 hours. Merging is adding counts, so a percentile of many
histograms is as good as that of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

SIZE = 2_048
"""Number of buckets."""
RELATIVE_ERROR = 1 / 128
"""How far a percentile may be from the observed value at its rank."""
_SUB = 64
_MICROS_MAX = (1 << 37) - 1

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Whole = npt.NDArray[np.int64] | npt.NDArray[np.uint16] | npt.NDArray[np.uint32]


def buckets(seconds: Floats) -> Counts:
    """Bucket of each value; negative ones count as 0. NaN is not allowed."""
    micros = np.clip(np.rint(np.asarray(seconds, dtype=np.float64) * 1e6), 0, _MICROS_MAX)
    whole = micros.astype(np.int64)
    exponent = np.frexp(micros)[1].astype(np.int64) - 1
    shift = np.maximum(exponent - 6, 0)
    large = (shift + 1) * _SUB + (whole >> shift) - _SUB
    return np.where(whole < _SUB, whole, large)


def middles() -> Floats:
    """The value in seconds that stands for each bucket."""
    bucket = np.arange(SIZE, dtype=np.int64)
    shift = np.maximum(bucket // _SUB - 1, 0)
    low = np.where(bucket < _SUB, bucket, (_SUB + bucket % _SUB) << shift)
    return np.asarray((low + ((1 << shift) - 1) / 2) * 1e-6)


_MIDDLES = middles()


class Spread(NamedTuple):
    """A histogram: distinct buckets in order, and the count of each."""

    buckets: Whole
    counts: Whole


def grouped(groups: Counts, seconds: Floats) -> dict[int, Spread]:
    """One histogram for each group that has a value; `groups` says whose each value is.

    Both have length n; NaN stands for no value.
    """
    there = ~np.isnan(seconds)
    cells, counts = np.unique(groups[there] * SIZE + buckets(seconds[there]), return_counts=True)
    owners, firsts = np.unique(cells // SIZE, return_index=True)
    edges = [*firsts.tolist(), len(cells)]
    return {
        int(owner): Spread(cells[lo:hi] - owner * SIZE, counts[lo:hi])
        for owner, lo, hi in zip(owners, edges, edges[1:], strict=False)
    }


def merged(parts: Sequence[Spread]) -> Spread:
    """All of them together."""
    if len(parts) == 1:
        return parts[0]
    total = np.zeros(SIZE, dtype=np.int64)
    for found, counts in parts:
        total[found] += counts
    found = np.flatnonzero(total)
    return Spread(found, total[found])


def packed(spread: Spread) -> bytes:
    """A histogram as bytes; empty for none.

    One byte, the width of a count (2 or 4); the buckets as 16-bit numbers, the counts in that
    width, little-endian.
    """
    if not len(spread.buckets):
        return b""
    width = 2 if spread.counts.max() < 1 << 16 else 4
    counts = spread.counts.astype(f"<u{width}")
    return bytes([width]) + spread.buckets.astype("<u2").tobytes() + counts.tobytes()


def unpacked(data: bytes) -> Spread:
    """What `packed` wrote."""
    if not data:
        return Spread(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    width = data[0]
    size = (len(data) - 1) // (2 + width)
    found = np.frombuffer(data, "<u2", size, 1)
    counts = np.frombuffer(data, f"<u{width}", size, 1 + 2 * size)
    return Spread(found, counts)


def quantiles(spread: Spread, points: Sequence[float]) -> list[float] | None:
    """Values at the given shares of the ranks, between neighbours in proportion; None if empty."""
    ends = np.cumsum(spread.counts)
    if not len(ends):
        return None
    values, ranks = _MIDDLES[spread.buckets], np.asarray(points) * (int(ends[-1]) - 1)
    below = values[np.searchsorted(ends, np.floor(ranks), side="right")]
    above = values[np.searchsorted(ends, np.ceil(ranks), side="right")]
    return [float(value) for value in below + (above - below) * (ranks - np.floor(ranks))]

"""Arithmetic of a chunked pipeline: equal-cost chunks, layer shares, the finish recurrence.

Stage s computes its share of the model's layers for one chunk after the other; with t[s][j] the
time of chunk j on stage s (spec 6)::

    F[s][j] = max(F[s-1][j] + handoff, F[s][j-1]) + t[s][j]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Coefficients = tuple[float, float, float]
"""c0, c1, c2 of t(L, p) = c0 + c1 (L - p) + c2 (L^2 - p^2), seconds."""


def whole_s(cost: Coefficients, uncached_tokens: int, prefix_tokens: int) -> float:
    """Time of the whole uncached part on one node with every layer, without c0."""
    total = prefix_tokens + uncached_tokens
    return cost[1] * uncached_tokens + cost[2] * float(total**2 - prefix_tokens**2)


def equal_cost_chunks(
    uncached_tokens: int, prefix_tokens: int, count: int, *, c1: float, c2: float
) -> Ints:
    """`count` chunks of about equal time, each at least one token; shape (count,).

    The ends e solve c1 (e - p) + c2 (e^2 - p^2) = share of the whole, rounded to tokens.
    count must be at most uncached_tokens, and one of c1, c2 positive.
    """
    p, total = prefix_tokens, prefix_tokens + uncached_tokens
    steps = np.arange(1, count)
    work = whole_s((0.0, c1, c2), uncached_tokens, p) * steps / count
    if c2 > 0:
        ends = (np.sqrt((c1 + 2.0 * c2 * p) ** 2 + 4.0 * c2 * work) - c1) / (2.0 * c2)
    else:
        ends = p + work / c1
    tokens = np.rint(ends).astype(np.int64)
    # Ends rise by at least 1, start above p and leave 1 token for each chunk to come.
    tokens = np.maximum.accumulate(np.maximum(tokens - steps, p)) + steps
    tokens = np.minimum(tokens, total - count + steps)
    return np.diff(np.concatenate(([p], tokens, [total])))


def layer_shares(speeds: Sequence[float], layers: int) -> list[int]:
    """Whole layers of each stage, proportional to speed, at least one each; they sum to `layers`.

    Largest remainders first, earlier stages first among equals; needs len(speeds) <= layers.
    """
    exact = [layers * speed / sum(speeds) for speed in speeds]
    shares = [max(int(x), 1) for x in exact]
    while sum(shares) < layers:
        s = max(range(len(shares)), key=lambda i: (exact[i] - shares[i], -i))
        shares[s] += 1
    while sum(shares) > layers:
        shares[shares.index(max(shares))] -= 1
    return shares


def chunk_times(cost: Coefficients, share: float, prefix_tokens: int, chunks: Ints) -> Floats:
    """Seconds of each chunk on a stage that holds `share` of the layers; shape (chunks,)."""
    c0, c1, c2 = cost
    ends = (prefix_tokens + np.cumsum(chunks)).astype(np.float64)
    begins = ends - chunks
    out: Floats = share * (c0 + c1 * chunks + c2 * (ends * ends - begins * begins))
    return out


def finish_times(
    times: Sequence[Floats], ready_s: Sequence[float], handoff_s: Sequence[Floats]
) -> list[Floats]:
    """F[s] of every stage, each of shape (chunks,).

    times[s][j]: seconds of work; ready_s[s]: when stage s may begin; handoff_s[s][j]: seconds
    to bring chunk j from stage s - 1 to s (row 0 is not read). Unrolled, the recurrence is
    F[s][j] = T_j + max(ready_s, max over i <= j of (arrival_i - T_{i-1})), T the running work.
    """
    finish: list[Floats] = []
    for s, work in enumerate(times):
        done = np.cumsum(work)
        if not s:
            finish.append(done + ready_s[0])
            continue
        slack = finish[-1] + handoff_s[s] - (done - work)
        finish.append(done + np.maximum(np.maximum.accumulate(slack), ready_s[s]))
    return finish

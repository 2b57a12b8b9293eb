"""How long a prefix each holder has: galloping over holder masks, and the plain walk.

A mask is a Python integer with one bit a holder. For holders whose blocks are closed under
prefixes the set of holders only shrinks with depth, so the depths where it shrinks are found by
doubling steps and bisection; everything between two equal ends is equal. Holders without that
property are walked block by block; so is everyone in a short chain, where that is cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Runs = list[tuple[int, int]]
"""(holders, depth): these holders have exactly the first `depth` blocks; disjoint masks."""
WALK_MAX = 40
"""Chains up to this many blocks are cheaper to walk than to gallop over."""
Lookup = Callable[[int], int | None]


def gallop(lookup: Lookup, keys: Sequence[int], first: int, holders: int) -> Runs:
    """Depths for prefix-closed `holders`, a non-empty subset of `first` = lookup(keys[0])."""
    runs: Runs = []
    end = len(keys)
    low, seen, alive = 0, first, holders
    while True:
        # `low` is held by all alive; find `high`, the first block that is not.
        step = 1
        high = low + 1
        while high < end:
            mask = lookup(keys[high])
            if mask is not seen:
                if mask is None or mask & alive != alive:
                    break
                seen = mask
            low = high
            step += step
            high += step
        else:
            high = end
        while high - low > 1:
            middle = (low + high) >> 1
            mask = lookup(keys[middle])
            if mask is seen:
                low = middle
            elif mask is None or mask & alive != alive:
                high = middle
            else:
                low, seen = middle, mask
        mask = lookup(keys[high]) if high < end else None
        still = mask & alive if mask is not None else 0
        runs.append((alive ^ still, high))
        if mask is None or not still:
            return runs
        low, seen, alive = high, mask, still


def walk(lookup: Lookup, keys: Sequence[int], holders: int) -> Runs:
    """Depths for any `holders`, a non-empty subset of lookup(keys[0]), block by block."""
    runs: Runs = []
    seen: int | None = None
    alive = holders
    depth = 0
    for mask in map(lookup, keys):
        if mask is not seen:
            if mask is None:
                break
            seen = mask
            still = mask & alive
            if still != alive:
                runs.append((alive ^ still, depth))
                if not still:
                    return runs
                alive = still
        depth += 1
    runs.append((alive, depth))
    return runs

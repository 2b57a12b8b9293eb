"""Candidates from a few literals; every column not named is neutral."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from core.policy import Candidates, get_policy
from core.tunables import Tunables

_INTS = ("match_tokens", "prefix_tokens", "last_picked", "session_hash")
_BOOLS = ("fetch", "resident")


def candidates(k: int, *, prompt_tokens: int = 1000, **given: Any) -> Candidates:
    """k nodes, idle, equal and empty but for `given`: column name -> k values, or a scalar."""
    columns: dict[str, Any] = {
        "match_tokens": [0] * k,
        "reachable_tokens": 0,
        "queued_tokens": [0] * k,
        "batch": [0] * k,
        "load": [0] * k,
        "queue_s": [0] * k,
        "prefill_s": [1] * k,
        "fetch": [False] * k,
        "prefix_tokens": [0] * k,
        "fetched_prefill_s": [1] * k,
        "transfer_s": [0] * k,
        "waiting": [0] * k,
        "queue_max": [100] * k,
        "compute": [1] * k,
        "network": [1] * k,
        "resident": [True] * k,
        "last_picked": [-1] * k,
        "mean_queue_s": 0.0,
        "mean_prefill_s": 0.0,
    }
    unknown = set(given) - set(Candidates.__slots__)
    assert not unknown, unknown
    columns |= given
    made = {name: _column(name, value) for name, value in columns.items()}
    return Candidates(prompt_tokens=prompt_tokens, **made)


def total(name: str, c: Candidates, **changes: Any) -> list[float]:
    """Totals of a policy under default tunables with changes (path with __ for the dot)."""
    t = Tunables().changed({k.replace("__", "."): v for k, v in changes.items()})
    return get_policy(name).score(c, t).total.tolist()


def best(name: str, c: Candidates, **changes: Any) -> list[int]:
    """Rows that share the best total."""
    values = total(name, c, **changes)
    edge = min(values) if get_policy(name).sense == "min" else max(values)
    return [i for i, v in enumerate(values) if v == edge]


def _column(name: str, value: Any) -> Any:
    if not isinstance(value, Sequence):
        return value
    kind = np.int64 if name in _INTS else np.bool_ if name in _BOOLS else np.float64
    return np.array(value, kind)

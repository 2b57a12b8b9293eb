"""Stored decisions made again under other parameters: candidates from records. Pure.

A record keeps most columns a policy reads. What it does not keep is taken as neutral and named,
so that a preview can say what it rests on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import xxhash

from core.audit_json import Candidate, candidates_from_json
from core.plan.case import UNWEIGHED, by_weight
from core.policy import get_policy, pick
from core.policy.base import Candidates
from core.ports import StoredDecision
from core.tunables import Tunables

Floats = npt.NDArray[np.float64]
COLUMNS = (
    "match_tokens", "queued_tokens", "batch", "load", "queue_s", "transfer_s", "prefix_tokens",
    "fetched_prefill_s", "kv_usage",
)  # fmt: skip
"""Inputs that records keep."""
_STORED_AS = {"fetched_prefill_s": "prefill_s"}
_WHOLE = frozenset({"match_tokens", "prefix_tokens"})
_SAME = 1e-3
"""Totals this close are equal: stored inputs have four significant digits."""


@dataclass(slots=True)
class Recorded:
    """A stored decision with its candidates as columns of shape (k,)."""

    stored: StoredDecision
    nodes: tuple[str, ...]
    chosen: int
    columns: dict[str, Floats]
    size: int
    """Candidates there were; records keep the 16 best and the chosen one."""
    tbt_s: dict[str, float]
    """Predicted TBT by decode candidate."""
    weight: Floats
    """Node weights as they were; 1 where nothing else is recorded."""


@dataclass(slots=True)
class Context:
    """What no single record tells: the fleet's mean prefill time, whose turn it is, what was
    missing so far."""

    mean_prefill_s: float
    rng: Random
    turn: int = 0
    turns: dict[str, int] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)


def recorded(stored: StoredDecision) -> Recorded | None:
    """The stored decision's candidates; None where it kept none or was refused."""
    table = candidates_from_json(stored.decision.candidates)
    chosen = next((i for i, r in enumerate(table.rows) if r.chosen), -1) if table else -1
    if table is None or chosen < 0 or not stored.decision.placed:
        return None
    decode = candidates_from_json(stored.decision.decode_candidates)
    weight = _column(table.rows, "node_weight")
    return Recorded(
        stored=stored,
        nodes=tuple(row.node for row in table.rows),
        chosen=chosen,
        columns={name: _column(table.rows, _STORED_AS.get(name, name)) for name in COLUMNS},
        size=table.size,
        tbt_s={r.node: r.inputs.get("tbt_s", 0.0) for r in decode.rows} if decode else {},
        weight=np.where(weight > 0, weight, 1.0),
    )


def _column(rows: Iterable[Candidate], name: str) -> Floats:
    """An input over the rows; records leave out what is 0 throughout."""
    return np.array([row.inputs.get(name, 0.0) for row in rows], np.float64)


class RecordedCandidates(Candidates):
    """Candidates of a record. Columns it lacks are neutral; their names go to `missing`."""

    def __init__(self, r: Recorded, context: Context, columns: dict[str, Floats]) -> None:
        self._r, self._context = r, context
        self.prompt_tokens = r.stored.decision.prompt_tokens
        self.reachable_tokens = r.stored.decision.reachable_tokens
        for name, column in columns.items():
            setattr(self, name, column.astype(np.int64) if name in _WHOLE else column)
        self.fetch = self.prefix_tokens > self.match_tokens
        self.mean_queue_s = float(self.queue_s.mean())
        self.mean_prefill_s = context.mean_prefill_s
        self.priority_weight = 1.0
        self.decode_load = None

    def __getattr__(self, name: str) -> Any:
        """A column that the record does not hold."""
        if name == "last_picked":
            return np.array([self._context.turns.get(n, -1) for n in self._r.nodes], np.int64)
        if name == "session_hash":
            return self._session_hash()
        if name not in _NEUTRAL:
            raise AttributeError(name)
        self._context.missing.add(name)
        value = _NEUTRAL[name]
        return None if value is None else np.full(self.size, value)

    def _session_hash(self) -> Any:
        """Rank of each node for the digest of the session's name, which is all that is kept."""
        session = self._r.stored.decision.session
        if not session:
            return None
        self._context.missing.add("session_hash")
        names = (f"{session}\0{node}".encode() for node in self._r.nodes)
        return np.array([xxhash.xxh3_64_intdigest(name) >> 1 for name in names], np.int64)


_NEUTRAL: dict[str, Any] = {
    "prefill_s": 0.0,
    "waiting": 0.0,
    "queue_max": 1.0,
    "compute": 1.0,
    "network": 1.0,
    "resident": True,
    "inflight_tokens": None,
}


def totals(
    r: Recorded, t: Tunables, context: Context, columns: dict[str, Floats] | None = None
) -> tuple[Floats, Literal["min", "max"]]:
    """What the policy of `t` says of the recorded candidates, with the nodes' weights of then;
    `columns` in place of their own."""
    policy = get_policy(t.policy)
    c = RecordedCandidates(r, context, columns or r.columns)
    total = np.asarray(policy.score(c, t).total)
    if policy.name not in UNWEIGHED:
        total = by_weight(total, r.weight, policy.sense)
    return total, policy.sense


def choice(r: Recorded, t: Tunables, context: Context) -> int:
    """Row that `t` would choose; the recorded one where it is as good as any."""
    total, sense = totals(r, t, context)
    best = float(np.nanmin(total) if sense == "min" else np.nanmax(total))
    if t.policy != "random" and abs(float(total[r.chosen]) - best) <= _SAME * abs(best):
        row = r.chosen
    else:
        row, _ = pick(total, sense, context.rng)
    context.turn += 1
    context.turns[r.nodes[row]] = context.turn
    return row

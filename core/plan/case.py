"""One request's deliberation: what each step of a decision leaves for the next."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from core.domain import CandidateTable, Prediction, Request, Slot
from core.fleet.state import SLOW_START_S, FleetState
from core.plan.placement import DecodeChoice
from core.plan.prefill import Chosen, LiveCandidates
from core.policy.base import NamedPolicy, Scores, Totals
from core.policy.constraints import Standing
from core.tunables import Tunables

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Keys = Mapping[int, Sequence[int]]

NO_TABLE = CandidateTable((), "min", np.empty(0), {}, {}, 0, 0)
NOTHING_TO_DECODE = CandidateTable((), "min", np.empty(0), {}, {}, 0, 0)
"""Marks the decode choice of a request that generates nothing."""
KEPT_MAX = 16
_SLOW_START_LEAST = 0.1
UNWEIGHED = frozenset({"random", "round_robin"})
"""Policies that do not weigh nodes."""


_LATER: Any = None


class Case(msgspec.Struct, eq=False):
    """Filled from top to bottom by `Conductor.decide`; lives for one decision."""

    request: Request
    now: float
    keys: Keys
    standing: Standing
    left: Standing
    """After the constraints that depend on load."""
    policy: NamedPolicy
    listed: list[int] | None = None
    """`held` as a list, where slots are few; the arrays are made when they are asked for."""
    matched: list[int] | None = None
    """`match`, likewise; the same list where all slots could prefill the request."""
    rows: Any = _LATER
    """Candidate rows: slots, or slice(None) for all."""
    c: LiveCandidates = _LATER
    chosen: Chosen = _LATER
    row: int = -1
    slot: Slot = Slot(-1)
    more: Ints | None = None
    """What policies see instead of `match` where a prefix is being computed."""
    gathering: Collection[int] = ()
    """Slots that compute a long part of the prompt that nobody held when they began."""
    wider: Standing | None = None
    """`left` before nodes were taken out that could serve it all the same: a hot group's holders,
    or those that do not compute the prompt's cold prefix."""
    undecodable: bool = False
    """Whether the node at `slot` leads to no decode node that could go on."""
    predicted: Prediction = _LATER
    table: CandidateTable = NO_TABLE
    _held: Ints | None = None
    _match: Ints | None = None

    def took(self, held: Ints) -> None:
        """Matched tokens by slot, as the index tells them of every node."""
        standing, self._held = self.standing, held
        everyone = standing.count == len(held)
        self._match = held if everyone else np.where(standing.mask, held, 0)

    def took_few(self, held: list[int]) -> None:
        """The same where slots are few."""
        standing = self.standing
        self.listed = self.matched = held
        if standing.count < len(held):
            matched = self.matched = [0] * len(held)
            for slot in standing.rows.tolist():
                matched[slot] = held[slot]

    @property
    def held(self) -> Ints:
        """Matched tokens by slot, on any node."""
        if self._held is None:
            self._held = np.array(self.listed, np.int64)
        return self._held

    @property
    def match(self) -> Ints:
        """Matched tokens by slot, of nodes that could prefill the request."""
        if self._match is None:
            alike = self.matched is self.listed
            self._match = self.held if alike else np.array(self.matched, np.int64)
        return self._match

    @property
    def credit(self) -> Ints:
        """What policies see: `match`, or more where a prefix is being computed."""
        return self.match if self.more is None else self.more


def usable_keys(request: Request) -> Keys:
    """Keys of the blocks an engine can reuse: it always computes the prompt's last token, so at
    most floor((L - 1) / block_size) blocks."""
    length = request.prompt_tokens
    for size, keys in request.keys.items():
        if len(keys) * size >= length:
            break
    else:
        return request.keys
    return {size: keys[: max(length - 1, 0) // size] for size, keys in request.keys.items()}


def needed(policy: NamedPolicy, t: Tunables) -> frozenset[str]:
    """Costly columns that the policy will read under these parameters."""
    if policy.name == "multiplicative" and not t.multiplicative.network_weight:
        return frozenset()
    return policy.needs


def weighed(fleet: FleetState, total: Totals, policy: NamedPolicy, rows: Any, now: float) -> Totals:
    """Totals after node weights and slow start: half the weight counts as half as good.

    A cost is divided by the weight and a score multiplied, the other way round below 0, so that
    less weight never looks better. Policies that do not weigh nodes are left alone.
    """
    if policy.name in UNWEIGHED:
        return total
    return by_weight(np.asarray(total), node_weight(fleet, rows, now), policy.sense)


def by_weight(total: Floats, weight: Floats, sense: str) -> Floats:
    """Totals of candidates with these weights, as `weighed` says."""
    better_above = (sense == "max") == (total >= 0)
    out: Floats = np.where(better_above, total * weight, total / weight)
    return out


def node_weight(fleet: FleetState, rows: Any, now: float) -> Floats:
    """Each candidate's weight now: the operator's, less what is not regained after a death."""
    weight: Floats = fleet.weight[rows] * slow_start(fleet, rows, now)
    return weight


def slow_start(fleet: FleetState, rows: Any, now: float) -> Floats:
    """Share of its weight that a node which came back has regained, in 0.1..1 (linear)."""
    since = now - fleet.slow_start_at_s[rows]
    share: Floats = np.clip(since / SLOW_START_S, _SLOW_START_LEAST, 1.0)
    return share


def candidate_table(
    fleet: FleetState, case: Case, scores: Scores, total: Floats, tied: int
) -> CandidateTable:
    """The candidates' inputs and terms, copied out of the live arrays.

    All of them up to `KEPT_MAX`; of more, the best ones and the chosen one (spec 12).
    """
    c = case.c
    kept = _kept(total, case.policy.sense, case.row)
    slots = kept if isinstance(case.rows, slice) else case.rows[kept]
    columns: dict[str, Any] = {
        "match_tokens": c.match_tokens,
        "queued_tokens": c.queued_tokens,
        "batch": c.batch,
        "load": c.load,
        "queue_s": c.queue_s,
        "transfer_s": c.transfer_s,
        "prefill_s": c.fetched_prefill_s,
        "prefix_tokens": c.prefix_tokens,
        "kv_usage": c.kv_usage,
    }
    if case.more is not None:
        columns["coming_tokens"] = (case.more - case.match)[case.rows]
    if fleet.weighted or case.now < fleet.slow_until_s:
        weight = node_weight(fleet, case.rows, case.now)
        if case.policy.name not in UNWEIGHED and (weight != 1.0).any():
            columns["node_weight"] = weight
    return CandidateTable(
        nodes=tuple(fleet.node_at(slot) for slot in slots.tolist()),
        sense=case.policy.sense,
        total=total[kept],
        columns={name: column[kept] for name, column in columns.items()},
        terms={name: term[kept] for name, term in scores.terms.items()},
        chosen=int(np.flatnonzero(kept == case.row)[0]),
        tied=tied,
    )


def _kept(total: Floats, sense: str, chosen: int) -> npt.NDArray[np.intp]:
    """Rows to keep, in row order."""
    if len(total) <= KEPT_MAX:
        return np.arange(len(total))
    cost = total if sense == "min" else -total
    best = np.argpartition(cost, KEPT_MAX - 1)[:KEPT_MAX]
    return np.union1d(best, [chosen])


@functools.lru_cache(maxsize=4096)
def prefill_only(slot: Slot) -> DecodeChoice:
    """The choice of a request that generates nothing: it ends where it was prefilled."""
    return DecodeChoice(
        slot=slot,
        moved_tokens=0,
        transfer_s=0.0,
        tbt_s=0.0,
        tbt_least_s=0.0,
        tbt_floor_s=0.0,
        decode_s=0.0,
        feasible=True,
        excluded={},
        table=NOTHING_TO_DECODE,
    )

"""Chooses the decode node of a placed prompt (S1 5, spec 4), columns assembled from the fleet.

Staying on the prefill node is a candidate whenever its role allows; other nodes are candidates
where both can move KV between them. Each carries two predictions of the time between tokens:
with the batch of now, and with the batch expected when the prefill will have ended (F 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt

from core.domain import CandidateTable, Request
from core.fleet.ledger import Ledger
from core.fleet.state import FleetState
from core.plan.cost_model import tbt_seconds
from core.plan.decode import DecodeScores, score_decode
from core.plan.transfer import Topology, exposed_seconds
from core.policy.constraints import Excluded, Standing, decode_checks, narrowed
from core.policy.pick import pick
from core.tunables import Tunables

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeChoice:
    """Where a request generates, and the predictions admission looks at (seconds)."""

    slot: int
    transfer_s: float
    tbt_s: float
    """Predicted for the chosen node, at the moment the rules look at."""
    tbt_now_s: float
    """Least over candidates with the batches of now."""
    tbt_then_s: float
    """Least over candidates with the batches expected at the end of the prefill."""
    tbt_floor_s: float
    """Of the node with the least, with an empty batch."""
    decode_s: float
    """How long a request of that batch decodes."""
    feasible: bool
    """Whether the chosen node keeps everyone's limit."""
    excluded: Excluded
    table: CandidateTable | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moves:
    rows: npt.NDArray[np.intp]
    missing: Floats
    transfer_s: Floats


def choose_decode(
    fleet: FleetState,
    ledger: Ledger,
    topology: Topology,
    t: Tunables,
    request: Request,
    now: float,
    *,
    standing: Standing,
    prefill: int,
    prefill_s: float,
    ttft_s: float,
    match: Ints,
    tbt_slo_s: float,
    rng: Random,
    explain: bool,
) -> DecodeChoice | Excluded:
    """The best decode node, or why there is none."""
    staying = prefill if fleet.decodes[prefill] else None
    checks = decode_checks(fleet, request, t.decode.kv_reserve, staying)
    left = narrowed(fleet, standing, checks)
    moves = _moves(fleet, topology, request, left, prefill, prefill_s, match, now)
    if not len(moves.rows):
        return left.excluded
    rows = moves.rows
    batch, kv = fleet.decoding[rows], fleet.kv_tokens[rows]
    added = request.prompt_tokens + request.output_tokens_expected * t.decode.kv_reserve
    then = _batch_then(ledger, rows, now + ttft_s, batch)
    kv_then = kv * (then / np.maximum(batch, 1.0))
    d0, d1, d2 = fleet.d0[rows], fleet.d1[rows], fleet.d2[rows]
    early = t.admission.early_rejection
    scored = score_decode(
        d0,
        d1,
        d2=d2,
        batch=then if early else batch,
        kv_tokens=kv_then if early else kv,
        added_tokens=added,
        missing_tokens=moves.missing,
        transfer_s=moves.transfer_s,
        tbt_slo_s=tbt_slo_s,
        strictest_tbt_s=fleet.strictest_tbt_s[rows],
        tbt_weight=t.decode.tbt_weight,
        tbt_slack=t.admission.tbt_slack,
    )
    row, tied = _pick_feasible(scored, rng)
    other = tbt_seconds(
        d0, d1, d2, (batch if early else then) + 1.0, (kv if early else kv_then) + added
    )
    tbt_now, tbt_then = (other, scored.tbt_s) if early else (scored.tbt_s, other)
    best = int((tbt_then if early else tbt_now).argmin())
    return DecodeChoice(
        slot=int(rows[row]),
        transfer_s=float(moves.transfer_s[row]),
        tbt_s=float(scored.tbt_s[row]),
        tbt_now_s=float(tbt_now.min()),
        tbt_then_s=float(tbt_then.min()),
        tbt_floor_s=float(d0[best] + d1[best] + d2[best] * added),
        decode_s=ledger.drain_s(int(rows[best]), now),
        feasible=bool(scored.feasible[row]),
        excluded=left.excluded,
        table=_table(fleet, moves, scored, batch, then, kv, row, tied) if explain else None,
    )


def _pick_feasible(scored: DecodeScores, rng: Random) -> tuple[int, int]:
    """Among nodes that keep the limit; among all, the least slowed, where none does."""
    total = scored.scores.total
    if scored.feasible.any():
        total = np.where(scored.feasible, total, np.inf)
    return pick(total, "min", rng)


def _moves(
    fleet: FleetState,
    topology: Topology,
    request: Request,
    standing: Standing,
    prefill: int,
    prefill_s: float,
    match: Ints,
    now: float,
) -> _Moves:
    """Rows that can decode this prompt, the tokens each lacks, and the exposed time to move."""
    group = int(fleet.transfer_group[prefill])
    mask = standing.mask & (fleet.transfer_group == group) if group else standing.mask & False
    mask[prefill] = standing.mask[prefill]
    rows = np.flatnonzero(mask)
    latency, per_byte = topology.row(prefill)
    missing = np.maximum(request.prompt_tokens - match[rows], 0).astype(np.float64)
    missing[rows == prefill] = 0.0
    queue_s = max(float(fleet.egress_until_s[prefill]) - now - prefill_s, 0.0)
    raw = queue_s + latency[rows] + missing * fleet.kv_bytes[prefill] * per_byte[rows]
    exposed = exposed_seconds(raw, np.full(len(rows), prefill_s), int(fleet.layers[prefill]))
    return _Moves(rows=rows, missing=missing, transfer_s=np.where(rows == prefill, 0.0, exposed))


def _batch_then(ledger: Ledger, rows: npt.NDArray[np.intp], when_s: float, batch: Floats) -> Floats:
    ends = [ledger.batch_at(int(slot), when_s) for slot in rows]
    then: Floats = np.minimum(np.array(ends, np.float64), batch)
    return then


def _table(
    fleet: FleetState,
    moves: _Moves,
    scored: DecodeScores,
    batch: Floats,
    then: Floats,
    kv: Floats,
    row: int,
    tied: int,
) -> CandidateTable:
    columns = {
        "batch": batch,
        "batch_then": then,
        "kv_tokens": kv,
        "missing_tokens": moves.missing,
        "transfer_s": moves.transfer_s,
        "tbt_s": scored.tbt_s,
        "feasible": scored.feasible,
    }
    nodes = tuple(fleet.node_at(int(slot)) for slot in moves.rows)
    return CandidateTable(
        nodes, "min", scored.scores.total, columns, dict(scored.scores.terms), row, tied
    )

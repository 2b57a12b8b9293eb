"""Chooses the decode node of a placed prompt (S1 5, spec 4), columns assembled from the fleet.

Staying on the prefill node is a candidate whenever its role allows; other nodes are candidates
where both can move KV between them and a path leads there. Each carries two predictions of the
time between tokens: with the batch of now, and with the batch expected when the prefill will
have ended (F 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt

from core.domain import CandidateTable, Prediction, Reason, Request
from core.fleet.ledger import Ledger
from core.fleet.state import FleetState
from core.plan.cost_model import tbt_seconds
from core.plan.decode import DecodeScores, score_decode
from core.plan.transfer import Topology, exposed_seconds
from core.policy.constraints import Bools, Excluded, Standing, decode_checks, narrowed
from core.policy.pick import pick
from core.tunables import Tunables

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeChoice:
    """Where a request generates, and the predictions admission looks at (seconds)."""

    slot: int
    moved_tokens: int
    """Prompt tokens whose KV has to move there."""
    transfer_s: float
    """Exposed time that the move takes."""
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


@dataclass(frozen=True, slots=True)
class _Batches:
    """The candidates' decode batches without the request: of now, and at the prefill's end."""

    now: Floats
    kv_now: Floats
    then: Floats
    kv_then: Floats


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
    predicted: Prediction,
    held: Ints,
    tbt_slo_s: float,
    rng: Random,
    explain: bool,
) -> DecodeChoice | Excluded:
    """The best decode node, or why there is none.

    standing: nodes that may decode the request at all. prefill: slot of the chosen prefill node,
    with its prediction. held: prompt tokens that each slot's node holds.
    """
    checks = decode_checks(fleet, request, t.decode.kv_reserve, _kv_held(fleet, prefill))
    reached = (Reason.NO_PATH, partners(fleet, topology, prefill))
    left = narrowed(fleet, standing, [reached, *checks])
    if not left.count:
        return left.excluded
    moves = _moves(fleet, topology, request, left, prefill, predicted, held, now)
    batches = _batches(fleet, ledger, moves.rows, now + predicted.ttft_s)
    added = request.prompt_tokens + request.output_tokens_expected * t.decode.kv_reserve
    scored, other_s = _scores(fleet, t, moves, batches, added, tbt_slo_s)
    row, tied = _pick_feasible(scored, rng)
    early = t.admission.early_rejection
    now_s, then_s = (other_s, scored.tbt_s) if early else (scored.tbt_s, other_s)
    best = int(moves.rows[int(scored.tbt_s.argmin())])
    return DecodeChoice(
        slot=int(moves.rows[row]),
        moved_tokens=int(moves.missing[row]),
        transfer_s=float(moves.transfer_s[row]),
        tbt_s=float(scored.tbt_s[row]),
        tbt_now_s=float(now_s.min()),
        tbt_then_s=float(then_s.min()),
        tbt_floor_s=float(fleet.d0[best] + fleet.d1[best] + fleet.d2[best] * added),
        decode_s=ledger.drain_s(best, now),
        feasible=bool(scored.feasible[row]),
        excluded=left.excluded,
        table=_table(fleet, moves, scored, batches, row, tied) if explain else None,
    )


def _kv_held(fleet: FleetState, prefill: int) -> Floats:
    """KV tokens by slot that the prompt finds taken when it comes to decode.

    On the prefill node itself, prompts that still wait are left out: they hold no KV, and this
    one waits its turn among them.
    """
    if not fleet.decodes[prefill]:
        return fleet.kv_tokens
    held = fleet.kv_tokens.copy()
    held[prefill] = fleet.decode_kv[prefill]
    return held


def _scores(
    fleet: FleetState,
    t: Tunables,
    moves: _Moves,
    batches: _Batches,
    added: float,
    tbt_slo_s: float,
) -> tuple[DecodeScores, Floats]:
    """Scores at the moment that the rules look at, and TBT (seconds) at the other moment."""
    rows, b = moves.rows, batches
    looked, other = (b.then, b.kv_then), (b.now, b.kv_now)
    if not t.admission.early_rejection:
        looked, other = other, looked
    d0, d1, d2 = fleet.d0[rows], fleet.d1[rows], fleet.d2[rows]
    scored = score_decode(
        d0,
        d1,
        d2=d2,
        batch=looked[0],
        kv_tokens=looked[1],
        added_tokens=added,
        missing_tokens=moves.missing,
        transfer_s=moves.transfer_s,
        tbt_slo_s=tbt_slo_s,
        strictest_tbt_s=fleet.strictest_tbt_s[rows],
        tbt_weight=t.decode.tbt_weight,
        tbt_slack=t.admission.tbt_slack,
    )
    return scored, tbt_seconds(d0, d1, d2, other[0] + 1.0, other[1] + added)


def _pick_feasible(scored: DecodeScores, rng: Random) -> tuple[int, int]:
    """Among nodes that keep the limit; among all, the least slowed, where none does."""
    total = scored.scores.total
    if scored.feasible.any():
        total = np.where(scored.feasible, total, np.inf)
    return pick(total, "min", rng)


def partners(fleet: FleetState, topology: Topology, prefill: int) -> Bools:
    """By slot: nodes that the KV of a prompt prefilled at `prefill` can get to, itself included."""
    group = int(fleet.transfer_group[prefill])
    mask: Bools = fleet.transfer_group == group if group else np.zeros(fleet.capacity, np.bool_)
    if group:
        mask &= topology.row(prefill)[0] < np.inf
    mask[prefill] = True
    return mask


def _moves(
    fleet: FleetState,
    topology: Topology,
    request: Request,
    left: Standing,
    prefill: int,
    predicted: Prediction,
    held: Ints,
    now: float,
) -> _Moves:
    """Rows that can decode this prompt, the tokens each lacks, and the exposed time to move.

    The sender first finishes what earlier prompts hand over and others fetch from it; KV then
    leaves layer by layer while the prompt is computed.
    """
    rows = np.flatnonzero(left.mask)
    latency, per_byte = topology.row(prefill)
    missing = np.maximum(request.prompt_tokens - held[rows], 0).astype(np.float64)
    busy_until_s = max(float(fleet.handover_until_s[prefill]), float(fleet.egress_until_s[prefill]))
    wait_s = max(busy_until_s - (now + predicted.queue_s + predicted.transfer_s), 0.0)
    raw = wait_s + latency[rows] + missing * fleet.kv_bytes[prefill] * per_byte[rows]
    compute_s = np.full(len(rows), predicted.prefill_s)
    exposed = exposed_seconds(raw, compute_s, int(fleet.layers[prefill]))
    stays = rows == prefill
    missing[stays] = exposed[stays] = 0.0
    return _Moves(rows=rows, missing=missing, transfer_s=exposed)


def _batches(
    fleet: FleetState, ledger: Ledger, rows: npt.NDArray[np.intp], when_s: float
) -> _Batches:
    expected = np.array([ledger.batch_at(slot, when_s) for slot in rows.tolist()], np.float64)
    return _Batches(fleet.decoding[rows], fleet.decode_kv[rows], expected[:, 0], expected[:, 1])


def _table(
    fleet: FleetState,
    moves: _Moves,
    scored: DecodeScores,
    batches: _Batches,
    row: int,
    tied: int,
) -> CandidateTable:
    columns = {
        "batch": batches.now,
        "batch_then": batches.then,
        "kv_tokens": batches.kv_now,
        "missing_tokens": moves.missing,
        "transfer_s": moves.transfer_s,
        "tbt_s": scored.tbt_s,
        "feasible": scored.feasible,
    }
    nodes = tuple(fleet.node_at(slot) for slot in moves.rows.tolist())
    return CandidateTable(
        nodes, "min", scored.scores.total, columns, dict(scored.scores.terms), row, tied
    )

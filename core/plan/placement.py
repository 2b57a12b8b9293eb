"""Chooses the decode node of a placed prompt (S1 5, spec 4), columns assembled from the fleet.

Staying on the prefill node is a candidate whenever its role allows; other nodes are candidates
where both can move KV between them and a path leads there. Each carries two predictions of the
time between tokens: with the batch of now, and with the batch expected when the prefill will
have ended (F 5).
"""

from __future__ import annotations

from random import Random

import msgspec
import numpy as np
import numpy.typing as npt

from core.domain import CandidateTable, Prediction, Reason, Request, Slot
from core.fleet.ledger import Ledger
from core.fleet.state import FleetState
from core.plan.decode import Joining, Weighed, decode_terms, score_decode
from core.plan.few import FEW
from core.plan.few_decode import weigh_few
from core.plan.transfer import Topology, exposed_seconds
from core.policy.constraints import Bools, Excluded, Standing, decode_checks, narrowed
from core.policy.pick import pick
from core.tunables import Tunables

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_REACH_MAX = 1024


class DecodeChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request generates, and the predictions admission looks at (seconds)."""

    slot: Slot
    moved_tokens: int
    """Prompt tokens whose KV has to move there."""
    transfer_s: float
    """Exposed time that the move takes."""
    tbt_s: float
    """Predicted for the chosen node, at the moment the rules look at."""
    tbt_least_s: float
    """Least over the candidates, at that moment."""
    tbt_floor_s: float
    """Of the node with the least, with an empty batch."""
    decode_s: float
    """How long a request of that batch decodes."""
    feasible: bool
    """Whether the chosen node keeps everyone's limit."""
    excluded: Excluded
    table: CandidateTable | None


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
    held: Ints | list[int],
    tbt_slo_s: float,
    rng: Random,
    explain: bool,
) -> DecodeChoice | Excluded:
    """The best decode node, or why there is none.

    standing: nodes that may decode the request and that its KV can get to (`Reach`). prefill:
    slot of the chosen prefill node, with its prediction. held: prompt tokens by slot.
    """
    left, taken = standing, _kv_held(fleet, prefill)
    added = request.prompt_tokens + request.output_tokens_expected * t.decode.kv_reserve
    if not left.count or not _within_all_limits(fleet, request, added, taken):
        checks = decode_checks(fleet, request, t.decode.kv_reserve, taken)
        left = narrowed(fleet, standing, checks)
    if not left.count:
        return left.excluded
    joining = Joining(
        request=request,
        prefill=prefill,
        predicted=predicted,
        held=held,
        wait_s=_sender_busy_s(fleet, prefill, now + predicted.queue_s + predicted.transfer_s),
        when_s=now + predicted.ttft_s if t.admission.early_rejection else None,
        added_tokens=added,
        tbt_slo_s=tbt_slo_s,
    )
    form = weigh_few if left.count <= FEW else weigh
    w = form(fleet, ledger, topology, t, joining, left)
    row, tied = _pick_feasible(w, rng)
    least = w.least
    best = int(w.slots[least])
    d0, d1, d2 = fleet.fixed.tbt[best]
    return DecodeChoice(
        slot=Slot(int(w.slots[row])),
        moved_tokens=int(w.missing[row]),
        transfer_s=float(w.transfer_s[row]),
        tbt_s=float(w.tbt_s[row]),
        tbt_least_s=float(w.tbt_s[least]),
        tbt_floor_s=d0 + d1 + d2 * added,
        decode_s=ledger.drain_s(best, now),
        feasible=bool(w.feasible[row]),
        excluded=left.excluded,
        table=_table(fleet, w, t.decode.tbt_weight, row, tied) if explain else None,
    )


def _within_all_limits(fleet: FleetState, request: Request, added: float, taken: Floats) -> bool:
    """Whether no limit of any node can bite (core.policy.constraints.decode_checks).

    `added` tokens come to what is `taken`; one more to spare, so that rounding decides nothing.
    """
    return (
        request.prompt_tokens < fleet.context_min
        and float(np.maximum.reduce(fleet.decoding)) < fleet.batch_max_min
        and float(np.maximum.reduce(taken)) + added + 1.0 <= fleet.kv_capacity_min
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


def _pick_feasible(w: Weighed, rng: Random) -> tuple[int, int]:
    """Among nodes that keep the limit; among all, the least slowed, where none does."""
    total = w.total
    if True in w.feasible and False in w.feasible:
        total = np.where(w.feasible, total, np.inf)
    return pick(total, "min", rng)


class Reach:
    """Decoders that the KV of a prefill node can get to; remembered while nodes stay the same."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], tuple[Standing, Standing]] = {}

    def get(
        self, fleet: FleetState, topology: Topology, decoders: Standing, prefill: int
    ) -> Standing:
        """`decoders` (as remembered by a StandingCache) without those out of reach."""
        found = self._found.get((prefill, id(decoders)))
        if found is None:
            if len(self._found) >= _REACH_MAX:
                self._found.clear()
            mask = _partners(fleet, topology, prefill)
            reached = narrowed(fleet, decoders, [(Reason.NO_PATH, mask)])
            # Keeping the key's object alive keeps its id from being given to another.
            found = self._found[prefill, id(decoders)] = decoders, reached
        return found[1]


def _partners(fleet: FleetState, topology: Topology, prefill: int) -> Bools:
    """By slot: nodes that the KV of a prompt prefilled at `prefill` can get to, itself included."""
    group = int(fleet.transfer_group[prefill])
    mask: Bools = fleet.transfer_group == group if group else np.zeros(fleet.capacity, np.bool_)
    if group:
        mask &= topology.row(prefill)[0] < np.inf
    mask[prefill] = True
    return mask


def weigh(
    fleet: FleetState,
    ledger: Ledger,
    topology: Topology,
    t: Tunables,
    joining: Joining,
    left: Standing,
) -> Weighed:
    """The candidates' tokens to move, the exposed time for it, and scores of joining there.

    The sender first finishes what earlier prompts hand over and others fetch from it; KV then
    leaves layer by layer while the prompt is computed.
    """
    rows = np.arange(left.count) if isinstance(left.rows, slice) else left.rows
    prefill, predicted = joining.prefill, joining.predicted
    latency, per_byte = topology.row(prefill)
    missing: Floats = joining.request.prompt_tokens - joining.held[rows].astype(np.float64)
    raw = joining.wait_s + latency[rows] + missing * fleet.kv_bytes[prefill] * per_byte[rows]
    exposed = exposed_seconds(raw, predicted.prefill_s, int(fleet.layers[prefill]))
    if fleet.decodes[prefill]:
        stays = rows == prefill
        missing[stays] = exposed[stays] = 0.0
    batch, kv = _batches(fleet, ledger, rows, joining.when_s)
    scored = score_decode(
        fleet.d0[rows],
        fleet.d1[rows],
        d2=fleet.d2[rows],
        batch=batch,
        kv_tokens=kv,
        added_tokens=joining.added_tokens,
        missing_tokens=missing,
        transfer_s=exposed,
        tbt_slo_s=joining.tbt_slo_s,
        strictest_tbt_s=fleet.strictest_tbt_s[rows],
        tbt_weight=t.decode.tbt_weight,
        tbt_slack=t.admission.tbt_slack,
    )
    total, tbt_s = scored.scores.total, scored.tbt_s
    least = int(tbt_s.argmin())
    return Weighed(rows, missing, exposed, batch, kv, tbt_s, scored.feasible, total, least)


def _sender_busy_s(fleet: FleetState, prefill: int, start_s: float) -> float:
    """How long other KV still leaves the prefill node when it begins the prompt at `start_s`."""
    cells = fleet.cells
    busy_until_s = max(cells.handover_until_s[prefill], cells.egress_until_s[prefill])
    return max(busy_until_s - start_s, 0.0)


def _batches(
    fleet: FleetState, ledger: Ledger, rows: npt.NDArray[np.intp], when_s: float | None
) -> tuple[Floats, Floats]:
    """Requests and KV tokens of the rows' decode batches, as expected at `when_s` or of now."""
    if when_s is None:
        return fleet.decoding[rows], fleet.decode_kv[rows]
    expected = np.array([ledger.batch_at(slot, when_s) for slot in rows.tolist()], np.float64)
    return expected[:, 0], expected[:, 1]


def _table(fleet: FleetState, w: Weighed, tbt_weight: float, row: int, tied: int) -> CandidateTable:
    slots = np.asarray(w.slots)
    total, tbt_s, missing, transfer_s = (
        np.asarray(column, np.float64) for column in (w.total, w.tbt_s, w.missing, w.transfer_s)
    )
    columns = {
        "batch": fleet.decoding[slots],
        "batch_then": np.asarray(w.batch, np.float64),
        "kv_tokens": np.asarray(w.kv, np.float64),
        "missing_tokens": missing,
        "transfer_s": transfer_s,
        "tbt_s": tbt_s,
        "feasible": np.asarray(w.feasible),
    }
    terms = decode_terms(transfer_s, tbt_s, missing, tbt_weight)
    nodes = tuple(fleet.node_at(slot) for slot in slots.tolist())
    return CandidateTable(nodes, "min", total, columns, terms, row, tied)

"""The decode candidates of a small fleet, as plain lists.

The counterpart of `core.plan.few`: for up to `FEW` candidates one loop over floats is several
times quicker than the two dozen array operations of `core.plan.placement`. Sums are taken in the
same order, so both forms agree to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from core.domain import Prediction, Request
from core.fleet.ledger import Ledger
from core.fleet.state import FleetState
from core.plan.decode import MOVE_S_PER_TOKEN
from core.plan.transfer import Topology
from core.policy.constraints import Standing
from core.tunables import Tunables


class Joining(msgspec.Struct, eq=False):
    """A placed prompt that looks for a decode node."""

    request: Request
    prefill: int
    """Slot of its prefill node, with its prediction."""
    predicted: Prediction
    held: Any
    """Prompt tokens by slot: an array, or a list where slots are few."""
    wait_s: float
    """How long its sender is still busy with other KV when the prefill begins."""
    when_s: float | None
    """When the batches are looked at: None for now."""
    added_tokens: float
    """KV that it brings: the prompt, and what its expected output reserves."""
    tbt_slo_s: float


class Weighed(msgspec.Struct, eq=False):
    """Decode candidates by row: columns are arrays, or lists where there are few."""

    slots: Any
    missing: Any
    """Prompt tokens whose KV has to move there."""
    transfer_s: Any
    """Exposed time that the move takes."""
    batch: Any
    """Requests that decode there, without this one."""
    kv: Any
    """Their KV tokens."""
    tbt_s: Any
    """Predicted time between tokens with this request."""
    feasible: Any
    """Whether everyone's limit is kept then."""
    total: Any
    """The lowest wins."""
    least: int
    """Row with the least `tbt_s`."""


def weigh_few(
    fleet: FleetState,
    ledger: Ledger,
    topology: Topology,
    t: Tunables,
    joining: Joining,
    left: Standing,
) -> Weighed:
    """As `core.plan.placement.weigh`, row by row."""
    fixed, cells, prefill, held = fleet.fixed, fleet.cells, joining.prefill, joining.held
    slots: Any = fixed.slots if isinstance(left.rows, slice) else left.rows.tolist()
    held = held if isinstance(held, list) else held.tolist()
    latency, per_byte = topology.listed(prefill)
    kv_bytes, share = fixed.kv_bytes[prefill], 1.0 / max(fixed.layers[prefill], 1)
    hidden_s = joining.predicted.prefill_s * (1.0 - share)
    stays = prefill if fixed.decodes[prefill] else -1
    prompt, added, wait_s = joining.request.prompt_tokens, joining.added_tokens, joining.wait_s
    weight, slack, slo_s = t.decode.tbt_weight, t.admission.tbt_slack, joining.tbt_slo_s
    batches, kvs = _batches(fleet, ledger, slots, joining.when_s)
    strictest, costs = cells.strictest_tbt_s.tolist(), fixed.tbt
    missings: list[float] = []
    transfers: list[float] = []
    tbts: list[float] = []
    feasible: list[bool] = []
    totals: list[float] = []
    for slot, batch, kv in zip(slots, batches, kvs, strict=True):
        missing = transfer_s = 0.0
        if slot != stays:
            missing = float(prompt - held[slot])
            raw = wait_s + latency[slot] + missing * kv_bytes * per_byte[slot]
            late, first = raw - hidden_s, raw * share
            transfer_s = late if late > first else first  # core.plan.transfer.exposed_seconds
        d0, d1, d2 = costs[slot]
        tbt_s = d0 + d1 * (batch + 1.0) + d2 * (kv + added)
        limit_s = strictest[slot]
        if slo_s < limit_s:
            limit_s = slo_s
        missings.append(missing)
        transfers.append(transfer_s)
        tbts.append(tbt_s)
        feasible.append(tbt_s <= limit_s * slack)
        totals.append(transfer_s + weight * tbt_s + MOVE_S_PER_TOKEN * missing)
    least = tbts.index(min(tbts))
    return Weighed(slots, missings, transfers, batches, kvs, tbts, feasible, totals, least)


def _batches(
    fleet: FleetState, ledger: Ledger, slots: list[int], when_s: float | None
) -> tuple[Sequence[float], Sequence[float]]:
    """Requests and KV tokens of the slots' decode batches, as expected at `when_s` or of now."""
    if when_s is None:
        decoding, kv = fleet.cells.decoding.tolist(), fleet.cells.decode_kv.tolist()
        return [decoding[slot] for slot in slots], [kv[slot] for slot in slots]
    requests, tokens = zip(*[ledger.batch_at(slot, when_s) for slot in slots], strict=True)
    return requests, tokens

"""The decode candidates of a small fleet, as plain lists.

The counterpart of `core.plan.few`: for up to `FEW` candidates one loop over floats is several
times quicker than the two dozen array operations of `core.plan.placement`. Sums are taken in the
same order, so both forms agree to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core.fleet.ledger import Ledger
from core.fleet.state import FleetState
from core.plan.decode import MOVE_S_PER_TOKEN, Joining, Weighed
from core.plan.transfer import Topology
from core.policy.constraints import Standing
from core.tunables import Tunables


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

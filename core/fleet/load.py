"""load(n): how busy a node is, in 0..1, from signals that are really observed.

A node is as loaded as its scarcest resource:

    load(n) = max( T_queue(n) / horizon, B(n) / batch_max(n), KV in use / KV capacity )

each cut to 0..1. Requests and KV come from the ledger, or from the node's own gauges where those
are fresh and higher: traffic that went around us counts too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from core.fleet.state import FleetState

Floats = npt.NDArray[np.float64]


def queue_s(fleet: FleetState, now: float) -> Floats:
    """T_queue by slot: predicted prefill seconds ahead of a new prompt, never negative.

    What the running prefill has already done is taken off, at most its own predicted length.
    """
    done = np.minimum(now - fleet.head_started_s, fleet.head_s)
    wait: Floats = np.maximum(fleet.queued_s - done, 0.0)
    return wait


def fresh(fleet: FleetState, now: float, stale_after_s: float) -> npt.NDArray[np.bool_]:
    """Rows whose own gauges may still be believed."""
    mask: npt.NDArray[np.bool_] = now - fleet.telemetry_at_s <= stale_after_s
    return mask


def batch(fleet: FleetState, believed: npt.NDArray[np.bool_] | None) -> Floats:
    """B by slot: requests in the running batch plus waiting."""
    ours = fleet.prefilling + fleet.decoding
    if believed is None:
        return ours
    told = np.where(believed, fleet.running + fleet.waiting, 0.0)
    both: Floats = np.maximum(ours, told)
    return both


def kv_share(fleet: FleetState, believed: npt.NDArray[np.bool_] | None) -> Floats:
    """Share of KV capacity held by live requests, by slot."""
    ours: Floats = fleet.kv_tokens / fleet.kv_capacity
    if believed is None:
        return ours
    both: Floats = np.maximum(ours, np.where(believed, fleet.kv_usage, 0.0))
    return both


def load(
    wait_s: Floats, batches: Floats, kv: Floats, *, batch_max: Floats, horizon_s: float
) -> Floats:
    """load(n) from its three signals, each of shape (k,)."""
    busiest = np.maximum(wait_s / horizon_s, batches / batch_max)
    cut: Floats = np.minimum(np.maximum(busiest, kv), 1.0)
    return cut

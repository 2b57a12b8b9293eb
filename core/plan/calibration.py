"""Fits each node's cost coefficients to what it is observed to take, and shows the error.

A prefill is comparable when it had its node's queue to itself from selection to first token,
fetched nothing, and the engine said what it reused; a decode when the mean token gap is known. A
fit replaces the profile's coefficients once it predicts held-out observations better than they do.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from core.domain import NodeId, Outcome
from core.fleet.ledger import Reservation
from core.fleet.state import FleetState
from core.plan.cost_model import Coefficients
from core.plan.fit import LinearFit, PrefillFit, TbtFit

_REFIT_EVERY = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FitState:
    """How well the cost model of one node does; errors are median relative ones."""

    observations: int
    fitted: bool
    """Whether fitted coefficients are live instead of the profile's."""
    prior_error: float
    fit_error: float
    coefficients: Coefficients


class _NodeFits:
    def __init__(self, prefill: Coefficients, tbt: Coefficients) -> None:
        self.prefill, self.tbt = PrefillFit(), TbtFit()
        self.prior = {"prefill": prefill, "tbt": tbt}
        self.live = {"prefill": False, "tbt": False}


class Calibration:
    """The fits of a fleet, by node."""

    def __init__(self, fleet: FleetState) -> None:
        self._fleet = fleet
        self._fits: dict[NodeId, _NodeFits] = {}

    def add(self, node: NodeId, prefill: Coefficients, tbt: Coefficients) -> None:
        """Start (again) from a node's profile."""
        self._fits[node] = _NodeFits(prefill, tbt)

    def remove(self, node: NodeId) -> None:
        """Forget a node."""
        self._fits.pop(node, None)

    def observe(self, r: Reservation, outcome: Outcome, current: Collection[int]) -> None:
        """Learn from a finished request; current: its slots whose nodes are still the same."""
        d = r.decision
        fits = self._fits.get(d.prefill) if d.prefill_slot in current else None
        cached = outcome.cached_tokens if r.cached_tokens is None else r.cached_tokens
        comparable = r.alone and d.fetch_from is None and r.prefilled_s is not None
        comparable = comparable and not r.unsplit
        if fits and comparable and cached is not None:
            assert r.prefilled_s is not None
            length = outcome.prompt_tokens or d.request.prompt_tokens
            fits.prefill.observe(length, cached, r.prefilled_s - r.begun_s)
            self._adopt(d.prefill, fits, "prefill", fits.prefill)
        fits = self._fits.get(d.decode) if d.decode_slot in current else None
        if fits and outcome.tpot_s and r.batch_seen:
            fits.tbt.observe(r.batch_seen, r.kv_seen, outcome.tpot_s)
            self._adopt(d.decode, fits, "tbt", fits.tbt)

    def state(self, node: NodeId, kind: str) -> FitState | None:
        """The fit of `kind` "prefill" or "tbt"; None for an unknown node."""
        fits = self._fits.get(node)
        if fits is None:
            return None
        fit: LinearFit = getattr(fits, kind)
        prior = fits.prior[kind]
        return FitState(
            observations=fit.observations,
            fitted=fits.live[kind],
            prior_error=fit.error_of(prior),
            fit_error=fit.error,
            coefficients=fit.coefficients() if fits.live[kind] else prior,
        )

    def _adopt(self, node: NodeId, fits: _NodeFits, kind: str, fit: LinearFit) -> None:
        if fit.observations % _REFIT_EVERY or not fit.ready:
            return
        better = fit.error < fit.error_of(fits.prior[kind])
        if not better and not fits.live[kind]:
            return
        fits.live[kind] = better
        chosen = fit.coefficients() if better else fits.prior[kind]
        if kind == "prefill":
            self._fleet.set_cost(node, chosen)
        else:
            self._fleet.set_tbt(node, chosen)

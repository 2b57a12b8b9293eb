"""Fits each node's cost coefficients to what it is observed to take, and tells the error.

A prefill is comparable when it had its node's queue to itself from selection to first token,
fetched nothing, and the engine said what it reused; a decode when the mean token gap is known. A
fit replaces the profile's coefficients once it predicts held-out observations better than they do.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

from core.domain import NodeId, Outcome
from core.fleet.ledger import Reservation
from core.fleet.state import FleetState
from core.plan.cost_model import Coefficients
from core.plan.fit import LinearFit, PrefillFit, TbtFit

_REFIT_EVERY = 16


class FitSource(enum.StrEnum):
    """Where live coefficients come from."""

    PROFILE = "profile"
    FITTED = "fitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class FitState:
    """How well one cost model of a node does. Errors are median relative ones, as of the last
    comparison, on observations that no fit has seen; NaN before the first."""

    observations: int
    source: FitSource
    prior_error: float
    """Of the profile's coefficients."""
    error: float
    """Of the live ones."""
    coefficients: Coefficients
    """The live ones."""


Fit = TypeVar("Fit", bound=LinearFit)


class _Model(Generic[Fit]):
    """One cost model: the profile's coefficients, what was observed, and what is live."""

    def __init__(self, prior: Coefficients, fit: Fit) -> None:
        self.prior, self.live, self.fit = prior, prior, fit
        self.source = FitSource.PROFILE
        self.prior_error = self.error = math.nan

    def refit(self) -> bool:
        """Choose again, now and then; True where other coefficients are live from now on."""
        fit, before = self.fit, self.live
        if fit.observations % _REFIT_EVERY or not fit.enough:
            return False
        # Requests that are all alike say nothing of slopes: what was live stays, and is judged.
        source, found = self.source, before
        if fit.ready:
            source, found = FitSource.FITTED, fit.coefficients()
        self.prior_error, self.error = fit.error_of(self.prior), fit.error_of(found)
        if not self.error < self.prior_error:
            source, found, self.error = FitSource.PROFILE, self.prior, self.prior_error
        self.source, self.live = source, found
        return found != before

    def state(self) -> FitState:
        return FitState(
            observations=self.fit.observations,
            source=self.source,
            prior_error=self.prior_error,
            error=self.error,
            coefficients=self.live,
        )


class _NodeFits:
    def __init__(self, prefill: Coefficients, tbt: Coefficients) -> None:
        self.prefill = _Model(prefill, PrefillFit())
        self.tbt = _Model(tbt, TbtFit())


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
            fits.prefill.fit.observe(length, cached, r.prefilled_s - r.begun_s)
            if fits.prefill.refit():
                self._fleet.set_cost(d.prefill, fits.prefill.live)
        fits = self._fits.get(d.decode) if d.decode_slot in current else None
        if fits and outcome.tpot_s and r.batch_seen:
            fits.tbt.fit.observe(r.batch_seen, r.kv_seen, outcome.tpot_s)
            if fits.tbt.refit():
                self._fleet.set_tbt(d.decode, fits.tbt.live)

    def prefill(self, node: NodeId) -> FitState:
        """How the node's prefill is predicted; KeyError for an unknown node."""
        return self._fits[node].prefill.state()

    def tbt(self, node: NodeId) -> FitState:
        """How its time between tokens is predicted; KeyError for an unknown node."""
        return self._fits[node].tbt.state()

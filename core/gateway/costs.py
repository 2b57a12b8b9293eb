"""How well a node's costs are predicted: what its cost models rest on, and their error.

`GET /nodes/{id}/cost` and the Prometheus family `conductor_cost_error` tell the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fastapi import APIRouter
from prometheus_client.core import GaugeMetricFamily, Metric

from core import wire
from core.conductor import Conductor
from core.domain import NodeId
from core.plan.calibration import FitState

if TYPE_CHECKING:
    from core.gateway.service import Service


def cost_routes(service: Service) -> APIRouter:
    """The route, to be mounted under the API's prefix."""
    router = APIRouter(tags=["nodes"])

    @router.get("/nodes/{node}/cost")
    async def cost(node: str) -> wire.CostView:
        service.conductor.fleet.slot(NodeId(node))  # NotFound for an unknown id
        fits = service.conductor.calibration
        return wire.CostView(
            prefill=fit_view(fits.prefill(NodeId(node))), tbt=fit_view(fits.tbt(NodeId(node)))
        )

    return router


def fit_view(s: FitState) -> wire.FitView:
    """One cost model; errors that are not known yet are None."""
    return wire.FitView(
        source=s.source.value,
        observations=s.observations,
        coefficients=list(s.coefficients),
        error=_known(s.error),
        profile_error=_known(s.prior_error),
    )


def _known(error: float) -> float | None:
    return error if math.isfinite(error) else None


def cost_families(conductor: Conductor) -> Iterator[Metric]:
    """Prometheus families; nodes that have nothing to compare with yet are left out."""
    family = GaugeMetricFamily(
        "conductor_cost_error",
        "Median relative error of a node's predicted times (GET /nodes/{id}/cost)",
        labels=["node", "model", "source"],
    )
    fits = conductor.calibration
    for spec in conductor.fleet.nodes():
        for model, state in (("prefill", fits.prefill(spec.id)), ("tbt", fits.tbt(spec.id))):
            if math.isfinite(state.error):
                family.add_metric([spec.id, model, state.source.value], state.error)
    yield family

"""Feeds the forecast with what arrives, and hands what it expects to the conductor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.domain import Decision, Rejection
from core.plan.forecast import STEP_S, Forecaster, Key
from core.slo_classes import tenant_class

if TYPE_CHECKING:
    from core.gateway.service import Service


class Forecasting:
    """One a service. `turn` is its job."""

    def __init__(self, service: Service) -> None:
        self._service = service
        conductor = service.conductor
        self.forecaster = Forecaster(conductor.tunables.forecast, service.clock.now())
        what = "close a step of arrivals, look ahead"
        service.jobs.add("forecast", self.turn, every_s=STEP_S, what=what)

    def arrived(self, decided: Decision | Rejection) -> None:
        """A request came and was decided on; further attempts are no arrivals."""
        request = decided.request
        if request.tried:
            return
        held = decided.reachable_tokens
        if isinstance(decided, Decision):
            held = decided.match_tokens
        classes = self._service.conductor.tunables.slo.classes
        key = Key(request.model, tenant_class(classes, request.model, request.tenant))
        self.forecaster.observe(key, max(request.prompt_tokens - held, 0))

    def turn(self) -> None:
        """One step: new rules start anew, the conductor learns what is expected."""
        service, now = self._service, self._service.clock.now()
        rules = service.conductor.tunables.forecast
        if rules != self.forecaster.rules:
            self.forecaster = Forecaster(rules, now)
        self.forecaster.tick(now)
        service.conductor.growth = self.forecaster.growth

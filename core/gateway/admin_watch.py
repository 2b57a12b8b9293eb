"""Admin routes of what watches the service: jobs, monitors, alerts."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Path, Query

from core import wire
from core.control.alert_rules import MONITORS, RULES
from core.control.alerts import Alert
from core.errors import Invalid
from core.gateway.hit_tally import OTHERS, Hits
from core.gateway.monitoring import KEPT, PERIOD_S
from core.identity.principal import author as acting
from core.plan.forecast import STEP_S
from core.ports import StoreWork

if TYPE_CHECKING:
    from core.gateway.service import Service

GROUPS_SHOWN = 20
_NAMES = tuple(m.name for m in MONITORS)


def watch_routes(service: Service) -> APIRouter:
    """All routes, to be mounted under the API's prefix."""
    router = APIRouter(tags=["watch"])

    @router.get("/jobs")
    async def jobs() -> wire.JobList:
        """Periodic work: what each job did last, and when it comes again."""
        return job_list(service)

    @router.get("/monitors")
    async def monitors() -> wire.MonitorList:
        """Every monitor now, with the nodes and prefix groups behind the hit."""
        return monitor_list(service)

    @router.get("/monitors/series")
    async def series(
        name: Annotated[list[str] | None, Query(max_length=len(_NAMES))] = None,
        points: Annotated[int, Query(ge=1, le=KEPT)] = KEPT,
    ) -> wire.MonitorSeries:
        """The last hour of some monitors (default: all), a sample every five seconds."""
        return monitor_series(service, name or list(_NAMES), points)

    @router.get("/forecast")
    async def forecast() -> wire.ForecastView:
        """What is expected soon, by model and class, and how good such forecasts were."""
        return forecast_view(service)

    @router.get("/alerts")
    async def alerts() -> wire.AlertList:
        """Every alert rule and how it stands, firing ones first."""
        hook = service.webhook
        return wire.AlertList(
            alerts=[alert_view(a) for a in service.monitoring.board.alerts()],
            webhook=wire.WebhookView(
                on=hook.on,
                sent=hook.sent,
                failures=hook.failures,
                given_up=hook.given_up,
                waiting=hook.waiting,
                last_error=hook.last_error,
            ),
        )

    @router.post("/alerts/{name}/acknowledge")
    async def acknowledge(
        name: Annotated[str, Path(max_length=64)], asked: wire.AlertNote
    ) -> wire.AlertView:
        """Say that somebody knows of a pending or firing alert; it ends with the alert."""
        who = acting(asked.author)
        alert = await service.monitoring.acknowledge(name, author=who, note=asked.note)
        return alert_view(alert)

    return router


def job_list(service: Service) -> wire.JobList:
    """GET /jobs."""
    kept = wire.JobView.model_fields.keys()
    jobs = [
        wire.JobView(**{k: v for k, v in asdict(s).items() if k in kept})
        for s in service.jobs.states()
    ]
    return wire.JobList(jobs=[*jobs, *_store_jobs(service)])


def _store_jobs(service: Service) -> list[wire.JobView]:
    """What the record store's own thread does."""
    if service.store_upkeep is None:
        return []
    upkeep = service.store_upkeep()
    work = {name: upkeep.work.get(name, StoreWork()) for name in ("alive", "roll_up", "retention")}
    return [
        wire.JobView(
            name=f"store.{name}",
            what=what,
            kind="loop",
            every_s=every_s,
            runs=work[name].runs,
            failures=work[name].failures,
            last_at=datetime.fromtimestamp(at_s, UTC) if at_s else None,
            last_error=work[name].last_error,
        )
        for name, what, every_s, at_s in (
            ("alive", "say that this process is alive", 5.0, upkeep.beat_at_s),
            ("roll_up", "add stored decisions up", 10.0, upkeep.rolled_at_s),
            ("retention", "delete what is too old", 3600.0, upkeep.cleaned_at_s),
        )
    ]


def monitor_list(service: Service) -> wire.MonitorList:
    """GET /monitors."""
    now, watch = service.clock.now(), service.monitoring
    values = watch.values(now, {})
    alerts, limits = service.conductor.tunables.alerts, _limits()
    views = []
    for m in MONITORS:
        name, field = limits.get(m.name, ("", ""))
        limit = float(getattr(alerts, field)) if field else None
        views.append(
            wire.MonitorView(
                name=m.name, unit=m.unit, doc=m.doc, value=values[m.name], alert=name, limit=limit
            )
        )
    groups = list(watch.hits.groups(now).items())[:GROUPS_SHOWN]
    return wire.MonitorList(
        at=service.clock.wall(),
        monitors=views,
        products=watch.products(now),
        nodes=[_hits(node, hits) for node, hits in watch.hits.nodes(now).items()],
        groups=[_hits("others" if g == OTHERS else f"{g:016x}", hits) for g, hits in groups],
    )


def monitor_series(service: Service, names: list[str], points: int) -> wire.MonitorSeries:
    """GET /monitors/series; Invalid names a monitor that is none."""
    for name in names:
        if name not in _NAMES:
            raise Invalid(f"name: no monitor {name!r}; there are {', '.join(_NAMES)}", field="name")
    kept = list(service.monitoring.samples)[-points:]
    return wire.MonitorSeries(
        names=names,
        step_s=PERIOD_S,
        points=[
            wire.MonitorPoint(at=s.at, values=[s.values.get(name) for name in names]) for s in kept
        ],
    )


def forecast_view(service: Service) -> wire.ForecastView:
    """GET /forecast."""
    found = service.forecasting.forecaster
    _, tokens = found.total
    return wire.ForecastView(
        at=service.clock.wall(),
        enabled=found.rules.enabled,
        step_s=STEP_S,
        horizon_s=found.horizon_steps * STEP_S,
        growth=service.conductor.growth,
        in_use=found.rules.enabled and tokens.beats_persistence,
        series=[
            wire.ForecastSeries(
                model=key.model,
                tenant_class=key.tenant_class,
                quantity=what,
                now_per_s=track.last,
                expected_per_s=track.expected,
                error_per_s=track.error if track.compared else None,
                persistence_error_per_s=track.persistence_error if track.compared else None,
                compared=track.compared,
                beats_persistence=track.beats_persistence,
            )
            for key, what, track in found.tracks()
        ],
    )


def _limits() -> dict[str, tuple[str, str]]:
    """By monitor, the rule that watches it and the tunable it is compared with."""
    second = {r.also: (r.name, r.also_limit) for r in RULES if r.also}
    return second | {r.monitor: (r.name, r.limit) for r in RULES}


def alert_view(alert: Alert) -> wire.AlertView:
    """One alert."""
    rule, ack = alert.rule, alert.acknowledged
    return wire.AlertView(
        name=rule.name,
        severity=rule.severity,
        state=alert.state.value,
        summary=rule.summary,
        monitor=rule.monitor,
        limit=alert.limit,
        below=rule.below,
        for_s=rule.for_s,
        also=rule.also,
        also_limit=alert.also_limit if rule.also else None,
        value=alert.value,
        worst=alert.worst,
        since=alert.since,
        fired_at=alert.fired_at,
        resolved_at=alert.resolved_at,
        evidence=dict(alert.evidence),
        acknowledged=None if ack is None else wire.AcknowledgementView(**asdict(ack)),
    )


def _hits(name: str, hits: Hits) -> wire.HitView:
    return wire.HitView(
        name=name,
        requests=hits.requests,
        prompt_tokens=hits.prompt_tokens,
        match_tokens=hits.match_tokens,
        hit=hits.share,
    )

"""Answers of the admin API that are read from the live state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from core import wire
from core.control.alerts import AlertState
from core.control.revisions import Kind
from core.domain import NodeId
from core.gateway.live import STEP_S, Bucket
from core.gateway.views import FleetViews, breaker_view, quantiles, totals
from core.policy import get_policy, policy_names
from core.tunables import leaves

if TYPE_CHECKING:
    from core.gateway.service import Service

_LADDER = "signal."


def fleet_state(service: Service) -> wire.FleetState:
    """GET /state."""
    conductor, now = service.conductor, service.clock.now()
    nodes = node_views(service)
    return wire.FleetState(
        at=service.clock.wall(),
        policy=conductor.policy.name,
        policy_formula=conductor.policy.doc.strip(),
        revision=conductor.revision,
        totals=totals(conductor, service.live, nodes, now),
        service=service_view(service),
        nodes=nodes,
        models=list(service.names.table()),
        problems=service.problems(),
        alerts=_firing(service),
        breaker=breaker_view(conductor.detector.breaker.switch, now),
    )


def _firing(service: Service) -> list[wire.FiringAlert]:
    return [
        wire.FiringAlert(
            name=alert.rule.name,
            severity=alert.rule.severity,
            acknowledged=alert.acknowledged is not None,
        )
        for alert in service.monitoring.board.alerts()
        if alert.state is AlertState.FIRING
    ]


def node_views(service: Service) -> list[wire.NodeView]:
    """Every node."""
    return fleet_views(service).nodes()


def node_view(service: Service, node: NodeId) -> wire.NodeView:
    """One node; NotFound for an unknown id."""
    fleet = service.conductor.fleet
    return fleet_views(service).node(fleet.slot(node), fleet.spec(node))


def fleet_views(service: Service) -> FleetViews:
    """The views of the fleet's nodes at this moment."""
    return FleetViews(
        service.conductor,
        service.live,
        service.clock.now(),
        notes=service.node_notes,
        lifecycle=service.lifecycle,
    )


def service_view(service: Service) -> wire.ServiceView:
    """The process itself."""
    upkeep, counters = service.upkeep, service.record_counters()
    decide = service.live.window(service.clock.now(), 60.0).decide
    ladder = {
        name.removeprefix(_LADDER): count
        for name, count in service.counters.items()
        if name.startswith(_LADDER)
    }
    others = {n: float(c) for n, c in service.counters.items() if not n.startswith(_LADDER)}
    return wire.ServiceView(
        version=service.version,
        started_at=service.started_at,
        uptime_s=service.clock.now() - service.started_s,
        loop_lag_ms=upkeep.lag_s * 1e3,
        loop_lag_max_ms=upkeep.worst_lag_s * 1e3,
        decision_p50_us=decide.quantile(0.5) * 1e6 if decide.count else None,
        decision_p99_us=decide.quantile(0.99) * 1e6 if decide.count else None,
        records_queued=counters.queued if counters else 0,
        records_dropped=counters.dropped if counters else 0,
        records_written=counters.written if counters else 0,
        store_ok=counters.available if counters else service.store is not None,
        store_error=counters.last_error if counters else "",
        degradation=ladder,
        counters=others
        | {
            "flights": float(len(service.flights)),
            "flights_peak": float(service.flights.peak),
            "reservations_elsewhere": float(len(service.elsewhere)),
            "repeated_closes": float(service.conductor.ledger.repeated_closes),
            "void_releases": float(service.conductor.ledger.void_releases),
        }
        | {f"prompts.{name}": float(count) for name, count in service.prompts.counts.items()},
    )


class States:
    """GET /state, encoded once for all who ask within `FRESH_S`, until an act may change it.

    Every token has a poller of its own in the console, and a fleet of hundreds of nodes takes
    some milliseconds of the event loop each time.
    """

    FRESH_S = 0.25

    def __init__(self, service: Service) -> None:
        self._service = service
        self._at_s = math.inf
        self._encoded = b""

    def encoded(self) -> bytes:
        """The answer as JSON."""
        now = self._service.clock.now()
        if not 0 < now - self._at_s < self.FRESH_S:
            self._encoded = fleet_state(self._service).model_dump_json().encode()
            self._at_s = now
        return self._encoded

    def forget(self) -> None:
        """Something was changed on purpose: whoever asks next must see it."""
        self._at_s = math.inf


class LivePoints:
    """The ring as the API tells it. A step that is over does not change: it is told once."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._over: dict[float, wire.SeriesPoint] = {}

    def series(self) -> wire.Series:
        """GET /series?window=live: the ring, oldest first."""
        clock, slo = self._service.clock, self._service.conductor.tunables.slo
        now, wall = clock.now(), clock.wall()
        *over, filling = self._service.live.buckets(now)

        def point(b: Bucket) -> wire.SeriesPoint:
            return _point(b, wall - timedelta(seconds=now - b.start_s))

        self._over = {b.start_s: self._over.get(b.start_s) or point(b) for b in over}
        return wire.Series(
            window="live",
            step_s=STEP_S,
            points=[*self._over.values(), point(filling)],
            ttft_slo_s=slo.ttft_s,
            tbt_slo_s=slo.tbt_s,
        )


def _point(b: Bucket, at: datetime) -> wire.SeriesPoint:
    return wire.SeriesPoint(
        at=at,
        requests=b.decisions,
        rejected=b.rejected,
        finished=b.finished,
        errors=b.errors,
        aborted=b.aborted,
        good=b.good,
        ttft_s=quantiles(b.ttft),
        tbt_s=quantiles(b.tbt),
        hit_achieved=b.hit_achieved,
        hit_reachable=b.hit_reachable,
        hit_reported=b.hit_reported,
        prompt_tokens=b.prompt_tokens,
        output_tokens=b.output_tokens,
        inflight=b.inflight,
        queued_tokens=b.queued_tokens,
        per_node={str(node): n for node, n in b.per_node.items()},
        load={str(node): load for node, load in b.load.items()},
    )


def tunables_view(service: Service) -> wire.TunablesView:
    """GET /tunables."""
    live = service.conductor
    return wire.TunablesView(
        revision=live.revision,
        policy=live.policy.name,
        items=[
            wire.TunableView(
                path=leaf.path,
                value=leaf.value,
                default=leaf.default,
                unit=leaf.unit,
                doc=leaf.doc,
                source=leaf.source,
                low=leaf.low,
                high=leaf.high,
                choices=_choices(leaf.path, leaf.choices),
            )
            for leaf in leaves(live.tunables)
        ],
        history=[
            wire.RevisionView(
                revision=r.number,
                base=r.base,
                at=r.at,
                author=r.author,
                reason=r.reason,
                changes={path: list(pair) for path, pair in r.changes.items()},
            )
            for r in service.control.book.history()
            if r.kind is not Kind.CANARY
        ],
    )


def policy_list(service: Service) -> wire.PolicyList:
    """GET /policies."""
    found = [get_policy(name) for name in policy_names()]
    return wire.PolicyList(
        live=service.conductor.policy.name,
        policies=[
            wire.PolicyView(
                name=p.name,
                sense=p.sense,
                source=p.source,
                formula=p.doc.strip(),
                leaves_out=p.leaves_out,
            )
            for p in found
        ],
    )


def _choices(path: str, choices: Sequence[Any]) -> list[Any]:
    return list(policy_names()) if path == "policy" else list(choices)

"""Samples the service's monitors, keeps an hour of them, and evaluates the alerts."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from core.control.alert_rules import MONITORS
from core.control.alerts import Alert, AlertBoard, AlertState, Moved
from core.control.guard import FIVE_MIN_S, HALF_HOUR_S, HOUR_S, SIX_HOURS_S, Tally
from core.domain import Decision, Health
from core.errors import Conflict
from core.fleet.hotspot import Heat
from core.fleet.trust import Standing
from core.gateway.committed import Act, Cause
from core.gateway.hit_tally import HitTally
from core.plan.prefill import fleet_load

if TYPE_CHECKING:
    from core.gateway.service import Service

PERIOD_S = 5.0
KEPT = 720
"""Samples: an hour."""
THREE_DAYS_S = 3 * 86_400.0
_LONG_STEP_S = 300.0
_WINDOW_S = 60.0
_AT_ONCE_S = 0.1
"""A first token within it seems instantaneous (Nielsen, Usability Engineering, 1993, ch. 5)."""
_NAMED = 5
"""Nodes that evidence names."""
_BUSY_REQUESTS = 20
"""In the last minute, before a node's hit share is compared with others'."""
_REACHABLE_MIN = 0.05
"""Below this reachable share there is nothing to miss."""
_BELIEVED = frozenset({Standing.LIVE, Standing.HISTORY, Standing.OFF})
"""Standings of signals that are believed, or that nobody configured."""


@dataclass(frozen=True, slots=True)
class Sample:
    """All monitors at one moment; None where there is nothing to say."""

    at: datetime
    values: Mapping[str, float | None]


class Monitoring:
    """One a service. `sample` is its job."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.board = AlertBoard()
        self.hits = HitTally()
        self.samples: deque[Sample] = deque(maxlen=KEPT)
        self._short = Tally()
        self._long = Tally(step_s=_LONG_STEP_S, span_s=THREE_DAYS_S)
        self._doubted_since: dict[str, float] = {}
        self._drops: deque[tuple[float, int]] = deque(maxlen=int(FIVE_MIN_S / PERIOD_S) + 1)
        self._firings: deque[float] = deque(maxlen=1024)

    # -- what happens ----------------------------------------------------------------------

    def placed(self, d: Decision, now: float) -> None:
        """A request was placed."""
        group = self._service.conductor.group(d.request.keys)
        self.hits.placed(d.prefill, group, d.request.prompt_tokens, d.match_tokens, now)

    def ended(self, now: float, bad: bool, error: bool) -> None:
        """A request ended, or was refused by us."""
        self._short.add(now, bad=bad, error=error)
        self._long.add(now, bad=bad, error=error)

    def fired(self, now: float) -> None:
        """The hotspot detector's second stage fired."""
        self._firings.append(now)

    # -- sampling --------------------------------------------------------------------------

    def sample(self) -> None:
        """Read every monitor, keep the sample, evaluate the alerts and tell what changed."""
        service, now = self._service, self._service.clock.now()
        at = service.clock.wall()
        evidence: dict[str, dict[str, object]] = {}
        values = self.values(now, evidence)
        self.samples.append(Sample(at, values))
        limits = service.conductor.tunables.alerts
        for moved in self.board.evaluate(values, limits, now, at, evidence=evidence):
            self._tell(moved)

    def values(self, now: float, evidence: dict[str, dict[str, object]]) -> dict[str, float | None]:
        """Every monitor now; `evidence` gets what stands behind values, by monitor."""
        found: dict[str, float | None] = dict.fromkeys((m.name for m in MONITORS), None)
        found.update(self._balance(now, evidence))
        found.update(self._hit(now, evidence))
        found.update(self._decisions(now, evidence))
        found.update(self._burn(now, evidence))
        found.update(self._process(now, evidence))
        return found

    def _balance(self, now: float, evidence: dict[str, dict[str, object]]) -> dict[str, Any]:
        conductor = self._service.conductor
        products = self.products(now)
        values = np.array(list(products.values()))
        mean = float(values.mean()) if len(values) else 0.0
        if mean > 0:
            busiest = max(products, key=lambda n: products[n])
            evidence["product_cv"] = {"busiest": busiest, "nodes": len(products)}
        groups = conductor.detector.groups(now)
        hot = [g for g in groups if g.heat is not Heat.CALM]
        firings = sum(at > now - _WINDOW_S for at in self._firings)
        evidence["firings"] = {"groups": [f"{g.group:016x}" for g in hot[:3]]}
        return {
            "product_cv": float(values.std()) / mean if mean > 0 else 0.0,
            "product_max": float(values.max()) / mean if mean > 0 else 1.0,
            "firings": float(firings),
            "hot_groups": float(len(hot)),
            "panic": float(conductor.breakers.panic),
        }

    def products(self, now: float) -> dict[str, float]:
        """P-token x BS by live prefill node: uncached tokens queued times the batch."""
        conductor = self._service.conductor
        fleet, batch = conductor.fleet, fleet_load(conductor.fleet, conductor.tunables, now).batch
        return {
            spec.id: float(fleet.queued_tokens[slot] * max(batch[slot], 1.0))
            for slot, spec in fleet.slots()
            if fleet.prefills[slot] and fleet.healthy[slot]
        }

    def _hit(self, now: float, evidence: dict[str, dict[str, object]]) -> dict[str, Any]:
        live = self._service.live.window(now, _WINDOW_S)
        nodes, groups = self.hits.nodes(now), self.hits.groups(now)
        busy = {n: h.share for n, h in nodes.items() if h.requests >= _BUSY_REQUESTS}
        spread = None
        if len(busy) > 1:
            best, worst = max(busy, key=busy.__getitem__), min(busy, key=busy.__getitem__)
            spread = busy[best] - busy[worst]
            evidence["hit_spread"] = {"best": best, "worst": worst}
        achieved, reachable = live.hit_achieved, live.hit_reachable
        ratio = None
        if achieved is not None and reachable is not None and reachable >= _REACHABLE_MIN:
            ratio = achieved / reachable
            evidence["hit_ratio"] = {"achieved": achieved, "reachable": reachable}
        matched = sum(h.match_tokens for h in groups.values())
        top = next(iter(groups.values())).match_tokens / matched if matched else None
        return {
            "hit_achieved": achieved,
            "hit_reachable": reachable,
            "hit_ratio": ratio,
            "hit_spread": spread,
            "group_share": top,
            "decision_p99": live.decide.quantile(0.99) if live.decide.count else None,
        }

    def _decisions(
        self, now: float, evidence: dict[str, dict[str, object]]
    ) -> dict[str, float | None]:
        """A slow decision's share of the time in which a first token seems to come at once. Of few
        decisions the slowest hundredth is one or two: chance, and the machine's."""
        live = self._service.live.window(now, FIVE_MIN_S)
        if live.decide.count < self._service.conductor.tunables.alerts.decisions_min:
            return {"decision_felt": None}
        p99_s, ttft_s = live.decide.quantile(0.99), live.ttft.quantile(0.5)
        evidence["decision_felt"] = {
            "decisions": live.decide.count,
            "decision_p99_s": round(p99_s, 6),
            "ttft_p50_s": round(ttft_s, 6) if live.ttft.count else None,
        }
        return {"decision_felt": p99_s / _AT_ONCE_S}

    def _burn(self, now: float, evidence: dict[str, dict[str, object]]) -> dict[str, Any]:
        service = self._service
        t, short = service.conductor.tunables, self._short
        found: dict[str, Any] = {}
        for name, long_s, short_s, long in (
            ("burn_fast", HOUR_S, FIVE_MIN_S, short),
            ("burn_slow", SIX_HOURS_S, HALF_HOUR_S, short),
            ("burn_long", THREE_DAYS_S, SIX_HOURS_S, self._long),
        ):
            wide, narrow = long.window(now, long_s), short.window(now, short_s)
            # One bad request alone would burn a month's budget until a hundred good ones came.
            enough = narrow.total >= t.alerts.sample_min and narrow.bad != 1
            rates = [c.burn(t.guard.objective) if enough else 0.0 for c in (wide, narrow)]
            young = now - service.started_s < short_s
            found[name] = None if young and not enough else min(rates)
            evidence[name] = {
                "long": [wide.total, wide.bad, wide.errors],
                "short": [narrow.total, narrow.bad, narrow.errors],
                "long_rate": rates[0],
                "short_rate": rates[1],
                "objective": t.guard.objective,
            }
        return found

    def _process(self, now: float, evidence: dict[str, dict[str, object]]) -> dict[str, Any]:
        service = self._service
        counters = service.record_counters()
        lost = self._signal_lost(now, evidence)
        dead = self._dead(evidence)
        found: dict[str, Any] = {"signal_lost": lost, "nodes_dead": dead}
        found["loop_lag"] = service.upkeep.worst_lag_s
        audit = service.audit_watch
        found["audit_broken"] = audit.broken
        if audit.fault is not None:
            facts = {"entry": audit.fault.number, "what": audit.fault.what}
            evidence["audit_broken"] = {**facts, "checked": audit.checked}
        if counters is not None:
            self._drops.append((now, counters.dropped))
            found["records_dropped"] = float(counters.dropped - self._drops[0][1])
            if counters.spool_bytes_max:
                found["spool"] = counters.spool_bytes / counters.spool_bytes_max
            evidence["spool"] = {"rows": counters.spooled, "error": counters.last_error}
            evidence["records_dropped"] = {"total": counters.dropped, "error": counters.last_error}
        return found

    def _dead(self, evidence: dict[str, dict[str, object]]) -> float:
        """Nodes that do not answer, without those that an operator took out of service."""
        fleet = self._service.conductor.fleet
        dead = [
            spec.id
            for slot, spec in fleet.slots()
            if spec.url and fleet.health(spec.id) is Health.DEAD and not fleet.draining[slot]
        ]
        if dead:
            evidence["nodes_dead"] = {"dead": dead[:_NAMED]}
        return float(len(dead))

    def _signal_lost(self, now: float, evidence: dict[str, dict[str, object]]) -> float:
        """How long the worst live node's cache signal has not been believed, in seconds."""
        conductor = self._service.conductor
        fleet = conductor.fleet
        doubted = {
            spec.id
            for slot, spec in fleet.slots()
            if conductor.trust.node(slot).standing not in _BELIEVED
            and fleet.health(spec.id) is Health.HEALTHY
        }
        for node in [n for n in self._doubted_since if n not in doubted]:
            del self._doubted_since[node]
        for node in doubted:
            self._doubted_since.setdefault(node, now)
        if not self._doubted_since:
            return 0.0
        node, since = min(self._doubted_since.items(), key=lambda kv: (kv[1], kv[0]))
        evidence["signal_lost"] = {"node": node, "nodes": len(self._doubted_since)}
        return now - since

    # -- alerts ----------------------------------------------------------------------------

    async def acknowledge(self, name: str, *, author: str, note: str) -> Alert:
        """Say that somebody knows of an alert; told and kept like every act.

        NotFound; Conflict where it is not pending or firing; StoreError, and nothing is said.
        """

        async def do() -> None:
            with contextlib.suppress(Conflict):  # over while it was stored: so is the word
                at = self._service.clock.wall()
                self.board.acknowledge(name, author=author, at=at, note=note)

        def check() -> Act:
            alert = self.board.open(name)
            data = {"alert": name, "actor": author, "note": note, "state": alert.state.value}
            return Act(do=do, events=(("alert.acknowledged", "", data),))

        cause = Cause(action="alert.acknowledge", target=name, reason=note)
        await self._service.committer.run(cause, check)
        return self.board.get(name)

    def _tell(self, moved: Moved) -> None:
        alert = moved.alert
        if alert.state is AlertState.INACTIVE:
            return
        data = {
            "alert": alert.rule.name,
            "severity": alert.rule.severity,
            "summary": alert.rule.summary,
            "before": moved.before.value,
            **alert.evidence,
        }
        self._service.counters[f"alert.{alert.state.value}"] += 1
        self._service.record_event(f"alert.{alert.state.value}", "", data)
        at = self._service.clock.wall()
        self._service.webhook.put({"at": at, "state": alert.state.value, **data})

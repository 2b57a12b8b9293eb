"""From live state to the admin API's schemas. Pure: reads, never changes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from core import wire
from core.conductor import Conductor
from core.domain import Health, NodeId, NodeSpec, Slot, Trust
from core.fleet.switch import Switch
from core.gateway.lifecycle import Lifecycle
from core.gateway.live import STEP_S, Live, LogHistogram, NodeWindow
from core.plan.prefill import fleet_load

TOTALS_WINDOW_S = 60.0


class FleetViews:
    """Node views of one moment; shared arrays are read once."""

    def __init__(
        self,
        conductor: Conductor,
        live: Live,
        now: float,
        *,
        notes: Mapping[NodeId, Sequence[str]],
        lifecycle: Lifecycle,
    ) -> None:
        self._conductor = conductor
        self._now = now
        self._columns = fleet_load(conductor.fleet, conductor.tunables, now)
        self._allowed = conductor.breakers.allowed(now)
        self._blocks = conductor.index.stats().blocks
        self._windows = live.node_windows(now)
        self._placed = live.total.per_node
        self._notes = notes
        self._lifecycle = lifecycle

    def nodes(self) -> list[wire.NodeView]:
        """All nodes by slot."""
        return [self.node(slot, spec) for slot, spec in self._conductor.fleet.slots()]

    def node(self, slot: Slot, spec: NodeSpec) -> wire.NodeView:
        """One node."""
        fleet, trust = self._conductor.fleet, self._conductor.trust
        health = fleet.health(spec.id)
        window = self._windows.get(spec.id, NodeWindow())
        blocks = self._blocks.get(slot, 0)
        return wire.NodeView(
            id=spec.id,
            url=spec.url,
            engine=spec.engine,
            role=spec.role,
            models=list(spec.models),
            adapters=dict(spec.adapters),
            block_size=spec.block_size,
            kv_capacity_tokens=spec.kv_capacity_tokens,
            context_tokens_max=spec.context_tokens_max,
            batch_max=spec.batch_max,
            queue_max=spec.queue_max,
            profile=spec.profile,
            speed=spec.speed,
            place=wire.PlaceView(host=spec.place.host, rack=spec.place.rack, zone=spec.place.zone),
            links=list(spec.links),
            events=spec.events is not None,
            dp_rank=spec.dp_rank,
            tenants=sorted(spec.tenants),
            kv_transfer=spec.kv_transfer,
            kv_dtype=spec.kv_dtype,
            can_fetch=spec.can_fetch,
            weight=spec.weight,
            health=health,
            trust=trust.trust(slot),
            trust_reason=trust.node(slot).standing.value,
            draining=bool(fleet.draining[slot]),
            drain=self._lifecycle.drain_view(spec.id),
            note=self._lifecycle.note(spec.id),
            eligible=self.eligible(slot),
            generation=int(fleet.generation[slot]),
            breaker=breaker_view(self._conductor.breakers.switch(slot), self._now),
            load=self._load(slot),
            cached_blocks=blocks,
            cached_tokens=blocks * spec.block_size,
            decisions=self._placed.get(spec.id, 0),
            ttft_p50_s=_quantile(window.ttft, 0.5),
            ttft_p99_s=_quantile(window.ttft, 0.99),
            hit_reported=(
                window.cached_tokens / window.prompt_tokens if window.prompt_tokens else None
            ),
            warnings=self._warnings(slot, spec, health),
        )

    def eligible(self, slot: Slot) -> bool:
        """Whether a new request could go there now."""
        fleet = self._conductor.fleet
        return bool(fleet.healthy[slot] and not fleet.draining[slot] and self._allowed[slot])

    def _load(self, slot: Slot) -> wire.NodeLoad:
        fleet, c = self._conductor.fleet, self._columns
        age = self._now - float(fleet.telemetry_at_s[slot])
        told = math.isfinite(age)
        return wire.NodeLoad(
            load=round(float(c.load[slot]), 4),
            queued_tokens=float(fleet.queued_tokens[slot]),
            batch=float(c.batch[slot]),
            queue_s=float(c.wait_s[slot]),
            inflight=self._conductor.ledger.inflight(slot),
            decoding=int(fleet.decoding[slot]),
            decoding_tokens=float(fleet.kv_tokens[slot]),
            running=int(fleet.running[slot]) if told else None,
            waiting=int(fleet.waiting[slot]) if told else None,
            kv_usage=float(fleet.kv_usage[slot]) if told else None,
            telemetry_age_s=round(age, 3) if told else None,
        )

    def _warnings(self, slot: Slot, spec: NodeSpec, health: Health) -> list[str]:
        found = list(self._notes.get(spec.id, ()))
        conductor = self._conductor
        if conductor.trust.trust(slot) in (Trust.DEGRADED, Trust.OFF):
            standing = conductor.trust.node(slot).standing.value
            found.append(f"its cache signal earns no credit ({standing})")
        age = self._now - float(conductor.fleet.telemetry_at_s[slot])
        if health is Health.HEALTHY and age > 5 * conductor.tunables.load.stale_after_s:
            found.append("no reading of its metrics lately")
        return found


def breaker_view(switch: Switch, now: float) -> wire.BreakerView:
    """A node's breaker or the global one."""
    return wire.BreakerView(
        state=switch.state.value,
        reason=switch.reason,
        actor=switch.actor,
        manual=bool(switch.actor or switch.reason),
        until_s=None if switch.until_s is None else max(switch.until_s - now, 0.0),
        streak=switch.streak,
    )


def totals(conductor: Conductor, live: Live, nodes: list[wire.NodeView], now: float) -> wire.Totals:
    """The fleet in one line."""
    slo = conductor.tunables.slo
    b = live.window(now, TOTALS_WINDOW_S)
    seconds = max(min(now - live.total.start_s, now - b.start_s), STEP_S)
    ttft, tbt = quantiles(b.ttft), quantiles(b.tbt)
    ended = b.finished - b.aborted
    return wire.Totals(
        nodes=len(nodes),
        healthy=sum(n.health is Health.HEALTHY for n in nodes),
        eligible=sum(n.eligible for n in nodes),
        draining=sum(n.draining for n in nodes),
        ejected=sum(n.breaker.state in ("open", "half_open", "tripped") for n in nodes),
        panic=conductor.breakers.panic,
        inflight=len(conductor.ledger.open),
        running=sum(n.load.running or 0 for n in nodes),
        waiting=sum(n.load.waiting or 0 for n in nodes),
        queued_tokens=sum(n.load.queued_tokens for n in nodes),
        cached_blocks=sum(n.cached_blocks for n in nodes),
        decisions=live.total.decisions,
        rejections=live.total.rejected,
        requests_per_s=b.decisions / seconds,
        rejected_share=b.rejected / b.decisions if b.decisions else None,
        error_share=b.errors / ended if ended else None,
        ttft_s=ttft,
        tbt_s=tbt,
        ttft_slo_s=slo.ttft_s,
        tbt_slo_s=slo.tbt_s,
        ttft_margin=margin(ttft, slo.ttft_s),
        tbt_margin=margin(tbt, slo.tbt_s),
        hit_achieved=b.hit_achieved,
        hit_reachable=b.hit_reachable,
        hit_reported=b.hit_reported,
        goodput_per_s=b.good / seconds,
    )


def margin(found: wire.Quantiles | None, limit_s: float) -> float | None:
    """SLO margin of the 99th percentile: (limit - p99) / limit."""
    return None if found is None else (limit_s - found.p99) / limit_s


def quantiles(h: LogHistogram) -> wire.Quantiles | None:
    """Percentiles of a histogram; None when it is empty."""
    if not h.count:
        return None
    return wire.Quantiles(
        count=h.count,
        mean=h.mean,
        p50=h.quantile(0.5),
        p90=h.quantile(0.9),
        p99=h.quantile(0.99),
    )


def _quantile(h: LogHistogram, q: float) -> float | None:
    return h.quantile(q) if h.count else None

"""Prometheus metrics, read from the service's own counters when asked. Labels are bounded.

Nothing is counted twice: the hot path adds to plain counters and histograms of the service, and
this module names them. Per-node series are bounded by the fleet; models, tenants and clients
never become labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector, CollectorRegistry

from core.domain import Health
from core.gateway.costs import cost_families
from core.gateway.live import LogHistogram, bin_floor
from core.gateway.record_metrics import record_metrics
from core.gateway.signals import signal_families
from core.gateway.watch_metrics import watch_families
from core.plan.prefill import fleet_load

if TYPE_CHECKING:
    from core.gateway.service import Service

LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
DECISION_S = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 1e-1)
_GROUPS = {
    "outcome": ("conductor_outcomes", "Ended requests by outcome", "kind"),
    "rejected": ("conductor_rejections", "Requests not placed, by code", "code"),
    "signal": ("conductor_decisions_by_signal", "Decisions by rung of degradation", "signal"),
    "retries": ("conductor_retries", "Further attempts: free, budgeted, or refused", "budget"),
    "migration": ("conductor_migrations", "Copies of hot prefixes by state reached", "state"),
    "coming": ("conductor_coming", "Tokens credited while under way, and those reused", "tokens"),
    "admin_requests": (
        "conductor_admin_requests",
        "Calls of the admin API by route below it",
        "route",
    ),
    "transition": ("conductor_transitions", "State changes of breakers, trust, health", "change"),
}


def registry_of(service: Service) -> CollectorRegistry:
    """A registry of this service alone."""
    registry = CollectorRegistry()
    registry.register(ServiceCollector(service))
    return registry


class ServiceCollector(Collector):
    """Everything the service can say in numbers."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def describe(self) -> list[Metric]:
        """Nothing ahead of time: registering must not read the fleet."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families."""
        yield from self._totals()
        yield from self._groups()
        yield from self._histograms()
        yield from self._process()
        yield from record_metrics(self._service)
        yield from self._nodes()
        yield from watch_families(self._service)
        yield from signal_families(self._service.streams())
        yield from cost_families(self._service.conductor)

    def _totals(self) -> Iterator[Metric]:
        total = self._service.live.total
        for name, text, value in (
            ("decisions", "Scheduling decisions, rejections included", total.decisions),
            ("prompt_tokens", "Prompt tokens of placed requests", total.prompt_tokens),
            ("matched_tokens", "Prompt tokens held by the chosen nodes", total.match_tokens),
            ("reachable_tokens", "Best match anywhere", total.reachable_tokens),
            ("reported_prompt_tokens", "Of requests with reports", total.reported_prompt_tokens),
            ("cached_tokens", "Reused tokens as engines reported", total.cached_tokens),
            ("output_tokens", "Output tokens", total.output_tokens),
            ("good_requests", "Requests that met both latency limits", total.good),
        ):
            yield CounterMetricFamily(f"conductor_{name}", text, value=value)

    def _groups(self) -> Iterator[Metric]:
        families = {
            key: CounterMetricFamily(name, text, labels=[label])
            for key, (name, text, label) in _GROUPS.items()
        }
        other = CounterMetricFamily("conductor_events", "Everything else", labels=["event"])
        for name, value in sorted(self._service.counters.items()):
            group, _, rest = name.partition(".")
            if group in families:
                families[group].add_metric([rest], value)
            else:
                other.add_metric([name], value)
        yield from families.values()
        yield other

    def _histograms(self) -> Iterator[Metric]:
        total = self._service.live.total
        for name, text, found, edges in (
            ("ttft_seconds", "Time to first token", total.ttft, LATENCY_S),
            ("tbt_seconds", "Mean of a request's longest token gaps", total.tbt, LATENCY_S),
            ("decision_seconds", "Time one decision took", total.decide, DECISION_S),
            ("queue_wait_seconds", "Wait for a node", self._service.waiting.waits, LATENCY_S),
        ):
            family = HistogramMetricFamily(f"conductor_{name}", text)
            family.add_metric([], _buckets(found, edges), found.total)
            yield family

    def _process(self) -> Iterator[Metric]:
        service = self._service
        stats = service.conductor.index.stats()
        for name, text, value in (
            ("requests_in_flight", "Requests in the gateway", len(service.flights)),
            ("reservations_open", "Placed requests not ended", len(service.conductor.ledger.open)),
            ("reservations_elsewhere", "Of those, by /v1/schedule", len(service.elsewhere)),
            ("loop_lag_seconds", "Worst event loop lag of a minute", service.upkeep.worst_lag_s),
            ("index_entries", "Distinct blocks in the prefix index", stats.entries),
            ("index_bytes", "Estimated memory of the prefix index", stats.memory_bytes),
            ("revision", "Live revision of the tunables", service.conductor.revision),
            ("panic", "Breakers are being ignored", service.conductor.breakers.panic),
        ):
            yield GaugeMetricFamily(f"conductor_{name}", text, value=float(value))
        yield from self._moves()

    def _moves(self) -> Iterator[Metric]:
        moves = self._service.moves
        for name, text, value in (
            ("migrations_live", "Copies planned or running", len(moves.live)),
            ("queue_waiting", "Requests waiting for a node", len(self._service.waiting.queue)),
            ("prompts_coming", "Prompts under way that count", len(self._service.conductor.coming)),
            ("queue_bytes", "Bodies of those", self._service.waiting.queue.nbytes),
            ("prompt_memory_bytes", "Recent prompts kept for copies", moves.recent.nbytes),
        ):
            yield GaugeMetricFamily(f"conductor_{name}", text, value=float(value))
        for name, text in (
            ("moved_tokens", "Prefix tokens copied between nodes"),
            ("moved_bytes", "Bytes of KV copied between nodes"),
            ("computed_tokens", "Prefix tokens computed anew by copies"),
        ):
            yield CounterMetricFamily(f"conductor_migration_{name}", text, value=moves.totals[name])
        yield CounterMetricFamily(
            "conductor_prompts_coming_left_out",
            "Prompts under way beyond the bound",
            value=self._service.conductor.coming.left_out,
        )
        groups = CounterMetricFamily("conductor_pipelines", "Groups by fate", labels=["fate"])
        for fate in ("advised", "started", "fallbacks"):
            groups.add_metric([fate], self._service.pipelines.totals[fate])
        yield groups
        queued = CounterMetricFamily("conductor_queue", "Requests by fate", labels=["fate"])
        for fate in ("queued", "served", "expired", "full", "displaced"):
            queued.add_metric([fate], self._service.waiting.totals[fate])
        grouped = CounterMetricFamily(
            "conductor_batching", "Requests that waited to be grouped, and groups", labels=["what"]
        )
        for what, count in self._service.collector.totals.items():
            grouped.add_metric([what], count)
        yield grouped
        yield queued
        yield CounterMetricFamily(
            "conductor_prompt_memory_dropped", "Prompts forgotten", value=moves.recent.dropped
        )

    def _nodes(self) -> Iterator[Metric]:
        service = self._service
        conductor = service.conductor
        fleet = conductor.fleet
        columns = fleet_load(fleet, conductor.tunables, service.clock.now())
        blocks = conductor.index.stats().blocks
        gauges = {
            name: GaugeMetricFamily(f"conductor_node_{name}", text, labels=["node"])
            for name, text in _NODE_GAUGES.items()
        }
        placed = CounterMetricFamily(
            "conductor_node_decisions", "Decisions for the node", labels=["node"]
        )
        for slot, spec in fleet.slots():
            values: dict[str, float] = {
                "load": columns.load[slot],
                "queue_seconds": columns.wait_s[slot],
                "queued_tokens": fleet.queued_tokens[slot],
                "in_flight": conductor.ledger.inflight(slot),
                "cached_blocks": blocks.get(slot, 0),
                "healthy": fleet.health(spec.id) is Health.HEALTHY,
                "credited": conductor.trust.credited[slot],
            }
            for name, value in values.items():
                gauges[name].add_metric([spec.id], float(value))
            placed.add_metric([spec.id], service.live.total.per_node.get(spec.id, 0))
        yield from gauges.values()
        yield placed


_NODE_GAUGES = {
    "load": "load(n), 0..1",
    "queue_seconds": "Predicted wait for a new prompt",
    "queued_tokens": "Uncached prompt tokens reserved and not prefilled",
    "in_flight": "Requests reserved on the node",
    "cached_blocks": "Blocks the index lists for the node",
    "healthy": "1 where probes find it healthy",
    "credited": "1 where its cache signal is believed",
}


def _buckets(found: LogHistogram, edges: tuple[float, ...]) -> list[tuple[str, float]]:
    """Cumulative counts at `edges`; a bin that straddles an edge counts above it."""
    counts = [0.0] * (len(edges) + 1)
    for n, count in found.bins.items():
        top = bin_floor(n + 1)
        place = next((i for i, edge in enumerate(edges) if top <= edge * 1.000001), len(edges))
        counts[place] += count
    out, seen = [], 0.0
    for edge, inside in zip(edges, counts, strict=False):
        seen += inside
        out.append((f"{edge:g}", seen))
    return [*out, ("+Inf", seen + counts[-1])]

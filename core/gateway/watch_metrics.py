"""Prometheus families of jobs, monitors and alerts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from core.gateway.service import Service


def watch_families(service: Service) -> Iterator[Metric]:
    """All families; labels are names of jobs, monitors and rules, which are few."""
    yield from _jobs(service)
    monitors = GaugeMetricFamily(
        "conductor_monitor", "What is watched, as last sampled (GET /monitors)", labels=["monitor"]
    )
    if service.monitoring.samples:
        for name, value in service.monitoring.samples[-1].values.items():
            if value is not None:
                monitors.add_metric([name], value)
    yield monitors
    alerts = GaugeMetricFamily(
        "conductor_alert",
        "1 in the state that the alert is in",
        labels=["alert", "severity", "state"],
    )
    for alert in service.monitoring.board.alerts():
        alerts.add_metric([alert.rule.name, alert.rule.severity, alert.state.value], 1.0)
    yield alerts
    given_up = CounterMetricFamily("conductor_webhook_given_up", "Alerts that could not be told")
    given_up.add_metric([], service.webhook.given_up)
    yield given_up


def _jobs(service: Service) -> Iterator[Metric]:
    runs = CounterMetricFamily("conductor_job_runs", "Runs of periodic work", labels=["job"])
    failures = CounterMetricFamily("conductor_job_failures", "Runs that failed", labels=["job"])
    took = GaugeMetricFamily(
        "conductor_job_last_seconds", "How long the last run took", labels=["job"]
    )
    for state in service.jobs.states():
        runs.add_metric([state.name], state.runs)
        failures.add_metric([state.name], state.failures)
        if state.last_s is not None:
            took.add_metric([state.name], state.last_s)
    yield from (runs, failures, took)

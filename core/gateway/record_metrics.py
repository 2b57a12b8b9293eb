"""Prometheus metrics of the record store: writer, spool, roll-ups, retention, replicas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from core.ports import SinkCounters, StoreUpkeep

if TYPE_CHECKING:
    from core.gateway.service import Service


def record_metrics(service: Service) -> Iterator[Metric]:
    """All families; those of a process that writes nothing, or keeps no upkeep, are left out."""
    counters = service.record_counters()
    if counters is not None:
        yield from _sink(counters)
    if service.store_upkeep is not None:
        yield from _upkeep(service.store_upkeep())


def _sink(c: SinkCounters) -> Iterator[Metric]:
    for name, text, value in (
        ("records_queued", "Records not stored yet", c.queued),
        ("records_lag_seconds", "Age of the oldest record that is not stored", c.lag_s),
        ("records_available", "1 where the last attempt to store succeeded", c.available),
        ("spool_rows", "Records on disk, waiting for the database", c.spooled),
        ("spool_bytes", "Their size", c.spool_bytes),
    ):
        yield GaugeMetricFamily(f"conductor_{name}", text, value=float(value))
    for name, text, value in (
        ("records_written", "Records stored", c.written),
        ("records_dropped", "Records given up", c.dropped),
        ("records_failures", "Failed attempts to store a batch", c.failures),
        ("spool_damaged", "Stretches of spool files that could not be read", c.spool_damaged),
        ("spool_failures", "Failed attempts to write the spool", c.spool_failures),
    ):
        yield CounterMetricFamily(f"conductor_{name}", text, value=float(value))


def _upkeep(u: StoreUpkeep) -> Iterator[Metric]:
    for name, text, value in (
        ("rollup_lag_seconds", "Age of the oldest rows not rolled up", u.rollup_lag_s),
        ("replicas_alive", "Processes that share the database", u.replicas_alive),
        ("retention_refused", "1 where retention refused to delete so much", bool(u.refused)),
    ):
        yield GaugeMetricFamily(f"conductor_{name}", text, value=float(value))
    for name, text, value in (
        ("rollup_buckets", "Roll-ups computed by this process", u.rolled_buckets),
        ("retention_deleted_rows", "Rows deleted by this process for their age", u.deleted_rows),
        ("upkeep_failures", "Failed steps of the database's upkeep", u.failures),
    ):
        yield CounterMetricFamily(f"conductor_{name}", text, value=float(value))

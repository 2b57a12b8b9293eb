"""A node's cache signal as operators see it: what its event stream delivered, lost and caught up.

Counters run since the node was registered; `GET /nodes/{id}/signal` and the Prometheus family
`conductor_node_stream` tell the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from fastapi import APIRouter
from prometheus_client.core import CounterMetricFamily, Metric

from core import wire
from core.domain import NodeId
from core.engines.stream_tools import StreamStatus

if TYPE_CHECKING:
    from core.gateway.service import Service

COUNTED = ("messages", "links_lost", "replay_failures", "audits", "catch_ups")
"""Counters of the connection; those of the numbering and of the index come beside them."""


def signal_routes(service: Service) -> APIRouter:
    """The route, to be mounted under the API's prefix."""
    router = APIRouter(tags=["nodes"])

    @router.get("/nodes/{node}/signal")
    async def signal(node: str) -> wire.SignalView:
        service.conductor.fleet.slot(NodeId(node))  # NotFound for an unknown id
        found = service.streams().get(NodeId(node))
        return wire.SignalView() if found is None else signal_view(found, service.clock.now())

    return router


def signal_view(s: StreamStatus, now: float) -> wire.SignalView:
    """One stream's status at the moment `now` (monotonic seconds)."""
    return wire.SignalView(
        endpoint=s.endpoint,
        state=s.state.value,
        connected=s.connected,
        problem=s.refused or s.problem,
        backlog=s.backlog,
        last_message_age_s=None if s.last_message_s is None else now - s.last_message_s,
        last_number=s.last_seq,
        counters=stream_counters(s),
        blocks=s.ingest.blocks if s.ingest else 0,
        copies=s.ingest.copies if s.ingest else 0,
        orphan_blocks=s.ingest.orphan_blocks if s.ingest else 0,
    )


def stream_counters(s: StreamStatus) -> dict[str, int]:
    """Everything that only grows, by name."""
    counters = {name: int(getattr(s, name)) for name in COUNTED} | asdict(s.cursor)
    if s.ingest is not None:
        counters |= {
            "orphans_dropped": s.ingest.orphans_dropped,
            "unknown_removed": s.ingest.unknown_removed,
            "blocks_refused": s.ingest.refused,
            "ignored": s.ingest.ignored,
        }
    return counters


def signal_families(streams: Mapping[NodeId, StreamStatus]) -> Iterator[Metric]:
    """Prometheus families; labels are the registered nodes and the counters' names."""
    family = CounterMetricFamily(
        "conductor_node_stream",
        "What a node's event stream delivered, lost and caught up (GET /nodes/{id}/signal)",
        labels=["node", "event"],
    )
    for node, status in streams.items():
        for name, value in stream_counters(status).items():
            family.add_metric([node, name], value)
    yield family

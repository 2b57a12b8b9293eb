"""What an operator should be told first, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.domain import Health, NodeId, Trust

if TYPE_CHECKING:
    from core.gateway.service import Service

LAG_S = 0.05
"""More than once in a minute, it is a problem."""


def problems(service: Service) -> list[str]:
    """Sentences, worst first; empty when all is well."""
    return [*_fleet(service), *_process(service)]


def _fleet(service: Service) -> list[str]:
    conductor = service.conductor
    fleet = conductor.fleet
    if not len(fleet):
        return ["no node is registered"]
    found = []
    dead = _names(service, Health.DEAD)
    if len(dead) == len(fleet):
        found.append("every node is dead: requests are refused with 503")
    elif dead:
        note = service.node_notes.get(dead[0]) if len(dead) == 1 else None
        found.append(f"dead: {_listed(dead)}" + (f" ({note[0]})" if note else ""))
    if conductor.breakers.panic:
        found.append("too few nodes are available: breakers are ignored until some recover")
    unknown = _names(service, Health.UNKNOWN)
    if unknown:
        found.append(f"never answered so far: {_listed(unknown)}")
    told = {*dead, *unknown}  # one sentence a cause: that their signals are lost goes with it
    doubted = [
        s.id
        for slot, s in fleet.slots()
        if s.id not in told and conductor.trust.trust(slot) in _DOUBTED
    ]
    if doubted:
        found.append(f"cache signal not believed: {_listed(doubted)}")
    noted = [
        node
        for node in service.node_notes
        if fleet.has(node) and node not in dead and service.node_notes[node]
    ]
    found += [f"{node}: {service.node_notes[node][0]}" for node in noted]
    return found


def _process(service: Service) -> list[str]:
    found = [
        f"token ids of model {model} differ from the engine's: {detail}"
        for model, detail in service.prompts.distrusted.items()
    ]
    counters = service.record_counters()
    if counters is not None and not counters.available:
        found.append(f"decisions cannot be stored: {counters.last_error}")
    if counters is not None and counters.spooled:
        found.append(f"{counters.spooled} records wait on disk for the database")
    if counters is not None and counters.dropped:
        found.append(f"{counters.dropped} records were dropped")
    refused = "" if service.store_upkeep is None else service.store_upkeep().refused
    if refused:
        found.append(f"old records are not deleted: {_first(refused)}")
    late_s = service.upkeep.worst_lag_s
    if service.upkeep.repeated_lag_s > LAG_S:
        late = f"{late_s:.1f} s" if late_s >= 1.0 else f"{late_s * 1e3:.0f} ms"
        found.append(f"the event loop is late again and again, by up to {late}")
    return found


_DOUBTED = (Trust.DEGRADED, Trust.OFF)


def _names(service: Service, health: Health) -> Sequence[NodeId]:
    fleet = service.conductor.fleet
    return [s.id for s in fleet.nodes() if s.url and fleet.health(s.id) is health]


def _first(refused: str) -> str:
    """The first table that retention left alone, and how many more."""
    first, *more = refused.split("; ")
    return first + (f"; and so for {len(more)} more" if more else "")


def _listed(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more

"""What supervision is told and what it tells: timing, shared tools, a node's status."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from core.clock import Clock
from core.conductor import Conductor
from core.domain import Health, NodeId, NodeSpec
from core.engines.base import Discovery
from core.engines.health import HealthRules
from core.engines.parity import Parity
from core.engines.probe import Tokenizer
from core.engines.stream_tools import StreamStatus, StreamTools


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRules:
    """Timing of a node's supervision."""

    health: HealthRules = field(default_factory=HealthRules)
    scrape_interval_s: float = 0.5
    scrape_timeout_s: float = 1.5
    scrapes_per_s_max: float = 40.0
    """Over the fleet: with more nodes than that allows, each is read less often. A scrape costs
    about 3 ms of the event loop's CPU."""
    discovery_interval_s: float = 30.0
    """How often models, adapters and capacity are asked for again."""
    hurry_s: float = 0.5
    """Between probes of a node that has not answered yet, or is on its way back."""
    poke_s: float = 0.1
    """Least time between two probes, however often somebody asks for one."""

    def scrape_every_s(self, nodes: int) -> float:
        """Seconds between two scrapes of one node in a fleet of that size."""
        return max(self.scrape_interval_s, nodes / self.scrapes_per_s_max)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTools:
    """What all supervisors of a fleet share."""

    conductor: Conductor
    clock: Clock
    rng: random.Random
    client: httpx.AsyncClient
    stream: StreamTools
    rules: WatchRules = field(default_factory=WatchRules)
    nodes: Callable[[], int] = lambda: 1
    """How many nodes are watched now."""
    tokenizer: Tokenizer | None = None
    """Our own token ids, compared with the engine's when a process is first met."""
    on_parity: Callable[[NodeId, Parity], None] | None = None
    on_round: Callable[[str, float, str], None] = lambda _kind, _seconds, _error: None
    """Told (probe or scrape, seconds it took, what went wrong) after each round of a node."""
    on_ranks: Callable[[NodeSpec, Discovery], None] | None = None
    """A server turned out to have several data-parallel ranks."""


@dataclass(slots=True)
class NodeStatus:
    """What supervision knows of a node, for operators."""

    node: NodeId
    health: Health = Health.UNKNOWN
    streak: int = 0
    epoch: str = ""
    version: str = ""
    discovered: bool = False
    probes: int = 0
    scrapes: int = 0
    scrape_failures: int = 0
    restarts: int = 0
    last_error: str = ""
    notes: tuple[str, ...] = ()
    parity: dict[str, Parity] = field(default_factory=dict)
    """By model; empty until compared."""
    bootstrap_port: int | None = None
    stream: StreamStatus | None = None
    """None where the node publishes no events."""

    def warnings(self) -> tuple[str, ...]:
        """Everything an operator should know, in sentences, what explains the rest first."""
        silent = self.health in (Health.SUSPECT, Health.DEAD) and self.last_error
        found = [self.last_error] if silent else []
        found += self.notes
        for parity in self.parity.values():
            found += [f"tokens of {parity.model} differ: {m}" for m in parity.mismatches]
        if self.stream is not None and self.stream.problem:
            found.append(f"event stream: {self.stream.problem}")
        if self.stream is not None and self.stream.refused:
            found.append(f"event stream is not followed: {self.stream.refused}")
        return tuple(found)

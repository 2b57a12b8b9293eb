"""Links between nodes: each node's NIC sends and receives at a set rate, shared by its flows.

A flow gets the lesser of an equal share of its sender's rate and of its receiver's. Whenever a
flow starts or ends, the flows that share one of its ends get new rates from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Done = Callable[[float, "Flow", bool], None]


@dataclass(slots=True, eq=False)
class Flow:
    """One transfer. Rates in bytes/s; `due_s` is when it ends if nothing else changes."""

    source: int
    target: int
    left_bytes: float
    done: Done
    size_bytes: float
    started_s: float
    rate: float = 0.0
    since_s: float = 0.0
    version: int = 0
    finished: bool = False


@dataclass(slots=True)
class Links:
    """All flows of a fleet of nodes 0..n-1.

    schedule(at_s, function, argument) puts an event into the simulation's queue; `latency_s` is
    added once to every transfer.
    """

    bytes_per_s: list[float]
    latency_s: float
    schedule: Callable[[float, Callable[[float, tuple[Flow, int]], None], tuple[Flow, int]], None]
    moved_bytes: float = 0.0
    sending: list[list[Flow]] = field(default_factory=list)
    receiving: list[list[Flow]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sending = [[] for _ in self.bytes_per_s]
        self.receiving = [[] for _ in self.bytes_per_s]

    def start(self, now: float, source: int, target: int, size: float, done: Done) -> Flow:
        """Begin a transfer; `done(now, flow, whole)` is called at its end, whole or cut."""
        charged = size + self.latency_s * min(self.bytes_per_s[source], self.bytes_per_s[target])
        flow = Flow(source, target, charged, done, size, now, since_s=now)
        self.sending[source].append(flow)
        self.receiving[target].append(flow)
        self._share(now, flow)
        return flow

    def cut(self, now: float, node: int) -> None:
        """The node died: all its flows end unfinished."""
        for flow in [*self.sending[node], *self.receiving[node]]:
            if not flow.finished:
                self._end(now, flow, whole=False)

    def remaining_s(self, now: float, flow: Flow) -> float:
        """Time until the flow ends if nothing else changes."""
        if flow.finished:
            return 0.0
        return max(flow.left_bytes / flow.rate - (now - flow.since_s), 0.0)

    def _share(self, now: float, around: Flow) -> None:
        """New rates for every flow that shares an end with `around`."""
        source, target = around.source, around.target
        affected = self.sending[source]
        others = self.receiving[target]
        if others and (len(others) > 1 or others[0] is not around):
            affected = affected + [flow for flow in others if flow.source != source]
        for flow in affected:
            out, into = flow.source, flow.target
            left = flow.left_bytes - flow.rate * (now - flow.since_s)
            flow.left_bytes = left = left if left > 0.0 else 0.0
            flow.since_s = now
            flow.rate = rate = min(
                self.bytes_per_s[out] / len(self.sending[out]),
                self.bytes_per_s[into] / len(self.receiving[into]),
            )
            flow.version += 1
            self.schedule(now + left / rate, self._due, (flow, flow.version))

    def _due(self, now: float, event: tuple[Flow, int]) -> None:
        flow, version = event
        if version == flow.version and not flow.finished:
            self._end(now, flow, whole=True)

    def _end(self, now: float, flow: Flow, *, whole: bool) -> None:
        flow.finished = True
        self.sending[flow.source].remove(flow)
        self.receiving[flow.target].remove(flow)
        if whole:
            self.moved_bytes += flow.size_bytes
        self._share(now, flow)
        flow.done(now, flow, whole)

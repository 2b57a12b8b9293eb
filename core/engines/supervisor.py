"""Watching a fleet: one NodeSupervisor a node, added and removed while traffic runs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

import structlog
import zmq.asyncio

from core.clock import Clock, SystemClock
from core.conductor import Conductor
from core.domain import NodeId, NodeSpec
from core.engines.base import Discovery
from core.engines.discovery import ranks
from core.engines.guard import AddressGuard
from core.engines.node_supervisor import NodeSupervisor
from core.engines.parity import Parity
from core.engines.probe import Tokenizer, make_client
from core.engines.stream_tools import StreamRules, StreamStatus, StreamTools
from core.engines.watch import NodeStatus, WatchRules, WatchTools
from core.errors import ConductorError, NotFound

_log = structlog.get_logger("conductor.engines")


class Notes(Mapping[NodeId, Sequence[str]]):
    """Live view: node -> what its supervisor wants an operator to know."""

    def __init__(self, supervisors: Mapping[NodeId, NodeSupervisor]) -> None:
        self._supervisors = supervisors

    def __getitem__(self, node: NodeId) -> Sequence[str]:
        return self._supervisors[node].status.warnings()

    def __iter__(self) -> Iterator[NodeId]:
        return iter(self._supervisors)

    def __len__(self) -> int:
        return len(self._supervisors)


class FleetSupervisor:
    """Registers nodes with the conductor and watches them. Use as an async context manager.

    tokenizer: our token ids of (model, prompt), compared with each engine's own when it is
    first met; on_parity gets the verdicts. rng: probe jitter. guard: says which addresses the
    nodes' names may have.
    """

    def __init__(
        self,
        conductor: Conductor,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        rules: WatchRules | None = None,
        stream_rules: StreamRules | None = None,
        guard: AddressGuard | None = None,
        tokenizer: Tokenizer | None = None,
        on_parity: Callable[[NodeId, Parity], None] | None = None,
    ) -> None:
        self._conductor = conductor
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._rules = rules or WatchRules()
        self._stream_rules = stream_rules or StreamRules()
        self._guard = guard or AddressGuard()
        self._tokenizer = tokenizer
        self._on_parity = on_parity
        self.on_round: Callable[[str, float, str], None] = lambda _kind, _seconds, _error: None
        """Told (probe or scrape, seconds, what went wrong) after each round of a node."""
        self._supervisors: dict[NodeId, NodeSupervisor] = {}
        self._changing: set[asyncio.Task[None]] = set()
        self._context: zmq.asyncio.Context | None = None
        self._tools: WatchTools | None = None
        self.notes = Notes(self._supervisors)

    async def __aenter__(self) -> Self:
        self._context = zmq.asyncio.Context()
        stream = StreamTools(
            conductor=self._conductor,
            clock=self._clock,
            context=self._context,
            rules=self._stream_rules,
            replays=asyncio.Semaphore(self._stream_rules.replays_at_once),
            pin=self._guard.endpoint,
        )
        self._tools = WatchTools(
            conductor=self._conductor,
            clock=self._clock,
            rng=self._rng,
            client=make_client(timeout_s=self._rules.scrape_timeout_s, guard=self._guard),
            stream=stream,
            rules=self._rules,
            nodes=self._supervisors.__len__,
            tokenizer=self._tokenizer,
            on_parity=self._on_parity,
            on_round=lambda *round: self.on_round(*round),
            on_ranks=self._split_soon,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in list(self._changing):
            task.cancel()
        await asyncio.gather(*self._changing, return_exceptions=True)
        stops = [self._stop(node) for node in list(self._supervisors)]
        await asyncio.gather(*stops)
        tools, context = self._tools, self._context
        self._tools = self._context = None
        if tools is not None:
            await tools.client.aclose()
        if context is not None:
            context.term()

    # ---- nodes ----------------------------------------------------------------------------

    async def add(self, spec: NodeSpec, *, discover_events: bool = True) -> None:
        """Register a node and start to watch it; it takes requests once a probe was good.

        discover_events: False keeps the node on routing history although it could publish.
        Raises Conflict for a known id.
        """
        tools = self._entered()
        self._conductor.register(spec, self._clock.now())
        supervisor = NodeSupervisor(spec, tools, discover_events=discover_events)
        self._supervisors[spec.id] = supervisor
        await supervisor.__aenter__()

    async def remove(self, node: NodeId) -> None:
        """Stop watching a node and take it out. NotFound for an unknown id."""
        if node not in self._supervisors:
            raise NotFound(f"unknown node {node!r}", field="node")
        await self._stop(node)
        self._conductor.remove(node, self._clock.now())

    def weigh(self, node: NodeId, weight: float) -> None:
        """Let discovery keep a node's new weight; NotFound for an unknown id."""
        supervisor = self._supervisor(node)
        supervisor.registered = replace(supervisor.registered, weight=weight)

    def poke(self, node: NodeId) -> None:
        """Probe a node now: traffic saw it fail. Unknown nodes are ignored."""
        if supervisor := self._supervisors.get(node):
            supervisor.poke()

    def cache_cleared(self, node: NodeId) -> None:
        """Somebody emptied an engine's cache from outside; NotFound for an unknown id."""
        self._supervisor(node).cache_cleared()

    def status(self, node: NodeId) -> NodeStatus:
        """What supervision knows of a node; NotFound for an unknown id."""
        return self._supervisor(node).status

    def statuses(self) -> list[NodeStatus]:
        """All nodes' status, in the order of registration."""
        return [s.status for s in self._supervisors.values()]

    def streams(self) -> dict[NodeId, StreamStatus]:
        """The event streams of the nodes that have one."""
        found = ((node, s.status.stream) for node, s in self._supervisors.items())
        return {node: stream for node, stream in found if stream is not None}

    def bootstrap_port(self, node: NodeId) -> int | None:
        """Where an SGLang prefill node lets decode nodes meet it; None where not known."""
        supervisor = self._supervisors.get(node)
        return None if supervisor is None else supervisor.status.bootstrap_port

    # ---- inside ---------------------------------------------------------------------------

    def _entered(self) -> WatchTools:
        if self._tools is None:
            raise RuntimeError("enter the FleetSupervisor's context before adding nodes")
        return self._tools

    def _supervisor(self, node: NodeId) -> NodeSupervisor:
        try:
            return self._supervisors[node]
        except KeyError:
            raise NotFound(f"unknown node {node!r}", field="node") from None

    async def _stop(self, node: NodeId) -> None:
        await self._supervisors.pop(node).__aexit__(None, None, None)

    def _split_soon(self, registered: NodeSpec, found: Discovery) -> None:
        """Replace a server by its data-parallel ranks; not from within its own supervisor."""
        task = asyncio.create_task(self._split(registered, found))
        self._changing.add(task)
        task.add_done_callback(self._changing.discard)

    async def _split(self, registered: NodeSpec, found: Discovery) -> None:
        if registered.id not in self._supervisors:
            return
        discover_events = self._supervisors[registered.id].discover_events
        await self.remove(registered.id)
        for spec in ranks(registered, found):
            try:
                await self.add(spec, discover_events=discover_events)
            except ConductorError as error:
                _log.error("rank_not_registered", node=spec.id, error=error.message)

"""What the routes share: the conductor, the engines' adapters, records, statistics, upkeep.

`core.wiring` builds one Service a process and enters it; everything in it belongs to the event
loop that entered it. Nothing here waits for the database: records go to a bounded queue.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from time import perf_counter
from types import TracebackType
from typing import Protocol, Self

import msgspec

from core.audit import OpenDecision, Recorder
from core.clock import Clock
from core.conductor import STALE, Conductor
from core.control.lab import Lab, LabRules
from core.control.plane import PERIOD_S as CONTROL_S
from core.control.plane import ControlPlane
from core.domain import (
    Decision,
    EngineKind,
    NodeId,
    NodeSpec,
    Outcome,
    OutcomeKind,
    Rejection,
    Request,
)
from core.engines.base import EngineAdapter
from core.engines.guard import AddressGuard
from core.engines.registry import adapters
from core.engines.stream_tools import StreamStatus
from core.fleet.ledger import Reservation
from core.gateway.audit_watch import AuditWatch
from core.gateway.budget import RetryBudget
from core.gateway.collecting import Collector
from core.gateway.committed import Committer
from core.gateway.elsewhere import Elsewhere
from core.gateway.engine_tokens import EngineTokenizer
from core.gateway.event_feed import EventFeed
from core.gateway.exchange import Exchange
from core.gateway.flights import Flights, Interrupt
from core.gateway.following import TOPIC as NODES_TOPIC
from core.gateway.following import Follower
from core.gateway.forecasting import Forecasting
from core.gateway.held import Held
from core.gateway.indexer import Indexer
from core.gateway.intake import Names, OutputLengths
from core.gateway.lab_kept import KeptLab
from core.gateway.lifecycle import Lifecycle
from core.gateway.limits import Limits
from core.gateway.live import Live
from core.gateway.monitoring import PERIOD_S as MONITORS_S
from core.gateway.monitoring import Monitoring
from core.gateway.moves.migrator import Migrator
from core.gateway.node_acts import NodeActs
from core.gateway.pipelining import Group, Pipelines
from core.gateway.problems import problems
from core.gateway.replication import KeptReplication
from core.gateway.upkeep import Upkeep
from core.gateway.upstream import Upstream, make_session
from core.gateway.waiting import NO_ROOM, WaitingRoom, is_full
from core.gateway.webhook import Webhook
from core.identity.api_keys import KeyRing
from core.identity.authority import Authority
from core.jobs import Jobs
from core.ports import IDENTITY_TOPIC, RecordSink, RecordStore, SinkCounters, StoreUpkeep
from core.prompt import Prompts


class FleetControl(Protocol):
    """Adds and removes nodes at run time, with their probes and event streams."""

    async def add(self, spec: NodeSpec, *, discover_events: bool = True) -> object:
        """Register the node and start watching it; Conflict for a known id."""
        ...

    async def remove(self, node: NodeId) -> object:
        """Stop watching the node and take it out; NotFound for an unknown id."""
        ...

    def weigh(self, node: NodeId, weight: float) -> None:
        """Remember a node's new weight, so that discovery keeps it; NotFound."""
        ...

    def poke(self, node: NodeId) -> None:
        """Probe the node now: traffic saw it fail."""
        ...

    def bootstrap_port(self, node: NodeId) -> int | None:
        """Where a prefill node of a paired flow is met; None where not known."""
        ...


class Service:
    """One scheduler process behind its HTTP routes. An async context manager.

    conductor, clock, prompts, recorder: built by wiring. sink: where the recorder sends its
    values, asked for counters. store: reads stored decisions, None without a database. fleet:
    starts and stops node supervisors; None registers nodes with the conductor only (whoever
    embeds the service then reports their health). authority: who may do what on the admin API;
    None lets callers on this machine read, and nobody act. keys: whose data-plane requests are
    whose; None needs and knows no keys. rng: back-off jitter
    and request ids. node_notes: what supervisors want an operator to know, by node. lab:
    bounds of the Lab.
    """

    stopping = False
    _upstream: Upstream | None = None
    store_upkeep: Callable[[], StoreUpkeep] | None = None
    """What this process did for the database; None where it does nothing."""
    streams: Callable[[], Mapping[NodeId, StreamStatus]] = staticmethod(dict)
    """The nodes' event streams; empty where nobody supervises them."""

    def __init__(
        self,
        *,
        conductor: Conductor,
        clock: Clock,
        prompts: Prompts,
        recorder: Recorder | None = None,
        sink: RecordSink | None = None,
        store: RecordStore | None = None,
        fleet: FleetControl | None = None,
        engines: Mapping[EngineKind, EngineAdapter] | None = None,
        limits: Limits | None = None,
        authority: Authority | None = None,
        keys: KeyRing | None = None,
        guard: AddressGuard | None = None,
        webhook_url: str = "",
        rng: random.Random | None = None,
        version: str = "",
        node_notes: Mapping[NodeId, Sequence[str]] | None = None,
        lab: LabRules | None = None,
    ) -> None:
        self.conductor = conductor
        self.clock = clock
        self.prompts = prompts
        self.recorder = recorder
        self.sink = sink
        self.store = store
        self.fleet = fleet
        self.engines = dict(engines or adapters())
        self.limits = limits or Limits()
        self.authority, self.keys = authority or Authority(), keys or KeyRing()
        self.guard = guard or AddressGuard()
        self.rng = rng or random.Random()
        self.version = version
        self.node_notes = node_notes if node_notes is not None else {}
        now = clock.now()
        self.started_s, self.started_at = now, clock.wall()
        self.budget = RetryBudget(share=self.limits.retry_share, minimum=self.limits.retry_min)
        self.flights, self.live = Flights(), Live(now)
        self.names, self.lengths = Names(conductor), OutputLengths()
        self.elsewhere = Elsewhere(self)
        self.indexer, self.lifecycle = Indexer(self), Lifecycle(self)
        self.committer, self.follower = Committer(self), Follower(self)
        self.node_acts = NodeActs(self)
        self.feed, self.jobs = EventFeed(), Jobs(clock)
        self.upkeep, self.replication = Upkeep(self), KeptReplication(self)
        self.monitoring = self._monitoring()
        self.forecasting = Forecasting(self)
        self.webhook = Webhook(webhook_url, self.guard)
        self.control = self._control_plane()
        self.counters: Counter[str] = Counter()
        self.kept_lab = KeptLab(self)  # before the Lab, which tells it of its jobs
        self.lab = Lab(lab or LabRules(), wall=clock.wall, ended=self.kept_lab.keep)
        self.moves, self.waiting = Migrator(self), WaitingRoom(self)
        self.pipelines, self.collector = Pipelines(self), Collector(self)
        self._ids = 0
        self._active: set[str] = set()
        self._stack = AsyncExitStack()
        if prompts.remote is None:
            prompts.remote = EngineTokenizer(self).ids

    def _monitoring(self) -> Monitoring:
        self.audit_watch = AuditWatch(self)
        made = Monitoring(self)
        what = "sample what is watched, evaluate the alerts"
        self.jobs.add("monitors", made.sample, every_s=MONITORS_S, what=what)
        return made

    def _control_plane(self) -> ControlPlane:
        clock = self.clock
        plane = ControlPlane(
            self.conductor,
            clock,
            store=self.store,
            rng=random.Random(self.rng.getrandbits(64)),
            record_event=lambda kind, data: self.record_event(kind, "", data),
            lag_s=lambda: self.upkeep.lag_s,
        )
        plane.on_judged = self.monitoring.ended
        plane.on_act = lambda kind, data: self.feed.publish(kind, "", data, clock.wall())
        self.jobs.add(
            "control",
            lambda: plane.tick(clock.now()),
            every_s=CONTROL_S,
            what="changes that are due, the guard, trials",
        )
        return plane

    # -- life ------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        session = await self._stack.enter_async_context(make_session(self.limits, self.guard))
        self._upstream = Upstream(session)
        self._stack.push_async_callback(self.upkeep.stop)
        self.upkeep.start()
        self._stack.push_async_callback(self.moves.stop)
        self._stack.push_async_callback(self.control.stop)
        self._stack.push_async_callback(self.committer.stop)
        self._stack.push_async_callback(asyncio.to_thread, self.lab.close)
        await self.control.start()
        await self._stack.enter_async_context(self.webhook)
        await self._stack.enter_async_context(self.jobs)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop_accepting()
        for flight in self.flights:
            flight.interrupt(Interrupt.SHUTDOWN)
        deadline = self.clock.now() + 5.0
        while len(self.flights) and self.clock.now() < deadline:
            await asyncio.sleep(0.01)
        self.elsewhere.abandon()
        await self._stack.aclose()
        self.prompts.close()

    def stop_accepting(self) -> None:
        """Begin to drain: not ready any more, new work is refused, streams go on."""
        self.stopping = True
        self.feed.close()

    @property
    def upstream(self) -> Upstream:
        """Sends requests to engines; only inside the service's context."""
        assert self._upstream is not None, "enter the service first"
        return self._upstream

    # -- requests --------------------------------------------------------------------------

    def new_request_id(self) -> str:
        """An id for a request that brings none."""
        self._ids += 1
        return f"{self.rng.getrandbits(48):012x}{self._ids & 0xFFFF:04x}"

    def claim(self, exchange: Exchange) -> str:
        """Make the exchange's request id unique among those in flight; give it to `release`."""
        name = exchange.request_id
        if name in self._active:
            name = exchange.request_id = f"{name}-{self.new_request_id()}"
        self._active.add(name)
        return name

    def release(self, name: str) -> None:
        """The request of that id is over."""
        self._active.discard(name)

    def decide(
        self,
        request: Request,
        *,
        what_if: bool = False,
        waits: bool = False,
        carry: bool = False,
    ) -> Decision | Rejection:
        """Decide, count and record; a decision counts as load once it is held.

        what_if: only ask; nothing is counted as traffic, nothing recorded. waits: the request
        will ask again if refused with 429, so that is not its end yet. carry: a pipeline group may
        carry the decision out (see `Pipelines.take`).
        """
        began = perf_counter()
        now = self.clock.now()
        decided = self.control.decide(request, now)
        if self.conductor.tunables.cpp.enabled and not request.tried:
            decided = self.pipelines.considered(decided, now, carry=carry)
        took = perf_counter() - began
        if what_if:
            self.counters["what_if"] += 1
            return decided
        if waits and is_full(decided):
            return decided
        decided = msgspec.structs.replace(decided, decide_s=took)
        self.control.decided(decided, took, now)
        self.forecasting.arrived(decided)
        if isinstance(decided, Rejection):
            self._note_rejection(decided, took, now)
        else:
            self.live.placed(decided, took, now)
            self.monitoring.placed(decided, now)
            self.counters[f"signal.{decided.signal}"] += 1
            self.counters["decisions_by_ledger_alone"] += STALE in decided.notes
        return decided

    def refuse(
        self, request: Request, code: str, message: str, *, retry_after_s: float
    ) -> Rejection:
        """Refuse a request that came to no decision; counted against us like one that did, unless
        it was only asked to come again (`no_room`)."""
        now = self.clock.now()
        made = self.conductor.turned_away(
            request, now, code=code, message=message, retry_after_s=retry_after_s
        )
        if code != NO_ROOM:
            self.control.turned_away(made, now)
            self.forecasting.arrived(made)
        self._note_rejection(made, None, now)
        return made

    def _note_rejection(self, rejection: Rejection, took: float | None, now: float) -> None:
        self.live.rejected(took, now)
        self.counters[f"rejected.{rejection.code}"] += 1
        if self.recorder is not None:
            self.recorder.decision(rejection, self.clock.wall())

    def hold(self, decision: Decision, group: Group | None = None) -> Held:
        """Count a decision's load (a group's, where one carries it out) from now, and record it,
        until the Held is finished."""
        now, holds = self.clock.now(), None
        if group is None:
            reservation = self.conductor.begin(decision, now)
        else:
            reservation, holds = self.pipelines.begin(decision, group, now)
            decision = reservation.decision
        opened = None
        if self.recorder is not None:
            opened = self.recorder.decision(decision, self.clock.wall())
        return Held(self, decision, reservation, opened, group=group, holds=holds)

    def close(
        self, d: Decision, reservation: Reservation, opened: OpenDecision | None, outcome: Outcome
    ) -> None:
        """End a held decision: give load back, record, count, learn. For Held."""
        now = self.clock.now()
        reservation.finish(outcome, now)
        if opened is not None and self.recorder is not None:
            self.recorder.outcome(opened, outcome, self.clock.wall())
        if outcome.failed_node is not None:
            self.suspect(outcome.failed_node)
        self.waiting.stir()
        good = self._met_limits(d.request, outcome)
        self.live.finished(d, outcome, now, good=good)
        self.control.finished(d, outcome, now, good=good)
        self.counters[f"outcome.{outcome.kind}"] += 1
        if d.coming_tokens and outcome.cached_tokens is not None:
            arrived = min(max(outcome.cached_tokens - d.match_tokens, 0), d.coming_tokens)
            self.counters["coming.expected_tokens"] += d.coming_tokens
            self.counters["coming.arrived_tokens"] += arrived
        if outcome.kind is OutcomeKind.OK and outcome.output_tokens:
            self.lengths.observe(d.request.model, outcome.output_tokens)

    def _met_limits(self, r: Request, o: Outcome) -> bool:
        slo = self.conductor.tunables.slo
        late = o.ttft_s is not None and o.ttft_s > (r.ttft_slo_s or slo.ttft_s)
        slow = o.tbt_s is not None and o.tbt_s > (r.tbt_slo_s or slo.tbt_s)
        return o.kind is OutcomeKind.OK and not late and not slow

    def record_counters(self) -> SinkCounters | None:
        """Figures of the record sink, with what waits or was dropped in front of it."""
        if self.sink is None:
            return None
        found = self.sink.counters()
        if self.recorder is None:
            return found
        return replace(
            found,
            queued=found.queued + self.recorder.depth,
            dropped=found.dropped + self.recorder.dropped + self.recorder.failed,
            last_error=found.last_error or self.recorder.last_error,
        )

    async def heard(self, topics: frozenset[str]) -> None:
        """Another process, or this one, changed what is stored under these topics."""
        if IDENTITY_TOPIC in topics:
            self.forget_identities()
        if NODES_TOPIC in topics:
            await self.follower.heard()
        await self.control.heard(topics)

    def forget_identities(self) -> None:
        """Users, tokens or keys changed, here or elsewhere: ask about each again."""
        self.authority.forget()
        self.keys.forget()

    def problems(self) -> list[str]:
        """Sentences about what is wrong now, worst first; empty when all is well."""
        return problems(self)

    # -- nodes -----------------------------------------------------------------------------

    def adapter(self, spec: NodeSpec) -> EngineAdapter:
        """The adapter of a node's engine family."""
        return self.engines[spec.engine]

    async def add_node(self, spec: NodeSpec) -> None:
        """Register a node at run time. Conflict for a known id, Forbidden for its address."""
        await self.node_acts.register(spec)

    async def remove_node(self, node: NodeId) -> None:
        """Take a node out; requests on it go on. NotFound for an unknown id."""
        await self.node_acts.remove(node)

    def suspect(self, node: NodeId) -> None:
        """Traffic saw the node fail: have it probed now."""
        if self.fleet is not None:
            self.fleet.poke(node)

    def bootstrap_port(self, node: NodeId) -> int | None:
        """Where a prefill node of a paired flow is met; None where not known."""
        return self.fleet.bootstrap_port(node) if self.fleet is not None else None

    def record_event(self, kind: str, node: str, data: Mapping[str, object]) -> None:
        """Tell a transition to who follows the feed, and keep it, if anybody keeps them."""
        self.feed.publish(kind, node, data, self.clock.wall())
        if self.recorder is not None:
            self.recorder.event(kind, node, data, self.clock.wall())

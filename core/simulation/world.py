"""The simulated fleet: events in virtual time around the conductor that serves real traffic.

Each arrival goes through `Conductor.decide` and `begin`; the nodes answer with `first_token` and
`finish`, and their caches feed the conductor's prefix index, just as engines do. Events of one
moment run in the order they were planned, so a run depends on nothing but its inputs.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from core.clock import seeded
from core.conductor import Conductor
from core.domain import (
    Decision,
    EngineKind,
    EventEndpoints,
    Health,
    NodeId,
    NodeSpec,
    Outcome,
    OutcomeKind,
    Request,
    Role,
    Slot,
)
from core.fleet.ledger import Reservation
from core.fleet.load import queue_s
from core.fleet.trust import Signal
from core.groups import begin_group
from core.plan.cpp import CppPlan
from core.plan.transfer import Link, Topology
from core.simulation.couplings import CacheFeed, FetchDone, StreamDone
from core.simulation.decode_batch import DecodeBatch
from core.simulation.engine_node import EngineNode, Job
from core.simulation.faults import Faults
from core.simulation.gangs import Gang
from core.simulation.kv_cache import KvCache
from core.simulation.links import Links
from core.simulation.planners import Planners
from core.simulation.results import (
    REJECTED,
    REJECTED_LATE,
    SERVED,
    Records,
    RunResult,
    Samples,
)
from core.simulation.scenario import MODEL, Scenario
from core.simulation.workload import Workload

PROGRESS_EVERY = 512
_OK = Outcome(kind=OutcomeKind.OK)
_LATE = Outcome(kind=OutcomeKind.REFUSED, error="rejected at decode")


class World:
    """One run. `progress(done, total)` may return False to stop it early."""

    def __init__(
        self,
        scenario: Scenario,
        workload: Workload,
        *,
        progress: Callable[[int, int], bool] | None = None,
    ) -> None:
        self.scenario = scenario
        self.workload = workload
        self.progress = progress
        self.now = 0.0
        self.heap: list[tuple[float, int, Any, Any]] = []
        self.sequence = itertools.count()
        self.prefill_only = scenario.prefill_only
        self.requests = workload.requests(prefill_only=self.prefill_only)
        self.records = Records(workload.prompt_tokens)
        self.ended = 0
        self.stopped = False
        profile = scenario.cost_profile
        self.kv_bytes = profile.kv_bytes_per_token
        self.layers = profile.layers
        self.bytes_per_s = scenario.link_gb_s * 1e9
        self.links = Links(
            [self.bytes_per_s] * scenario.nodes, scenario.link_latency_s, self.schedule
        )
        self.tunables = scenario.tunables()
        self.conductor = self._conductor()
        self.feeds: dict[int, CacheFeed] = {}
        self.nodes = [self._node(i) for i in range(scenario.nodes)]
        self.planners = Planners(self)
        self.faults = Faults(self)
        self.samples = Samples() if scenario.samples else None
        self._plan_events()

    # -- making the fleet --------------------------------------------------------------------

    def _conductor(self) -> Conductor:
        s = self.scenario
        link = Link(bytes_per_s=self.bytes_per_s, latency_s=s.link_latency_s)
        return Conductor(
            tunables=self.tunables,
            rng=seeded(s.seed),
            topology=Topology(s.nodes, uniform=link),
            explain=False,
            learn=False,
        )

    def _role(self, i: int) -> Role:
        s = self.scenario
        if i < s.prefill:
            return Role.PREFILL
        return Role.DECODE if i < s.prefill + s.decode else Role.BOTH

    def _node(self, i: int) -> EngineNode:
        s, role, block = self.scenario, self._role(i), self.workload.block_tokens
        slot = self._register(self._spec(i, role))
        host = self.scenario.cost_profile.host_bytes_per_s
        return EngineNode(
            slot=slot,
            prefill_cost=s.prefill_cost(i),
            cache=KvCache(
                s.cache_tokens // block,
                self._feed(slot),
                host_capacity=s.host_cache_tokens // block,
            ),
            hooks=self,
            block_tokens=block,
            chunk_tokens=s.chunk_tokens,
            layers=self.layers,
            host_s_per_block=block * self.kv_bytes / host,
            batch=DecodeBatch(s.tbt_cost(i)) if role.decodes else None,
            mixed=role is Role.BOTH,
        )

    def _spec(self, i: int, role: Role) -> NodeSpec:
        s = self.scenario
        return NodeSpec(
            id=NodeId(f"n{i}"),
            url=f"simulated://n{i}",
            engine=EngineKind.EMULATED,
            role=role,
            models=(MODEL,),
            block_size=self.workload.block_tokens,
            kv_capacity_tokens=s.cache_tokens,
            queue_max=1_000_000,
            batch_max=s.batch_max,
            kv_transfer="simulated",
            profile=s.profile,
            mfu=s.mfu,
            events=EventEndpoints(live=f"simulated://n{i}"),
            speed=s.speed(i),
            can_fetch=s.fetch,
        )

    def _feed(self, slot: Slot) -> CacheFeed:
        feed = self.feeds[slot] = CacheFeed(self, slot)
        return feed

    def _register(self, spec: NodeSpec) -> Slot:
        """Join the fleet as a healthy node whose event stream is attached and complete."""
        s, conductor = self.scenario, self.conductor
        slot = conductor.register(spec, 0.0)
        conductor.set_health(spec.id, Health.HEALTHY, 0.0)
        conductor.cache_signal(spec.id, Signal.COMPLETE, 0.0, cause="simulated")
        if s.prefill_fit is not None:
            conductor.fleet.set_cost(spec.id, s.prefill_cost(slot))
        if s.tbt_fit is not None:
            conductor.fleet.set_tbt(spec.id, s.tbt_cost(slot))
        return slot

    # -- time --------------------------------------------------------------------------------

    def schedule(self, at_s: float, function: Any, argument: Any) -> None:
        """Call function(at_s, argument) at that time."""
        heapq.heappush(self.heap, (at_s, next(self.sequence), function, argument))

    def _plan_events(self) -> None:
        for failure in self.scenario.failures:
            self.schedule(failure.at_s, self.faults.fail, failure)
        w, load = self.workload, self.scenario.load
        first = w.arrival_s[0] if len(w) else 0.0
        think = self.scenario.replay == "think"
        self.arrivals = [
            ((at - first) / load, i)
            for i, at in enumerate(w.arrival_s)
            if w.first_turn[i] or not think
        ]

    def run(self) -> RunResult:
        """Play all events; the result is complete even when stopped early."""
        heap, pop = self.heap, heapq.heappop
        arrive = self._arrive
        for at, i in self.arrivals:
            while heap and heap[0][0] <= at:
                now, _, function, argument = pop(heap)
                self.now = now
                function(now, argument)
            self.now = at
            arrive(at, i)
            if self.stopped:
                return self.result()
        while heap and self.ended < len(self.workload):
            now, _, function, argument = pop(heap)
            self.now = now
            function(now, argument)
        return self.result()

    def result(self) -> RunResult:
        """What was measured so far."""
        s = self.scenario
        return RunResult(
            label=s.policy,
            records=self.records,
            busy_s=[node.busy_s for node in self.nodes],
            prefill_nodes=s.prefill or s.both,
            span_s=self.workload.span_s / s.load,
            ttft_slo_s=self.tunables.slo.ttft_s,
            tbt_slo_s=self.tunables.slo.tbt_s,
            prefill_only=s.prefill_only,
            counters=self.planners.counters(),
            samples=self.samples,
            stopped=self.stopped,
        )

    # -- a request's road --------------------------------------------------------------------

    def _arrive(self, now: float, i: int) -> None:
        self.records.arrival_s[i] = now
        if self.samples is not None:
            self._sample(now)
        if not i % PROGRESS_EVERY and self.progress is not None:
            self.stopped = not self.progress(self.ended, len(self.workload))
        if self.planners.batcher is not None:
            self.planners.batcher.add(i, self.requests[i], now)
        else:
            self.place(now, i, self.requests[i])

    def place(
        self, now: float, i: int, request: Request, *, only: Slot | None = None
    ) -> Decision | None:
        """Ask the conductor and follow its answer; `only` leaves it a single prefill node."""
        asked = request if only is None else self._narrowed(request, only)
        decision = self.conductor.decide(asked, now)
        if not isinstance(decision, Decision):
            self.end(now, i, REJECTED)
            return None
        if self.planners.watched:
            group = self.planners.group(decision, now)
            if group is not None:
                self._start_group(now, i, decision, group)
                return decision
        job = self._job(now, i, decision, self.conductor.begin(decision, now))
        node = self.nodes[decision.prefill_slot]
        if not node.alive:
            self.faults.attempt_failed(now, job)
            return None
        if decision.fetch_from is not None:
            self._fetch(now, job, node)
        node.enqueue(job, now)
        if self.scenario.announce:
            self.feeds[node.slot].announce(job.keys, node.cache.match(job.keys))
        return decision

    def _narrowed(self, request: Request, only: Slot) -> Request:
        """The request as if every other prefill node had been tried."""
        fleet = self.conductor.fleet
        others = (n.slot for n in self.nodes if n.slot != only and fleet.prefills[n.slot])
        tried = request.tried | {fleet.node_at(slot) for slot in others}
        narrowed: Request = msgspec.structs.replace(request, tried=tried)
        return narrowed

    def _job(self, now: float, i: int, decision: Decision, reservation: Reservation) -> Job:
        r = self.records
        r.attempts[i] += 1
        r.reachable[i] = decision.reachable_tokens
        r.predicted_s[i] = decision.predicted.ttft_s
        return Job(
            index=i,
            request=decision.request,
            keys=self.workload.keys[i],
            decision=decision,
            reservation=reservation,
            output_tokens=self.workload.output_tokens[i],
            moved=decision.decode_slot != decision.prefill_slot,
            queued_s=now,
        )

    def _start_group(self, now: float, i: int, decision: Decision, group: CppPlan) -> None:
        reservation, holds = begin_group(self.conductor, decision, group, now)
        job = self._job(now, i, reservation.decision, reservation)
        gang = Gang(self, group, job, holds)
        if all(node.alive for node in gang.nodes):
            gang.start(now)
        else:
            gang.member_died(now)

    def _fetch(self, now: float, job: Job, node: EngineNode) -> None:
        """Start pulling the blocks that the decision counts on; the source may hold fewer now."""
        decision, block = job.decision, self.workload.block_tokens
        assert decision.fetch_from is not None
        source = self.conductor.fleet.slot(decision.fetch_from)
        end = decision.prefix_tokens // block
        held = self.nodes[source].cache.match(job.keys[:end])
        own = node.cache.match(job.keys[:held])
        if held <= own:
            return
        job.fetch_first, job.fetch_end = own, held
        size = (held - own) * block * self.kv_bytes
        self.nodes[source].cache.insert(job.keys[:held])
        job.fetch = self.links.start(now, source, node.slot, size, FetchDone(self, job, node))

    def started(self, job: Job, now: float) -> None:
        """A prefill begins; its KV streams to the decode node layer by layer meanwhile."""
        i = job.index
        self.records.queue_s[i] = now - job.queued_s
        if job.moved:
            size = job.request.prompt_tokens * self.kv_bytes
            node = self.nodes[job.decision.prefill_slot]
            job.stream = self.links.start(
                now, node.slot, job.decision.decode_slot, size, StreamDone(self, job)
            )

    def prefilled(self, job: Job, now: float) -> None:
        """The first token: the prefill leg ends, decoding begins where it was planned."""
        i, r = job.index, self.records
        job.first_token_s = now
        if r.status[i] == 0 and r.ttft_s[i] != r.ttft_s[i]:
            r.ttft_s[i] = now - r.arrival_s[i]
        r.cached[i] = job.cached_tokens
        r.fetched[i] = job.fetched_tokens
        r.node[i] = job.decision.prefill_slot
        if self.prefill_only:
            # Nothing is generated, so the end of the prefill is the end of the request.
            job.reservation.cached_tokens = job.cached_tokens
            self._served(job, now)
            return
        job.reservation.prefill_done(now, cached_tokens=job.cached_tokens)
        if job.output_tokens < 2:
            self._served(job, now)
        elif not job.moved:
            self.decode(job, now)
        elif job.stream is None or job.stream.finished:
            last_layer_s = job.request.prompt_tokens * self.kv_bytes / self.layers
            self.schedule(now + last_layer_s / self.bytes_per_s, self._handed_over, job)

    def _handed_over(self, now: float, job: Job) -> None:
        if job.reservation.outcome is None:
            self.decode(job, now)

    def decode(self, job: Job, now: float) -> None:
        """The prompt's KV is on its decode node."""
        node = self.nodes[job.decision.decode_slot]
        if not node.alive:
            self.faults.attempt_failed(now, job)
        elif self.scenario.rejecting in ("decode", "late") and self._too_late(job, node):
            job.reservation.finish(_LATE, now)
            self.end(now, job.index, REJECTED_LATE)
        else:
            node.join(job, now)

    def _too_late(self, job: Job, node: EngineNode) -> bool:
        """Whether the limits, looked at once the prefill is over, are missed."""
        slo = self.tunables.slo
        late = self.records.ttft_s[job.index] > slo.ttft_s
        return late or node.step_s_with(job) > slo.tbt_s

    def decoded(self, job: Job, now: float, tbt_s: float, tpot_s: float) -> None:
        """The last token."""
        r = self.records
        r.tbt_s[job.index], r.tpot_s[job.index] = tbt_s, tpot_s
        r.decode_node[job.index] = job.decision.decode_slot
        self._served(job, now)

    def _served(self, job: Job, now: float) -> None:
        job.reservation.finish(_OK, now)
        self.end(now, job.index, SERVED)

    def end(self, now: float, i: int, status: int) -> None:
        """A request is over, one way or another; its next turn may follow."""
        self.records.status[i] = status
        self.records.end_s[i] = now
        self.ended += 1
        if self.scenario.replay == "think":
            for child, think_s in self.workload.children[i]:
                self.schedule(now + think_s / self.scenario.load, self._arrive, child)

    # -- samples -----------------------------------------------------------------------------

    def _sample(self, now: float) -> None:
        samples = self.samples
        assert samples is not None
        every = self.workload.span_s / self.scenario.load / self.scenario.samples
        while len(samples.at_s) * every <= now:
            samples.at_s.append(len(samples.at_s) * every)
            waits = queue_s(self.conductor.fleet, now).tolist()
            samples.queue_s.append([waits[n.slot] for n in self.nodes])
            samples.running.append([float(n.batch.size) if n.batch else 0.0 for n in self.nodes])
            self.planners.sample(samples, now)

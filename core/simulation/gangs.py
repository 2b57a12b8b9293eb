"""Carries out a pipeline group on simulated nodes: members wait for each other, as they would.

Every member takes its part in the order of its own queue. It then stands ready until the stages
before it have produced chunks; with F[s][j] the finish of chunk j on stage s and r[s] when member
s stood ready with its share of the cached prefix, the recurrence is that of core.plan.pipeline. A
stage's times follow from the stages before it alone, so they are settled as soon as those stand
ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from core.fleet.ledger import Hold
from core.plan.cpp import CppPlan
from core.plan.pipeline import chunk_times, finish_times
from core.simulation.engine_node import Job
from core.simulation.links import Flow

if TYPE_CHECKING:
    from core.simulation.world import World


class Gang:
    """One group at work. Parts are the group's jobs on its members, by stage."""

    def __init__(self, world: World, plan: CppPlan, lead: Job, holds: dict[int, Hold]) -> None:
        self.world, self.plan, self.lead, self.holds = world, plan, lead, holds
        size = len(plan.stages)
        self.nodes = [world.nodes[stage.slot] for stage in plan.stages]
        self.parts = [self._part(lead) for _ in range(size - 1)] + [lead]
        self.at_head: list[float | None] = [None] * size
        self.fetched: list[float | None] = [0.0] * size
        self.rows: list[np.ndarray] = []
        """F of the stages settled so far."""
        self.broken = False
        chunks = np.array(plan.chunks)
        self.times = [
            chunk_times(node.prefill_cost, stage.layers / world.layers, plan.prefix_tokens, chunks)
            for node, stage in zip(self.nodes, plan.stages, strict=True)
        ]
        hidden = world.scenario.cost_profile.d_model * world.scenario.cost_profile.bytes_per_value
        self.handoffs = chunks * (hidden / world.bytes_per_s) + world.scenario.link_latency_s

    def _part(self, lead: Job) -> Job:
        return Job(
            index=lead.index,
            request=lead.request,
            keys=lead.keys,
            decision=lead.decision,
            reservation=lead.reservation,
            output_tokens=0,
            moved=False,
            queued_s=lead.queued_s,
        )

    def start(self, now: float) -> None:
        """Queue the parts and start fetching the cached prefix to members that lack it."""
        self.lead.cached_tokens = self.plan.prefix_tokens
        for s, stage in enumerate(self.plan.stages):
            if stage.fetch_tokens:
                self._fetch(s, stage.fetch_tokens * stage.layers / self.world.layers, now)
        for s, node in enumerate(self.nodes):
            self.parts[s].gang = self
            node.enqueue(self.parts[s], now)

    def _fetch(self, s: int, tokens: float, now: float) -> None:
        self.fetched[s] = None

        def done(at_s: float, _flow: Flow, _whole: bool) -> None:
            self.fetched[s] = at_s
            self._settle(at_s)

        size = tokens * self.world.kv_bytes
        self.world.links.start(now, self.plan.source, self.nodes[s].slot, size, done)

    def stands_ready(self, job: Job, now: float) -> None:
        """A member's part reached the head of its queue."""
        s = self.parts.index(job)
        job.start_s = now
        self.at_head[s] = now
        if job is self.lead:
            self.world.records.queue_s[job.index] = now - job.queued_s
        self._settle(now)

    def _settle(self, now: float) -> None:
        """Time the stages whose predecessors stand ready, in order."""
        while not self.broken and len(self.rows) < len(self.nodes):
            s = len(self.rows)
            head, fetched = self.at_head[s], self.fetched[s]
            if head is None or fetched is None:
                return
            ready = max(head, fetched)
            if not s:
                row = finish_times(self.times[:1], [ready], [self.handoffs])[0]
            else:
                done = np.cumsum(self.times[s])
                slack = self.rows[-1] + self.handoffs - (done - self.times[s])
                row = done + np.maximum(np.maximum.accumulate(slack), ready)
            self.rows.append(row)
            node = self.nodes[s]
            self.world.schedule(max(float(row[-1]), now), self._stage_done, (s, node.epoch))

    def _stage_done(self, now: float, event: tuple[int, int]) -> None:
        s, epoch = event
        node = self.nodes[s]
        if epoch != node.epoch or self.broken:
            return
        hold = self.holds.pop(node.slot, None)
        if hold is not None:
            self.world.conductor.ledger.release(hold, now)
        node.busy_s += float(self.times[s].sum())
        node.running = None
        if s == len(self.nodes) - 1:
            self._finish(now)
        if node.running is None:
            node.next(now)

    def _finish(self, now: float) -> None:
        home = self.world.nodes[self.plan.home]
        if home.alive:
            home.cache.insert(self.lead.keys)
        self.world.prefilled(self.lead, now)

    def member_died(self, now: float) -> None:
        """A member is gone, and with it the group; the request is tried again elsewhere."""
        if self.broken:
            return
        self.broken = True
        for hold in self.holds.values():
            self.world.conductor.ledger.release(hold, now)
        for node, part in zip(self.nodes, self.parts, strict=True):
            if node.running is part:
                node.running = None
                node.next(now)
            elif part in node.queue:
                node.queue.remove(part)
        self.world.faults.attempt_failed(now, self.lead)

"""Planners in the loop of the simulated fleet: pipeline groups, hot-prefix migration, batching.

The planners are the service's own; this module gives them what they look at and carries out, in
virtual time, what they decide.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from core.domain import BlockKey, Decision, Request, Slot
from core.groups import GroupPlanner
from core.plan.batching import Batch, ColdPrefixBoard, Pending, form_batches
from core.plan.cpp import CppPlan
from core.plan.migration import MigrationNode, MigrationPlan, MigrationPlanner
from core.plan.prefill import fleet_load
from core.simulation.links import Flow
from core.simulation.results import Samples

if TYPE_CHECKING:
    from core.simulation.world import World

HOT_LIMIT = 20
RECENT = 4096
"""Requests whose keys are remembered, to name all blocks of a hot prefix."""
WATCHED = 5


class Planners:
    """Runs the switched-on planners and carries out what they plan."""

    def __init__(self, world: World) -> None:
        t = world.tunables
        self.world = world
        self.cpp = t.cpp.enabled
        self.groups = GroupPlanner(world.conductor)
        self.migration = MigrationPlanner(t.migration, 0.0) if t.migration.enabled else None
        self.batcher = Batcher(world) if t.batching.enabled else None
        self.counts = {"cpp_plans": 0, "migrations": 0, "replica_drops": 0, "batches": 0}
        self.watching = world.scenario.samples > 0
        self.watched = self.cpp or self.watching or self.migration is not None
        """Whether `group` has to hear of every decision."""
        self.recent: deque[Sequence[int]] = deque(maxlen=RECENT)
        if self.migration is not None:
            world.schedule(t.migration.scan_s, self._scan, None)

    def group(self, decision: Decision, now: float) -> CppPlan | None:
        """A pipeline group for the placed prompt, where that is on and better."""
        if self.migration is not None or self.watching:
            self._note_access(decision, now)
        if not self.cpp:
            return None
        found = self.groups.plan(decision, now)
        self.counts["cpp_plans"] += found is not None
        return found

    def _note_access(self, decision: Decision, now: float) -> None:
        for size, keys in decision.request.keys.items():
            self.recent.append(keys)
            self.world.conductor.index.touch(keys, size, now)

    # -- migration ---------------------------------------------------------------------------

    def _scan(self, now: float, _: None) -> None:
        world = self.world
        assert self.migration is not None
        scan = self.migration.scan(
            world.conductor.index.hot(now, HOT_LIMIT),
            self._nodes(now),
            now,
            move_s=self._move_s,
            dry_run=world.tunables.migration.dry_run,
        )
        self.counts["replica_drops"] += len(scan.drops)
        for plan in () if world.tunables.migration.dry_run else scan.plans:
            self._migrate(plan, now)
        if world.ended < len(world.workload):
            world.schedule(now + world.tunables.migration.scan_s, self._scan, None)

    def _nodes(self, now: float) -> list[MigrationNode]:
        world = self.world
        fleet = world.conductor.fleet
        busy = fleet_load(fleet, world.tunables, now)
        return [
            MigrationNode(
                slot=Slot(node.slot),
                load=float(busy.load[node.slot]),
                queue_s=float(busy.wait_s[node.slot]),
                room_tokens=float(fleet.kv_capacity[node.slot] - fleet.kv_tokens[node.slot]),
                prefill=node.prefill_cost,
                receives=node.alive,
            )
            for node in world.nodes
            if fleet.prefills[node.slot]
        ]

    def _move_s(self, tokens: int, source: Slot, target: Slot) -> float:
        latency, per_byte = self.world.conductor.topology.row(source)
        return float(latency[target] + tokens * self.world.kv_bytes * per_byte[target])

    def _migrate(self, plan: MigrationPlan, now: float) -> None:
        """Send the blocks the target lacks; dropped replicas age out of the target's cache."""
        world, planner = self.world, self.migration
        assert planner is not None
        keys = self._chain(plan.key, plan.depth_blocks)
        source, target = world.nodes[plan.source], world.nodes[plan.target]
        held = 0 if keys is None else source.cache.match(keys)
        if keys is None or held < plan.depth_blocks:
            planner.finished(plan, now, ok=False)
            return
        own = target.cache.match(keys)

        def done(at_s: float, _flow: Flow, whole: bool) -> None:
            if whole and target.alive and target.cache.match(keys[:own]) == own:
                target.cache.insert(keys)
                self.counts["migrations"] += 1
            planner.finished(plan, at_s, ok=whole)

        size = (len(keys) - own) * world.workload.block_tokens * world.kv_bytes
        world.links.start(now, plan.source, plan.target, size, done)

    def _chain(self, key: BlockKey, depth: int) -> Sequence[int] | None:
        """All blocks of a hot prefix, from a recent prompt that starts with it."""
        for keys in reversed(self.recent):
            if len(keys) >= depth and keys[depth - 1] == key:
                return keys[:depth]
        return None

    def node_died(self, slot: int) -> None:
        """What was planned for the node is void."""
        if self.migration is not None:
            self.migration.forget_node(Slot(slot))
        if self.batcher is not None:
            self.batcher.board.failed(Slot(slot))

    # -- figures -----------------------------------------------------------------------------

    def sample(self, samples: Samples, now: float) -> None:
        """Note how many nodes hold each of the hottest prefixes, most held first."""
        hot = self.world.conductor.index.hot(now, WATCHED)
        counts = sorted((len(prefix.holders) for prefix in hot), reverse=True)
        samples.replicas.append([*counts, *[0] * (WATCHED - len(counts))])

    def counters(self) -> dict[str, int]:
        """What was planned and done."""
        return dict(self.counts)


class Batcher:
    """Holds arrivals for a moment under load and places them batch by batch."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rules = world.tunables.batching
        self.board = ColdPrefixBoard(self.rules)
        self.pending: list[Pending] = []
        self.jobs: dict[str, tuple[int, Request]] = {}
        self.due_s = float("inf")

    def add(self, i: int, request: Request, now: float) -> None:
        """A request arrived."""
        size, keys = next(iter(request.keys.items()))
        match = self.world.conductor.match(request.keys)
        waiting = Pending(
            id=request.id,
            model=request.model,
            prompt_tokens=request.prompt_tokens,
            keys=keys,
            block_size=size,
            reachable_tokens=int(match.max(initial=0)),
            arrived_s=now,
            priority=request.priority,
        )
        self.pending.append(waiting)
        self.jobs[request.id] = (i, request)
        self.flush(now, None)

    def flush(self, now: float, _: Any) -> None:
        """Place what is due."""
        world = self.world
        load = float(fleet_load(world.conductor.fleet, world.tunables, now).load.mean())
        formed = form_batches(self.pending, now, rules=self.rules, load=load)
        self.pending = list(formed.waiting)
        for batch in formed.batches:
            self._dispatch(batch, now)
        if self.pending and formed.due_s != self.due_s:
            self.due_s = formed.due_s
            world.schedule(formed.due_s, self.flush, None)

    def _dispatch(self, batch: Batch, now: float) -> None:
        self.world.planners.counts["batches"] += 1
        for waiting in batch.requests:
            i, request = self.jobs.pop(waiting.id)
            slot = self._follow(waiting, request, now)
            placed = self.world.place(now, i, request, only=slot)
            if slot is None and batch.group is not None and placed is not None:
                due = now + placed.predicted.ttft_s
                self.board.led(
                    waiting.keys, batch.depth_blocks, block_size=waiting.block_size,
                    slot=placed.prefill_slot, due_s=due,
                )  # fmt: skip

    def _follow(self, waiting: Pending, request: Request, now: float) -> Slot | None:
        """The node where the request's cold prefix is being computed, if it should go there."""
        cold = self.board.find(waiting.keys, now)
        if cold is None:
            return None
        fleet = self.world.conductor.fleet
        match = self.world.conductor.match(request.keys)
        length = request.prompt_tokens
        warm = match.clip(min=cold.tokens)
        slope, curve = fleet.c1, fleet.c2
        return self.board.follow(
            cold,
            queue_s=fleet_load(fleet, self.world.tunables, now).wait_s,
            warm_s=(length - warm) * (slope + curve * (length + warm)),
            cold_s=(length - match) * (slope + curve * (length + match)),
            allowed=fleet.prefills & fleet.healthy & ~fleet.draining,
        )

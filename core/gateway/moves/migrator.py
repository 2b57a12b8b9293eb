"""Looks for hot prefixes every few seconds, and carries out what the planner wants copied.

The planner (`core.plan.migration`, the simulator's own) decides; this module gives it the fleet
as it is, finds the tokens, runs the executors as tasks, and keeps the books.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from core.domain import BlockKey, NodeId, NodeSpec, Slot, Trust
from core.errors import Conflict, EngineFault, EngineTimeout, NotFound
from core.gateway.moves.executors import Carried, Errand, Executor, executors
from core.gateway.moves.move import Move, MoveState
from core.gateway.moves.recent import KnownPrefix, KnownPrompt, RecentPrompts
from core.index.types import HotPrefix
from core.plan.cost_model import profile
from core.plan.migration import MigrationNode, MigrationPlan, MigrationPlanner, ReplicaDrop
from core.plan.prefill import fleet_load

if TYPE_CHECKING:
    from core.gateway.intake import Intake
    from core.gateway.service import Service

HOT_LIMIT = 50
ENDED_MAX = 200
EXECUTE_S = 120.0
"""Longest that one executor may take."""
AUTHOR = "migration"
log = logging.getLogger("conductor.migration")


class Migrator:
    """One a service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._conductor = service.conductor
        self.rules = service.conductor.tunables.migration
        self.planner = MigrationPlanner(self.rules, service.clock.now())
        self.recent = RecentPrompts(service.limits.prompt_memory_bytes)
        self.executors: tuple[Executor, ...] = executors(service)
        self.live: dict[str, Move] = {}
        """Planned (to start) and running, by id."""
        self.dry: tuple[Move, ...] = ()
        """What the last look would have started."""
        self.ended: deque[Move] = deque(maxlen=ENDED_MAX)
        self.held_back: dict[str, int] = {}
        self.totals: Counter[str] = Counter()
        self.looked_s: float | None = None
        self.look_took_s = 0.0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._lives: dict[Slot, int] = {}
        self._room = asyncio.Semaphore(self.rules.concurrent_max)
        service.jobs.add(
            "migration",
            lambda: self.look(service.clock.now()),
            every_s=lambda: self._conductor.tunables.migration.scan_s,
            what="look for hot prefixes, plan and start copies, forget cooled ones",
        )

    # -- life ------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Give up what runs."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def saw(self, intake: Intake) -> None:
        """A request came: remember its prompt, where copies of it may be wanted."""
        prompt, rules = intake.prompt, self._conductor.tunables.migration
        if not rules.enabled or prompt is None or not prompt.exact:
            return
        if prompt.length < rules.min_tokens:
            return
        salt = intake.body.get("cache_salt") if intake.body else None
        self.recent.add(
            KnownPrompt(
                served=intake.served,
                base=intake.base,
                adapter=intake.adapter,
                salt=salt if isinstance(salt, str) else "",
                tokens=prompt.tokens,
                keys=intake.request.keys,
            )
        )

    # -- looking -----------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """One look at the hot prefixes at `now`: plan, start, drop."""
        self._follow_rules(now)
        self._follow_fleet()
        self.dry = ()
        if not self.rules.enabled:
            self.recent.clear()
            return
        began = perf_counter()
        scan = self.planner.scan(
            self._hot_soon(now),
            self._nodes(now),
            now,
            move_s=self._move_s,
            dry_run=self.rules.dry_run,
        )
        self.held_back = dict(scan.held_back)
        for name, count in scan.held_back.items():
            self.totals[f"held_back.{name}"] += count
        if self.rules.dry_run:
            self.dry = tuple(self._made(plan, dry_run=True) for plan in scan.plans)
        else:
            for plan in scan.plans:
                self.launch(self._made(plan), self.recent.find(plan.key, plan.depth_blocks))
            for drop in scan.drops:
                self._dropped(drop)
        self.looked_s, self.look_took_s = now, perf_counter() - began

    def _hot_soon(self, now: float) -> list[HotPrefix]:
        """Hot prefixes with the rates that are expected soon, where the forecast is any good."""
        found, growth = self._conductor.index.hot(now, HOT_LIMIT), self._conductor.growth
        if growth == 1.0:
            return list(found)
        return [replace(hot, rate_per_s=hot.rate_per_s * growth) for hot in found]

    def _follow_rules(self, now: float) -> None:
        rules = self._conductor.tunables.migration
        if rules == self.rules:
            return
        if rules.concurrent_max != self.rules.concurrent_max:
            self._room = asyncio.Semaphore(rules.concurrent_max)
        self.rules = rules
        self.planner.configure(rules, now)

    def _follow_fleet(self) -> None:
        """Void what was planned for nodes that left or restarted."""
        fleet = self._conductor.fleet
        lives = {slot: int(fleet.generation[slot]) for slot, _ in fleet.slots()}
        for slot, life in self._lives.items():
            if lives.get(slot) != life:
                self.planner.forget_node(slot)
        self._lives = lives

    def _nodes(self, now: float) -> list[MigrationNode]:
        fleet, allowed = self._conductor.fleet, self._conductor.breakers.allowed(now)
        busy = fleet_load(fleet, self._conductor.tunables, now)
        return [
            MigrationNode(
                slot=slot,
                load=float(busy.load[slot]),
                queue_s=float(busy.wait_s[slot]),
                room_tokens=float(fleet.kv_capacity[slot] - fleet.kv_tokens[slot]),
                prefill=(float(fleet.c0[slot]), float(fleet.c1[slot]), float(fleet.c2[slot])),
                pool=_pool(spec),
                receives=bool(fleet.healthy[slot] and not fleet.draining[slot] and allowed[slot]),
            )
            for slot, spec in fleet.slots()
            if fleet.prefills[slot] and spec.url
        ]

    def _how(self, source: NodeSpec, target: NodeSpec) -> Executor:
        return next(e for e in self.executors if e.applies(source, target))

    def _move_s(self, tokens: int, source: Slot, target: Slot) -> float:
        """Seconds by the way that these two nodes allow."""
        fleet = self._conductor.fleet
        how = self._how(fleet.spec_at(source), fleet.spec_at(target))
        if how.moves:
            nbytes = tokens * float(fleet.kv_bytes[source])
            return float(self._conductor.topology.seconds(nbytes, source, target))
        c0, c1, c2 = (float(c[target]) for c in (fleet.c0, fleet.c1, fleet.c2))
        return c0 + c1 * tokens + c2 * float(tokens) ** 2

    def _dropped(self, drop: ReplicaDrop) -> None:
        """No engine offers to drop one prefix, so its own eviction does: it is cold by now."""
        self.totals["forgotten"] += 1
        node = self._conductor.fleet.node_at(drop.target)
        facts = {"prefix": f"{drop.key:016x}", "held_s": round(drop.held_s, 1)}
        self._service.record_event("migration.forgotten", node, facts)

    # -- carrying out ------------------------------------------------------------------------

    def _made(
        self, plan: MigrationPlan, *, dry_run: bool = False, reason: str = "", author: str = ""
    ) -> Move:
        fleet = self._conductor.fleet
        source, target = fleet.spec_at(plan.source), fleet.spec_at(plan.target)
        return Move(
            id="" if dry_run else f"m{plan.id}-{self._service.new_request_id()[:6]}",
            plan=plan,
            source=source.id,
            target=target.id,
            how=self._how(source, target).name,
            planned_at=self._service.clock.wall(),
            kv_bytes_per_token=profile(target.profile).kv_bytes_per_token,
            dry_run=dry_run,
            reason=reason,
            author=author or AUTHOR,
            manual=bool(author),
        )

    def launch(self, move: Move, prefix: KnownPrefix | None, *, told: bool = False) -> None:
        """Start a move; one whose tokens nobody remembers fails at once, and says so.

        told: its event is stored already.
        """
        self.live[move.id] = move
        self._tell(move, told=told)
        if prefix is None:
            text = "the tokens of this prefix are not known: no recent prompt begins with it"
            self._end(move, MoveState.FAILED, error=text)
            return
        task = asyncio.create_task(self._carry_out(move, prefix), name=f"migration {move.id}")
        self._tasks[move.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(move.id, None))

    async def _carry_out(self, move: Move, prefix: KnownPrefix) -> None:
        try:
            async with self._room:
                await self._execute(move, prefix)
        except (EngineFault, NotFound) as fault:
            self._end(move, MoveState.FAILED, error=fault.message)
        except asyncio.CancelledError:
            self._end(move, MoveState.CANCELLED)
            raise
        except Exception as error:
            log.exception("migration %s failed", move.id)
            self._end(move, MoveState.FAILED, error=f"{type(error).__name__}: {error}")

    async def _execute(self, move: Move, prefix: KnownPrefix) -> None:
        fleet, clock = self._conductor.fleet, self._service.clock
        source, target = fleet.spec(move.source), fleet.spec(move.target)
        errand = Errand(prefix=prefix, source=source, target=target, name=move.id)
        move.state, move.started_at = MoveState.RUNNING, clock.wall()
        self._tell(move)
        began = clock.now()
        with self._counted(move):
            try:
                async with asyncio.timeout(EXECUTE_S):
                    carried = await self._how(source, target).carry_out(errand)
            except TimeoutError:
                raise EngineTimeout(f"not done within {EXECUTE_S:g} s") from None
        move.seconds = clock.now() - began
        self._arrived(move, prefix, carried)
        self._end(move, MoveState.DONE)

    @contextmanager
    def _counted(self, move: Move) -> Iterator[None]:
        """The target is busy meanwhile: decisions are to know it."""
        ledger, clock, plan = self._conductor.ledger, self._service.clock, move.plan
        seconds = plan.move_s if plan.move_s < EXECUTE_S else EXECUTE_S
        hold = ledger.hold(plan.target, seconds, tokens=plan.tokens, now=clock.now())
        try:
            yield
        finally:
            ledger.release(hold, clock.now())

    def _arrived(self, move: Move, prefix: KnownPrefix, carried: Carried) -> None:
        """Book the tokens; a node without events is told of by us."""
        move.moved_tokens = carried.moved_tokens
        known = carried.moved_tokens + (carried.cached_tokens or 0)
        move.computed_tokens = max(move.plan.tokens - known, 0)
        slot, now = move.plan.target, self._service.clock.now()
        fleet = self._conductor.fleet
        there = fleet.has(move.target) and fleet.slot(move.target) == slot
        if there and self._conductor.trust.trust(slot) is Trust.APPROXIMATE:
            self._conductor.index.record_route(slot, prefix.keys, now)

    def _end(self, move: Move, state: MoveState, *, error: str = "", told: bool = False) -> None:
        if move.state.ended:
            return
        now = self._service.clock.now()
        move.state, move.error = state, error[:500]
        move.ended_at = self._service.clock.wall()
        if state is MoveState.CANCELLED:
            self.planner.cancel(move.plan, now)
        else:
            self.planner.finished(move.plan, now, ok=state is MoveState.DONE)
        self.live.pop(move.id, None)
        self.ended.appendleft(move)
        self.totals["moved_tokens"] += move.moved_tokens
        self.totals["computed_tokens"] += move.computed_tokens
        self.totals["moved_bytes"] += round(move.moved_bytes)
        self._tell(move, told=told)

    def _tell(self, move: Move, *, told: bool = False) -> None:
        self._service.counters[f"migration.{move.state}"] += 1
        if not told:
            self._service.record_event(f"migration.{move.state}", move.target, move.facts())

    # -- operators ---------------------------------------------------------------------------

    def alive(self, id: str) -> Move:
        """A planned or running move; NotFound for any other."""
        move = self.live.get(id)
        if move is None:
            raise NotFound(f"no migration {id!r} is planned or running", field="id")
        return move

    def cancel(self, move: Move, *, reason: str, author: str) -> None:
        """Give a move up whose end is told already."""
        move.reason, move.author = reason or move.reason, author
        self._end(move, MoveState.CANCELLED, told=True)
        task = self._tasks.get(move.id)
        if task is not None:
            task.cancel()

    def give_back(self, move: Move) -> None:
        """A move that `by_hand` made is not to be: nothing is planned."""
        self.planner.forget(move.plan)

    def by_hand(
        self, key: int, target: NodeId, *, reason: str, author: str
    ) -> tuple[Move, KnownPrefix]:
        """The move that copies a prefix because an operator wants it, to `launch` or
        `give_back`. Errors as `start_move`'s."""
        fleet, now = self._conductor.fleet, self._service.clock.now()
        slot = fleet.slot(target)
        prefix = self._to_copy(key)
        nodes = {node.slot: node for node in self._nodes(now)}
        if slot not in nodes or not _serves(fleet.spec(target), prefix):
            served, size = prefix.prompt.served, prefix.block_size
            text = f"target: {target} computes no prompts of {served} in {size}-token blocks"
            raise Conflict(text, field="target")
        self._follow_rules(now)
        holders = self._conductor.index.holders(key)
        if slot in holders:
            raise Conflict(f"target: {target} holds this prefix", field="target")
        plan = self.planner.by_hand(
            self._as_hot(key, prefix, holders, now),
            self._source(slot, holders, nodes),
            nodes[slot],
            sum(node.load for node in nodes.values()) / len(nodes),
            now,
            move_s=self._move_s,
        )
        if plan is None:
            raise Conflict(f"prefix: it is on its way to {target} already", field="prefix")
        return self._made(plan, reason=reason, author=author or "operator"), prefix

    def _to_copy(self, key: int) -> KnownPrefix:
        """The prefix of a key; NotFound where no recent prompt begins with it."""
        found = self.recent.search(key)
        if found is not None:
            return found
        text = f"prefix: the tokens of {key:016x} are not known: no recent prompt begins with it"
        if not self._conductor.tunables.migration.enabled:
            text += "; prompts are remembered while migration.enabled is on (dry_run suffices)"
        raise NotFound(text, field="prefix")

    def _as_hot(
        self, key: int, prefix: KnownPrefix, holders: Sequence[Slot], now: float
    ) -> HotPrefix:
        for hot in self._conductor.index.hot(now, HOT_LIMIT):
            if hot.key == key:
                return hot
        return HotPrefix(
            key=BlockKey(key),
            depth_blocks=prefix.depth_blocks,
            tokens=prefix.depth_blocks * prefix.block_size,
            rate_per_s=0.0,
            hits=0,
            holders=tuple(holders),
        )

    def _source(
        self, target: Slot, holders: Sequence[Slot], nodes: Mapping[Slot, MigrationNode]
    ) -> MigrationNode:
        """The least loaded holder; the target itself where nobody holds the prefix."""
        there = [nodes[slot] for slot in holders if slot in nodes]
        return min(there, key=lambda n: (n.load, n.slot), default=nodes[target])


def _pool(spec: NodeSpec) -> str:
    """Nodes of equal pools can use each other's prefixes, for the same tenants."""
    return repr((sorted(spec.models), sorted(spec.adapters), spec.block_size, sorted(spec.tenants)))


def _serves(spec: NodeSpec, prefix: KnownPrefix) -> bool:
    served = prefix.prompt.served in (*spec.models, *spec.adapters)
    return served and spec.block_size == prefix.block_size

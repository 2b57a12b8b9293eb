"""Hot-prefix replication: which prefix goes where, how often, and when it is given up (spec 8).

A prefix is worth a replica when three things hold (S1 7.2):

    its access rate >= rate_min_per_s
    its least loaded holder's load > load_ratio * mean load
    some node below the mean load, without the prefix, has room for it

With `copies` holders, moves under way included, the target gets about 1 / (copies + 1) of the
accesses. Each then saves what it would have lost otherwise: waiting at the best holder, or
computing the prefix on the target, whichever is less::

    saved = min(queue_s(holder), queue_s(target) + recompute_s) - queue_s(target)
    benefit = window * rate / (copies + 1) * saved - seconds to move it

Plans without benefit are not made. Tokens moved and plans started are budgeted by token buckets;
one prefix is never moved to one target twice at once, and waits `backoff_s` after a plan ended,
doubling with each failure in a row. Replicas made here are dropped once their prefix has been
below half of `rate_min_per_s` for a window; what engines cached by themselves is not ours to drop.

Pure state: `scan` says what to start, executors elsewhere do it and report to `finished`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from core.domain import BlockKey, Slot
from core.index.types import HotPrefix
from core.plan.budget import Bucket
from core.tunables import Migration

BURST_S = 10.0
"""The token budget may be saved up this long."""
BACKOFF_DOUBLINGS = 5
RUN_MAX_S = 300.0
"""A plan that has not been reported finished by then (or thrice its time) has failed."""
COOL_RATIO = 0.5
"""A replica is kept while its prefix has this part of the rate that made it hot."""

MoveSeconds = Callable[[int, Slot, Slot], float]
"""(tokens, source, target) -> seconds to bring the prefix there; inf where impossible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationNode:
    """What the planner needs of a node."""

    slot: Slot
    load: float
    queue_s: float
    room_tokens: float
    """KV capacity not held by live requests."""
    prefill: tuple[float, float, float]
    """c0, c1, c2 of t(L, p) = c0 + c1 (L - p) + c2 (L^2 - p^2)."""
    pool: str = ""
    """Prefixes move only within a pool: same model and block size."""
    receives: bool = True
    """False while unhealthy, draining, or ejected."""

    def recompute_s(self, tokens: int) -> float:
        """Time to compute the prefix here instead."""
        c0, c1, c2 = self.prefill
        return c0 + c1 * tokens + c2 * float(tokens) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationPlan:
    """Copy a prefix from `source` to `target`; the figures say why."""

    id: int
    key: BlockKey
    tokens: int
    depth_blocks: int
    source: Slot
    target: Slot
    made_s: float
    rate_per_s: float
    copies: int
    """Live holders, and copies under way, before this plan."""
    source_load: float
    mean_load: float
    target_load: float
    move_s: float
    saved_s: float
    """Per access that the target takes over."""
    benefit_s: float
    """Request-seconds saved over one window, moving taken off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaDrop:
    """Give up a replica that was made here and has cooled."""

    key: BlockKey
    target: Slot
    held_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Outcome of one look at the hot prefixes."""

    plans: tuple[MigrationPlan, ...]
    """To start now, best benefit first; already counted as running."""
    drops: tuple[ReplicaDrop, ...]
    held_back: Mapping[str, int]
    """Reason -> prefixes (or prefix and target pairs) that were not moved for it."""


@dataclass(slots=True)
class _Pause:
    until_s: float
    failures: int


class MigrationPlanner:
    """Decides replicas; see the module's theory. One instance a fleet."""

    def __init__(self, rules: Migration, now: float) -> None:
        self._rules = rules
        self._serial = 0
        self._running: dict[tuple[BlockKey, Slot], MigrationPlan] = {}
        self._pauses: dict[tuple[BlockKey, Slot], _Pause] = {}
        self._replicas: dict[tuple[BlockKey, Slot], tuple[float, float]] = {}
        """(made, last hot), seconds."""
        self._tokens = Bucket(rate_per_s=0.0, burst=0.0, now=now)
        self._starts = Bucket(rate_per_s=0.0, burst=0.0, now=now)
        self.configure(rules, now)

    def configure(self, rules: Migration, now: float) -> None:
        """New rules from now on; the budgets start full."""
        self._rules = rules
        rate = rules.budget_tokens_per_s
        self._tokens = Bucket(rate_per_s=rate, burst=rate * BURST_S, now=now)
        per_s = rules.plans_per_minute / 60.0
        self._starts = Bucket(rate_per_s=per_s, burst=rules.plans_per_minute, now=now)

    @property
    def running(self) -> tuple[MigrationPlan, ...]:
        """Plans started and not finished."""
        return tuple(self._running.values())

    @property
    def replicas(self) -> tuple[tuple[BlockKey, Slot], ...]:
        """Replicas made here and not dropped yet."""
        return tuple(self._replicas)

    def scan(
        self,
        hot: Sequence[HotPrefix],
        nodes: Sequence[MigrationNode],
        now: float,
        *,
        move_s: MoveSeconds,
        rate_of: Callable[[BlockKey], float] | None = None,
        dry_run: bool = False,
    ) -> Scan:
        """What to copy and to drop now.

        hot: as listed by the index. rate_of: access rate of any prefix, where the index can tell
        (a listed prefix may give its place to a longer one while it is still hot); without it
        only the listed ones count as hot. dry_run: show, start nothing, spend nothing.
        """
        held_back: dict[str, int] = {}
        by_slot = {node.slot: node for node in nodes}
        wanted: list[MigrationPlan] = []
        for prefix in hot:
            found = self._considered(prefix, by_slot, now, move_s, held_back)
            if found is not None:
                wanted.append(found)
        wanted.sort(key=lambda p: (-p.benefit_s, p.key))
        plans = wanted
        if not dry_run:
            self._expire(now)
            started = [self._started(p, now, held_back) for p in wanted]
            plans = [p for p in started if p is not None]
        drops = self._cooled(hot, by_slot, now, rate_of, dry_run)
        return Scan(plans=tuple(plans), drops=drops, held_back=held_back)

    def by_hand(
        self,
        prefix: HotPrefix,
        source: MigrationNode,
        target: MigrationNode,
        mean_load: float,
        now: float,
        *,
        move_s: MoveSeconds,
    ) -> MigrationPlan | None:
        """Start what an operator asks for, without asking for benefit, room, budget or pause.

        None where this prefix is on its way to this target already. A prefix that nobody holds
        has its target for its source.
        """
        if (prefix.key, target.slot) in self._running:
            return None
        copies = len(prefix.holders) + self._moving(prefix.key)
        return self._begun(self._planned(prefix, source, target, copies, mean_load, now, move_s))

    def finished(self, plan: MigrationPlan, now: float, *, ok: bool) -> None:
        """An executor reports the end of a plan; unknown or cancelled ones are ignored."""
        pair = (plan.key, plan.target)
        running = self._running.get(pair)
        if running is None or running.id != plan.id:
            return
        del self._running[pair]
        failures = 0 if ok else self._failures(pair) + 1
        doubled = 2.0 ** min(max(failures - 1, 0), BACKOFF_DOUBLINGS)
        self._pauses[pair] = _Pause(now + self._rules.backoff_s * doubled, failures)
        if ok:
            self._replicas[pair] = (now, now)

    def cancel(self, plan: MigrationPlan, now: float) -> None:
        """Give a running plan up (an operator's act): it pauses as after success."""
        running = self._running.get((plan.key, plan.target))
        if running is not None and running.id == plan.id:
            del self._running[(plan.key, plan.target)]
            until = now + self._rules.backoff_s
            self._pauses[(plan.key, plan.target)] = _Pause(until, 0)

    def forget(self, plan: MigrationPlan) -> None:
        """A plan that was not carried out: as if it had never been."""
        running = self._running.get((plan.key, plan.target))
        if running is not None and running.id == plan.id:
            del self._running[(plan.key, plan.target)]

    def forget_node(self, slot: Slot) -> None:
        """A node left or lost its cache: its plans, pauses and replicas are void."""
        for pair, plan in list(self._running.items()):
            if slot in (plan.source, plan.target):
                del self._running[pair]
        for pair in [pair for pair in self._pauses if pair[1] == slot]:
            del self._pauses[pair]
        for pair in [pair for pair in self._replicas if pair[1] == slot]:
            del self._replicas[pair]

    # -- one prefix ------------------------------------------------------------------------

    def _considered(
        self,
        prefix: HotPrefix,
        nodes: Mapping[Slot, MigrationNode],
        now: float,
        move_s: MoveSeconds,
        held_back: dict[str, int],
    ) -> MigrationPlan | None:
        holders = [nodes[slot] for slot in prefix.holders if slot in nodes]
        reason = self._not_wanted(prefix, holders)
        if not reason:
            source = min(holders, key=lambda n: (n.load, n.queue_s, n.slot))
            pool = [n for n in nodes.values() if n.pool == source.pool]
            mean = sum(n.load for n in pool) / len(pool)
            if source.load <= self._rules.load_ratio * mean:
                return None
            found, reason = self._best_target(prefix, source, holders, pool, mean, now, move_s)
            if found is not None:
                return found
        if reason:
            held_back[reason] = held_back.get(reason, 0) + 1
        return None

    def _not_wanted(self, prefix: HotPrefix, holders: Sequence[MigrationNode]) -> str:
        if prefix.rate_per_s < self._rules.rate_min_per_s:
            return "not_hot"
        if prefix.tokens < self._rules.min_tokens:
            return "too_short"
        if not holders:
            return "no_live_holder"
        copies = len(holders) + self._moving(prefix.key)
        return "replicas_max" if copies >= self._rules.replicas_max else ""

    def _best_target(
        self,
        prefix: HotPrefix,
        source: MigrationNode,
        holders: Sequence[MigrationNode],
        pool: Sequence[MigrationNode],
        mean: float,
        now: float,
        move_s: MoveSeconds,
    ) -> tuple[MigrationPlan | None, str]:
        """The most beneficial plan for a prefix, or why there is none."""
        held = {n.slot for n in holders}
        fits = [
            n
            for n in pool
            if n.receives
            and n.slot not in held
            and n.load < mean
            and n.room_tokens >= prefix.tokens
        ]
        free = [n for n in fits if self._may_move(prefix.key, n.slot, now)]
        if not free:
            return None, "backoff" if fits else "no_target"
        copies = len(holders) + self._moving(prefix.key)
        plans = [self._planned(prefix, source, n, copies, mean, now, move_s) for n in free]
        best = max(plans, key=lambda p: (p.benefit_s, -p.target_load, -p.target))
        return (best, "") if best.benefit_s > 0 else (None, "no_benefit")

    def _planned(
        self,
        prefix: HotPrefix,
        source: MigrationNode,
        target: MigrationNode,
        copies: int,
        mean: float,
        now: float,
        move_s: MoveSeconds,
    ) -> MigrationPlan:
        moving_s = move_s(prefix.tokens, source.slot, target.slot)
        otherwise_s = min(source.queue_s, target.queue_s + target.recompute_s(prefix.tokens))
        saved_s = max(otherwise_s - target.queue_s, 0.0)
        taken_over = self._rules.window_s * prefix.rate_per_s / (copies + 1)
        return MigrationPlan(
            id=0,
            key=prefix.key,
            tokens=prefix.tokens,
            depth_blocks=prefix.depth_blocks,
            source=source.slot,
            target=target.slot,
            made_s=now,
            rate_per_s=prefix.rate_per_s,
            copies=copies,
            source_load=source.load,
            mean_load=mean,
            target_load=target.load,
            move_s=moving_s,
            saved_s=saved_s,
            benefit_s=taken_over * saved_s - moving_s,
        )

    def _moving(self, key: BlockKey) -> int:
        return sum(1 for moving, _ in self._running if moving == key)

    # -- state -----------------------------------------------------------------------------

    def _may_move(self, key: BlockKey, target: Slot, now: float) -> bool:
        pair = (key, target)
        pause = self._pauses.get(pair)
        return pair not in self._running and (pause is None or now >= pause.until_s)

    def _failures(self, pair: tuple[BlockKey, Slot]) -> int:
        pause = self._pauses.get(pair)
        return 0 if pause is None else pause.failures

    def _started(
        self, plan: MigrationPlan, now: float, held_back: dict[str, int]
    ) -> MigrationPlan | None:
        reason = ""
        if not self._starts.affords(1.0, now):
            reason = "rate_limit"
        elif not self._tokens.spend(plan.tokens, now):
            reason = "budget"
        if reason:
            held_back[reason] = held_back.get(reason, 0) + 1
            return None
        self._starts.spend(1.0, now)
        return self._begun(plan)

    def _begun(self, plan: MigrationPlan) -> MigrationPlan:
        self._serial += 1
        plan = replace(plan, id=self._serial)
        self._running[plan.key, plan.target] = plan
        return plan

    def _expire(self, now: float) -> None:
        """Plans whose executor never reported count as failed."""
        for plan in self.running:
            if now - plan.made_s > max(RUN_MAX_S, 3.0 * plan.move_s):
                self.finished(plan, now, ok=False)

    def _cooled(
        self,
        hot: Sequence[HotPrefix],
        nodes: Mapping[Slot, MigrationNode],
        now: float,
        rate_of: Callable[[BlockKey], float] | None,
        dry_run: bool,
    ) -> tuple[ReplicaDrop, ...]:
        listed = {prefix.key: prefix.rate_per_s for prefix in hot}
        floor = COOL_RATIO * self._rules.rate_min_per_s
        drops = []
        for (key, slot), (made_s, hot_s) in list(self._replicas.items()):
            rate = listed.get(key, 0.0) if rate_of is None else rate_of(key)
            if rate >= floor:
                self._replicas[key, slot] = (made_s, now)
            elif now - hot_s >= self._rules.window_s:
                drops.append(ReplicaDrop(key=key, target=slot, held_s=now - made_s))
                if not dry_run:
                    del self._replicas[key, slot]
        self._forget_old_pauses(now)
        return tuple(d for d in drops if d.target in nodes)

    def _forget_old_pauses(self, now: float) -> None:
        keep_s = self._rules.backoff_s * 2.0**BACKOFF_DOUBLINGS
        for pair in [p for p, pause in self._pauses.items() if now > pause.until_s + keep_s]:
            del self._pauses[pair]

"""Two-stage hotspot detector and the global breaker (S3 3.2 and 5.1, spec 9).

Theory of operation. Requests that share their first `group_blocks` blocks are one prefix group;
M is the set of nodes that hold the group's blocks, M' the others, x the group's requests in a
sliding window and x' all others.

    stage 1   x / x' > |M| / |M'|: the group asks for more than its holders' share of the fleet
    stage 2   while alerted, 2 |M| requests of the group in a row were placed inside M: the
              policy does not spread it by itself, so M leaves the group's candidates for
              `cooldown_s`, and the others get to compute and keep the prefix

A group that more than two thirds of the nodes hold is no hotspot: with M taken out, the few that
are left would be one.

Each group walks calm -> alert -> filtered -> calm by `GROUP_TABLE`. Where one group is filtered
`trips_to_open` times in a row (each within `window_s` of the one before) spreading does not
help: the global breaker (`core.fleet.global_breaker`) opens.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from core.fleet.global_breaker import GlobalBreaker
from core.fleet.transition import Evidence, TransitionEvent
from core.tunables import Hotspot

GROUPS_MAX = 1024
"""Groups kept after pruning; between prunings up to twice as many."""
BUCKETS = 12
"""Resolution of the sliding window."""
CALM_RATIO = 0.8
"""An alert ends below this part of its threshold, so that it does not flicker."""
HOLDERS_SHARE_MAX = 2 / 3
"""Of the nodes; a group with more holders is spread already."""
_NOBODY: frozenset[int] = frozenset()


class Heat(enum.StrEnum):
    """State of one prefix group."""

    CALM = "calm"
    ALERT = "alert"
    FILTERED = "filtered"


class Sign(enum.Enum):
    """Columns of the group table."""

    SKEWED = 0
    EVEN = 1
    RUN = 2
    COOLED = 3


_C, _A, _F = Heat.CALM, Heat.ALERT, Heat.FILTERED
# fmt: off
GROUP_TABLE: dict[Heat, tuple[Heat, ...]] = {
    # before  skewed even run  cooled
    _C:      (_A,    _C,  _C,  _C),
    _A:      (_A,    _C,  _F,  _A),
    _F:      (_F,    _F,  _F,  _C),
}
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class HotGroup:
    """One prefix group as operators see it."""

    group: int
    """Key of the group's last leading block."""
    heat: Heat
    requests: int
    """In the window."""
    share: float
    """Of all requests in the window."""
    holders: int
    nodes: int
    run: int
    """Requests in a row placed on holders while alerted."""
    firings: int
    """Stage-2 firings in a row."""
    excluded: frozenset[int]
    until_s: float | None


class _Ring:
    """A count over a sliding window, in buckets; ticks are the owner's clock."""

    __slots__ = ("counts", "tick")

    def __init__(self, tick: int) -> None:
        self.counts = [0] * BUCKETS
        self.tick = tick

    def total(self, tick: int) -> int:
        if tick >= self.tick + BUCKETS:
            self.counts = [0] * BUCKETS
            self.tick = tick
        while self.tick < tick:
            self.tick += 1
            self.counts[self.tick % BUCKETS] = 0
        return sum(self.counts)

    def add(self, tick: int) -> int:
        count = self.total(tick) + 1
        self.counts[self.tick % BUCKETS] += 1
        return count


class _Group:
    __slots__ = (
        "excluded", "fired_s", "firings", "heat", "holders", "nodes", "ring", "run", "until_s",
    )  # fmt: skip

    def __init__(self, tick: int) -> None:
        self.ring = _Ring(tick)
        self.heat = Heat.CALM
        self.run = 0
        self.firings = 0
        self.fired_s = float("-inf")
        self.until_s: float | None = None
        self.excluded = _NOBODY
        self.holders = 0
        self.nodes = 0


class HotspotDetector:
    """Watches placements, filters hot groups' holders, and fires the global `breaker` it owns.

    Memory is bounded: groups beyond `GROUPS_MAX` are dropped, least requested first. Methods
    that can move a machine return the transitions since the last such call; the breaker's own
    methods (trip, reset, fallback) are called on it.
    """

    def __init__(self, rules: Hotspot, now: float) -> None:
        self._rules = rules
        self._groups: dict[int, _Group] = {}
        self._filtered: dict[int, _Group] = {}
        self._all = _Ring(self._tick(now))
        self.breaker = GlobalBreaker(rules, now)
        self._pending: list[TransitionEvent] = []

    def configure(self, rules: Hotspot) -> None:
        """New rules from now on; a new window length or group depth starts counting afresh."""
        if (rules.window_s, rules.group_blocks) != (self._rules.window_s, self._rules.group_blocks):
            self._groups.clear()
            self._filtered.clear()
            self._all.counts = [0] * BUCKETS
            self._all.tick = 0
        self._rules = rules
        self.breaker.configure(rules)

    def group_of(self, keys: Sequence[int]) -> int | None:
        """The group of a prompt with these block keys; None where it is shorter than a group."""
        depth = self._rules.group_blocks
        return keys[depth - 1] if len(keys) >= depth else None

    def excluded(self, group: int | None, now: float) -> frozenset[int]:
        """Slots that leave the candidates of the group now.

        A caller whose candidates would all leave ignores the filter: slow beats refused.
        """
        if not self._filtered or group is None or group not in self._filtered:
            return _NOBODY
        found = self._filtered[group]
        if found.until_s is not None and now >= found.until_s:
            self._cool(group, found)
            return _NOBODY
        return found.excluded

    def fallback(self, now: float) -> bool:
        """Whether scheduling is to use round robin instead of the policy."""
        return self.breaker.fallback(now)

    def observe(
        self, group: int | None, now: float, *, chosen: int, holders: Iterable[int], nodes: int
    ) -> tuple[TransitionEvent, ...]:
        """A request of `group` (None: of no group) was placed on the slot `chosen`.

        holders: slots of M among the live nodes that could serve the request; nodes: how many
        of those there are, |M| + |M'|.
        """
        falling_back = self.breaker.fallback(now)
        tick = self._tick(now)
        total = self._all.add(tick)
        if group is not None:
            found = self._groups.get(group) or self._add(group, tick)
            requests = found.ring.add(tick)
            if found.until_s is not None and now >= found.until_s:
                self._cool(group, found)
            self._judge(group, found, frozenset(holders), nodes, requests, total, now)
            if not falling_back and found.heat is Heat.ALERT:
                self._count_run(group, found, frozenset(holders), chosen, now)
        return self._taken(now)

    def tick(self, now: float) -> tuple[TransitionEvent, ...]:
        """Let timers run out; call it periodically."""
        for group, found in list(self._filtered.items()):
            if found.until_s is not None and now >= found.until_s:
                self._cool(group, found)
        return self._taken(now)

    def groups(self, now: float, limit: int = 20) -> list[HotGroup]:
        """The most requested groups of the window, and every group that is not calm."""
        tick = self._tick(now)
        total = max(self._all.total(tick), 1)
        ranked = sorted(
            self._groups.items(),
            key=lambda item: (item[1].heat is Heat.CALM, -item[1].ring.total(tick), item[0]),
        )
        return [
            HotGroup(
                group=group,
                heat=g.heat,
                requests=g.ring.total(tick),
                share=g.ring.total(tick) / total,
                holders=g.holders,
                nodes=g.nodes,
                run=g.run,
                firings=g.firings,
                excluded=g.excluded,
                until_s=g.until_s,
            )
            for group, g in ranked[:limit]
        ]

    # -- stage 1 and 2 ---------------------------------------------------------------------

    def _judge(
        self,
        group: int,
        found: _Group,
        holders: frozenset[int],
        nodes: int,
        requests: int,
        total: int,
        now: float,
    ) -> None:
        found.holders, found.nodes = len(holders), nodes
        wanted = requests * (nodes - len(holders))
        offered = len(holders) * (total - requests)
        few = 0 < len(holders) <= HOLDERS_SHARE_MAX * nodes
        enough = requests >= self._rules.requests_min and few
        evidence: Evidence = {
            "requests": requests,
            "total": total,
            "holders": len(holders),
            "nodes": nodes,
        }
        if enough and wanted > offered:
            self._step(group, found, Sign.SKEWED, now, "share_above_holders", evidence)
        elif not enough or wanted < CALM_RATIO * offered:
            self._step(group, found, Sign.EVEN, now, "share_within_holders", evidence)

    def _count_run(
        self, group: int, found: _Group, holders: frozenset[int], chosen: int, now: float
    ) -> None:
        found.run = found.run + 1 if chosen in holders else 0
        if found.run < 2 * len(holders):
            return
        again = now - found.fired_s <= self._rules.window_s
        found.firings = found.firings + 1 if again else 1
        found.fired_s = now
        evidence: Evidence = {
            "run": found.run,
            "holders": len(holders),
            "nodes": found.nodes,
            "firings": found.firings,
        }
        found.excluded = holders
        found.until_s = now + self._rules.cooldown_s
        self._filtered[group] = found
        self._step(group, found, Sign.RUN, now, "run_on_holders", evidence)
        self.breaker.fired(now, in_a_row=found.firings)

    def _cool(self, group: int, found: _Group) -> None:
        ended_s = found.until_s or 0.0
        self._filtered.pop(group, None)
        found.excluded, found.until_s = _NOBODY, None
        self._step(group, found, Sign.COOLED, ended_s, "timer", {})

    def _step(
        self, group: int, found: _Group, sign: Sign, now: float, cause: str, evidence: Evidence
    ) -> None:
        before, after = found.heat, GROUP_TABLE[found.heat][sign.value]
        if after is before:
            return
        found.heat = after
        found.run = 0
        self._pending.append(
            TransitionEvent(
                now_s=now,
                machine="hotspot",
                before=before.value,
                after=after.value,
                cause=cause,
                until_s=found.until_s,
                data={"group": f"{group:016x}", **evidence},
            )
        )

    # -- bounded memory --------------------------------------------------------------------

    def _add(self, group: int, tick: int) -> _Group:
        if len(self._groups) >= 2 * GROUPS_MAX:
            self._prune(tick)
        made = self._groups[group] = _Group(tick)
        return made

    def _prune(self, tick: int) -> None:
        ranked = sorted(
            self._groups.items(),
            key=lambda item: (item[1].heat is Heat.FILTERED, item[1].ring.total(tick)),
        )
        for group, found in ranked[:-GROUPS_MAX]:
            if found.heat is not Heat.FILTERED:
                del self._groups[group]

    def _tick(self, now: float) -> int:
        return int(now / self._rules.window_s * BUCKETS)

    def _taken(self, now: float) -> tuple[TransitionEvent, ...]:
        taken, self._pending = tuple(self._pending), []
        return (*taken, *self.breaker.tick(now))

"""What ties a node's cache and a job's transfers to the rest of the simulated fleet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from core.domain import Medium, Slot
from core.hashing import root_key
from core.simulation.engine_node import EngineNode, Job
from core.simulation.links import Flow
from core.simulation.scenario import MODEL

if TYPE_CHECKING:
    from core.simulation.world import World


class CacheFeed:
    """A cache's changes on their way to the index."""

    __slots__ = ("delayed", "index", "root", "slot", "world")

    def __init__(self, world: World, slot: Slot) -> None:
        self.world = world
        self.index = world.conductor.index
        self.delayed = world.scenario.event_delay_s > 0
        self.slot = slot
        self.root = root_key(MODEL, block_size=world.workload.block_tokens)

    def stored(self, keys: Sequence[int], medium: Medium, parent: int | None) -> None:
        """Tell the index, at once or after the set delay."""
        if self.delayed:
            self._later(self._store, (keys, medium, parent))
        else:
            self.index.store(self.slot, keys, medium=medium, parent=parent, root=self.root)

    def announce(self, keys: Sequence[int], held: int) -> None:
        """A queued prompt will have left its blocks by the time a later one starts: the node's
        queue is first come, first served. The first `held` blocks are there already."""
        if len(keys) > held:
            parent = keys[held - 1] if held else None
            self.index.store(self.slot, keys[held:], parent=parent, root=self.root)

    def removed(self, keys: Sequence[int], medium: Medium) -> None:
        """Tell the index, at once or after the set delay."""
        if self.delayed:
            self._later(self._remove, (keys, medium))
        else:
            self.index.remove(self.slot, keys, medium=medium)

    def _store(self, _now: float, event: tuple[Sequence[int], Medium, int | None]) -> None:
        keys, medium, parent = event
        self.index.store(self.slot, keys, medium=medium, parent=parent, root=self.root)

    def _remove(self, _now: float, event: tuple[Sequence[int], Medium]) -> None:
        keys, medium = event
        self.index.remove(self.slot, keys, medium=medium)

    def _later(self, function: Any, event: Any) -> None:
        world = self.world
        epoch = world.nodes[self.slot].epoch
        at = world.now + world.scenario.event_delay_s
        world.schedule(at, self._deliver, (epoch, function, event))

    def _deliver(self, now: float, event: tuple[int, Any, Any]) -> None:
        epoch, function, inner = event
        if epoch == self.world.nodes[self.slot].epoch:
            function(now, inner)


class FetchDone:
    """A fetch ended: whole, its blocks are the target's now."""

    __slots__ = ("job", "node", "world")

    def __init__(self, world: World, job: Job, node: EngineNode) -> None:
        self.world, self.job, self.node = world, job, node

    def __call__(self, now: float, _flow: Flow, whole: bool) -> None:
        """Called by the links at the end of the transfer, whole or cut."""
        job, node = self.job, self.node
        if not node.alive:
            return
        own = job.keys[: job.fetch_first]
        if whole and node.cache.match(own) == len(own):
            block = self.world.workload.block_tokens
            job.fetched_tokens = (job.fetch_end - job.fetch_first) * block
            node.cache.insert(job.keys[: job.fetch_end])
        node.fetch_ended(job, now, whole=whole)


class StreamDone:
    """The KV of a prompt reached its decode node, perhaps before the prefill was over."""

    __slots__ = ("job", "world")

    def __init__(self, world: World, job: Job) -> None:
        self.world, self.job = world, job

    def __call__(self, now: float, _flow: Flow, whole: bool) -> None:
        """Called by the links at the end of the transfer, whole or cut."""
        job = self.job
        if job.reservation.outcome is not None:
            return
        if not whole:
            self.world.faults.attempt_failed(now, job)
        elif job.first_token_s >= 0:
            self.world.decode(job, now)

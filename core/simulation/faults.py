"""Nodes that die at set times: what is lost, when it is noticed, and who tries again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from core.domain import Health, Outcome, OutcomeKind, Request
from core.simulation.engine_node import Job
from core.simulation.results import FAILED
from core.simulation.scenario import Failure

if TYPE_CHECKING:
    from core.simulation.world import World

ATTEMPTS_MAX = 3
RETRY_S = 0.05
"""Until a request that met a dead node is tried elsewhere."""
_DIED = Outcome(kind=OutcomeKind.ENGINE_ERROR, error="node died")


class Faults:
    """Kills nodes of a world, lets probes notice, and brings the nodes back empty."""

    def __init__(self, world: World) -> None:
        self.world = world

    def fail(self, now: float, failure: Failure) -> None:
        """The node dies with its queue, batch, cache and transfers."""
        world, node = self.world, self.world.nodes[failure.node]
        if not node.alive:
            return
        lost = node.die()
        world.planners.node_died(node.slot)
        world.links.cut(now, failure.node)
        world.schedule(now + world.scenario.detect_s, self._detected, failure.node)
        world.schedule(now + failure.down_s, self._back, failure.node)
        for job in lost:
            if job.gang is not None:
                job.gang.member_died(now)
            else:
                self.attempt_failed(now, job)

    def attempt_failed(self, now: float, job: Job) -> None:
        """Before the first token another node tries; after it the request has failed."""
        if job.reservation.outcome is not None:
            return
        job.reservation.finish(_DIED, now)
        i, world = job.index, self.world
        begun = job.first_token_s >= 0
        if begun or world.records.attempts[i] >= ATTEMPTS_MAX:
            world.end(now, i, FAILED)
            return
        tried = job.request.tried | {job.decision.prefill}
        if job.moved and not world.nodes[job.decision.decode_slot].alive:
            tried |= {job.decision.decode}
        again = msgspec.structs.replace(job.request, tried=tried)
        world.schedule(now + RETRY_S, self._retry, (i, again))

    def _retry(self, now: float, event: tuple[int, Request]) -> None:
        self.world.place(now, *event)

    def _detected(self, now: float, i: int) -> None:
        node = self.world.nodes[i]
        if not node.alive:
            fleet = self.world.conductor.fleet
            self.world.conductor.set_health(fleet.node_at(node.slot), Health.DEAD, now)

    def _back(self, now: float, i: int) -> None:
        node, conductor = self.world.nodes[i], self.world.conductor
        node.alive = True
        conductor.restarted(conductor.fleet.node_at(node.slot), now)
        conductor.set_health(conductor.fleet.node_at(node.slot), Health.HEALTHY, now)

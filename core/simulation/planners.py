"""Planners in the loop of the simulated fleet: hot-prefix migration and pipeline groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.domain import Decision
from core.groups import GroupPlanner
from core.plan.cpp import CppPlan
from core.simulation.engine_node import Job
from core.simulation.results import Samples

if TYPE_CHECKING:
    from core.simulation.world import World


class Planners:
    """Runs the switched-on planners and carries out what they plan."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cpp = world.tunables.cpp.enabled
        self.groups = GroupPlanner(world.conductor)
        self.cpp_plans = 0

    def group(self, decision: Decision, now: float) -> CppPlan | None:
        """A pipeline group for the placed prompt, where that is on and better."""
        if not self.cpp:
            return None
        found = self.groups.plan(decision, now)
        self.cpp_plans += found is not None
        return found

    def prefilled(self, job: Job, now: float) -> None:
        """A prefill ended."""

    def sample(self, samples: Samples) -> None:
        """Note the holders of the watched prefixes."""

    def counters(self) -> dict[str, int]:
        """What was planned and done."""
        return {"cpp_plans": self.cpp_plans}

"""Planners in the loop of the simulated fleet: hot-prefix migration and pipeline groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.simulation.engine_node import Job
from core.simulation.results import Samples

if TYPE_CHECKING:
    from core.simulation.world import World


class Planners:
    """Runs the switched-on planners and carries out what they plan."""

    def __init__(self, world: World) -> None:
        self.world = world

    def prefilled(self, job: Job, now: float) -> None:
        """A prefill ended."""

    def sample(self, samples: Samples) -> None:
        """Note the holders of the watched prefixes."""

    def counters(self) -> dict[str, int]:
        """What was planned and done."""
        return {"cpp_plans": 0}

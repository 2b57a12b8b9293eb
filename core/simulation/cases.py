"""Ready-made loads that show one planner at work; tests and the policy report use them."""

from __future__ import annotations

from dataclasses import replace

from core.simulation.generator import Workload, generate
from core.simulation.scenario import Scenario
from core.simulation.traces import Trace

CALM_REQUESTS = 12
CALM_GAP_S = 4.0


def hot_prompt_trace(*, requests: int = 2000, rate_per_s: float = 20.0, seed: int = 1) -> Trace:
    """One long system prompt in 70 % of the requests.

    The first dozen requests come far apart, so that the prompt is cached on one or two nodes
    before the traffic comes, as after a launch.
    """
    made = generate(
        Workload(
            mix="api",
            requests=requests,
            rate_per_s=rate_per_s,
            hot_share=0.7,
            hot_tokens=16_384,
            seed=seed,
        )
    )
    start = CALM_REQUESTS * CALM_GAP_S
    shift = start - made.requests[CALM_REQUESTS].arrival_s
    made.requests = [
        replace(r, arrival_s=i * CALM_GAP_S if i < CALM_REQUESTS else r.arrival_s + shift)
        for i, r in enumerate(made.requests)
    ]
    made.name = f"hot-prompt-{requests}-seed{seed}"
    return made


def hot_prompt_fleet(
    *, migration: bool = False, hotspot: bool = False, samples: int = 0
) -> Scenario:
    """Eight nodes under a policy that clings to the cache, so that hot nodes arise at all."""
    return Scenario(
        prefill=8,
        mfu=0.5,
        fetch=False,
        policy="linear",
        params={"linear.alpha": 0.9, "linear.beta": 0.1},
        migration=migration,
        hotspot=hotspot,
        samples=samples,
    )

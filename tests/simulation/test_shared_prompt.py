"""One shared system prompt of 6k tokens, 8 nodes, 64 requests a second: nobody carries it alone.

The prompt is on one node before the traffic comes, as after a launch, so that a policy that goes
by the cache has every reason to stay there. With the hotspot detector on, the busiest node gets at
most 1.5 times the mean once the prompt has spread; `linear` without it sends everything to one.
"""

import random

import numpy as np
import pytest

from core.policy import policy_names
from core.simulation.runner import run_scenario
from core.simulation.scenario import Scenario
from core.simulation.traces import Trace, TraceRequest
from core.simulation.workload import Workload, prepare

pytestmark = pytest.mark.timeout(900)

NODES, RATE_PER_S, BLOCK = 8, 64.0, 512
SHARED_BLOCKS, TAIL = 12, 256
CALM, CALM_GAP_S = 12, 4.0
CLINGING = ("linear", "multiplicative")


def shared_prompt(requests: int, seed: int = 1) -> Workload:
    rng, at, made = random.Random(seed), 0.0, []
    for n in range(requests):
        at += CALM_GAP_S if n < CALM else rng.expovariate(RATE_PER_S)
        made.append(
            TraceRequest(
                arrival_s=at,
                prompt_tokens=SHARED_BLOCKS * BLOCK + TAIL,
                output_tokens=64,
                hash_ids=[*range(SHARED_BLOCKS), 1000 + n],
                session=f"s{rng.randrange(400)}",
            )
        )
    return prepare(Trace(name="shared-prompt", block_tokens=BLOCK, requests=made))


def busiest(policy: str, requests: int, *, hotspot: bool) -> float:
    """The busiest node's requests over the mean, of the last third."""
    scenario = Scenario(prefill=0, both=NODES, policy=policy, mfu=0.5, hotspot=hotspot)
    nodes = np.array(run_scenario(scenario, shared_prompt(requests)).records.node)
    counts = np.bincount(nodes[-requests // 3 :], minlength=NODES)
    return float(counts.max() / counts.mean())


@pytest.mark.parametrize("policy", CLINGING)
def test_the_busiest_node_gets_at_most_half_more_than_the_mean(policy):
    assert busiest(policy, 4000, hotspot=True) <= 1.5


def test_without_the_detector_linear_stays_where_the_prompt_is():
    assert busiest("linear", 600, hotspot=False) > 4


@pytest.mark.soak
@pytest.mark.parametrize("policy", policy_names())
def test_under_every_policys_defaults(policy):
    assert busiest(policy, 4000, hotspot=True) <= 1.5

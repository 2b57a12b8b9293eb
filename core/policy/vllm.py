"""vLLM's choice among its own data-parallel ranks."""

from __future__ import annotations

from core.policy.base import Candidates, Scores, policy
from core.tunables import Tunables


@policy(
    "vllm_least_loaded",
    sense="min",
    source="vllm-project/vllm, data-parallel load balancing",
    leaves_out="its counts are polled; ours come from the ledger at once",
)
def vllm_least_loaded(c: Candidates, t: Tunables) -> Scores:
    """4 * waiting + running; the lowest wins. Blind to the cache."""
    waiting = t.vllm_least_loaded.waiting_weight * c.waiting
    running = c.batch - c.waiting
    return Scores(waiting + running, {"waiting": waiting, "running": running})

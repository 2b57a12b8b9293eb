"""Shortest predicted time to first token."""

from __future__ import annotations

from core.policy.base import Candidates, FewColumns, Scores, policy
from core.tunables import Tunables


def _few(c: FewColumns) -> list[float]:
    totals, transfers, prefills = c.queues.copy(), c.transfers, c.prefills
    for row, queue_s in enumerate(totals):
        totals[row] = queue_s + transfers[row] + prefills[row]
    return totals


@policy("min_ttft", sense="min", source="F Alg. 1", few=_few)
def min_ttft(c: Candidates, t: Tunables) -> Scores:  # noqa: ARG001
    """T_queue + T_transfer + T_prefill(L, prefix); the lowest wins.

    Where best_match > balancing_threshold * M(n), the node is costed as fetching the missing
    blocks from the best holder: prefix = best_match and T_transfer > 0; elsewhere prefix = M(n)
    and T_transfer = 0.
    """
    total = c.queue_s + c.transfer_s + c.fetched_prefill_s
    terms = {"queue": c.queue_s, "transfer": c.transfer_s, "prefill": c.fetched_prefill_s}
    return Scores(total, terms, uses_fetch=True)

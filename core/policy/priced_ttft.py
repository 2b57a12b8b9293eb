"""Shortest time to first token, with a node's own work priced at what it delays."""

from __future__ import annotations

from core.policy.base import Candidates, Scores, policy
from core.tunables import Tunables


@policy("priced_ttft", sense="min", source="ours")
def priced_ttft(c: Candidates, t: Tunables) -> Scores:  # noqa: ARG001
    """T_queue + (1 + W/S) * (T_transfer + T_prefill); the lowest wins.

    W is the fleet's mean queue time now and S the mean prefill time of a request, so W/S is how
    many requests stand behind this one: each second of work makes all of them wait. Near
    saturation the price grows and reuse wins over an idle node; without queues this is
    `min_ttft`. There is no parameter. Before any prefill was seen (S = 0) the price is 1.
    """
    price = 1.0 + c.mean_queue_s / c.mean_prefill_s if c.mean_prefill_s > 0 else 1.0
    transfer = price * c.transfer_s
    prefill = price * c.fetched_prefill_s
    terms = {"queue": c.queue_s, "transfer": transfer, "prefill": prefill}
    return Scores(c.queue_s + transfer + prefill, terms, uses_fetch=True)

"""Lightest load, whatever is cached."""

from __future__ import annotations

from core.policy.arithmetic import open_load
from core.policy.base import Candidates, Scores, policy
from core.tunables import Tunables


@policy("least_loaded", sense="min", source="S1 1.2")
def least_loaded(c: Candidates, t: Tunables) -> Scores:
    """max(load, T_queue / horizon); the lowest wins.

    The second part equals the queue's part of load(n) and lets it go on above 1, so that nodes
    whose queues are all longer than the horizon are still told apart.
    """
    return Scores(open_load(c, t), {"load": c.load, "queue": c.queue_s})

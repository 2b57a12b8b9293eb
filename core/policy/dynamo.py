"""Dynamo's two router costs, in its own unit, blocks."""

from __future__ import annotations

import numpy as np

from core.policy.base import Candidates, Floats, Scores, policy
from core.tunables import Tunables

_LEAVES_OUT = (
    "credit for host, disk and shared tiers; rounding to whole blocks; blocks that two live "
    "requests share count twice; softmax temperature; the router queue"
)


@policy("dynamo_linear", sense="min", source="ai-dynamo/dynamo, default", leaves_out=_LEAVES_OUT)
def dynamo_linear(c: Candidates, t: Tunables) -> Scores:
    """prefill_load_scale * prefill + decode, in blocks; the lowest wins.

    prefill = max(Q + L - credit, 0) with the match as credit (times 1 / (1 + decay * excess)
    where decay is set; excess is Q above the least of all nodes, in prompts); decode = the
    blocks of the requests in flight and of this one.
    """
    prefill = t.dynamo.prefill_load_scale * _prefill_blocks(c, t)
    decode = _decode_blocks(c, t)
    return Scores(prefill + decode, {"prefill": prefill, "decode": decode})


@policy("dynamo_lmetric", sense="min", source="ai-dynamo/dynamo, lmetric", leaves_out=_LEAVES_OUT)
def dynamo_lmetric(c: Candidates, t: Tunables) -> Scores:
    """prefill * (decode + 1), in blocks as in `dynamo_linear`; the lowest wins."""
    prefill = _prefill_blocks(c, t)
    decode = _decode_blocks(c, t)
    return Scores(prefill * (decode + 1.0), {"prefill": prefill, "decode": decode})


def _prefill_blocks(c: Candidates, t: Tunables) -> Floats:
    credit: Floats = c.match_tokens.astype(np.float64)
    if t.dynamo.credit_decay and c.prompt_tokens:
        excess = (c.queued_tokens - c.queued_tokens.min()) / c.prompt_tokens
        credit = credit / (1.0 + t.dynamo.credit_decay * excess)
    tokens = np.maximum(c.queued_tokens + c.prompt_tokens - credit, 0.0)
    return tokens / t.dynamo.block_tokens


def _decode_blocks(c: Candidates, t: Tunables) -> Floats:
    active = c.queued_tokens if c.inflight_tokens is None else c.inflight_tokens
    return (active + c.prompt_tokens) / t.dynamo.block_tokens

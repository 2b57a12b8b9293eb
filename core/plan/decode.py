"""Where a request generates: transfer time plus predicted time between tokens (S1 5, spec 4).

The caller has already dropped nodes without a batch slot or KV headroom. Staying on the prefill
node is a row like any other, with nothing to move.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np

from core.domain import Prediction, Request
from core.plan.cost_model import tbt_seconds
from core.policy.base import Bools, Floats, Scores

MOVE_S_PER_TOKEN = 1e-9
"""Charged for each token not there yet: KV already in place wins where times are equal."""


class Joining(msgspec.Struct, eq=False):
    """A placed prompt that looks for a decode node."""

    request: Request
    prefill: int
    """Slot of its prefill node, with its prediction."""
    predicted: Prediction
    held: Any
    """Prompt tokens by slot: an array, or a list where slots are few."""
    wait_s: float
    """How long its sender is still busy with other KV when the prefill begins."""
    when_s: float | None
    """When the batches are looked at: None for now."""
    added_tokens: float
    """KV that it brings: the prompt, and what its expected output reserves."""
    tbt_slo_s: float


class Weighed(msgspec.Struct, eq=False):
    """Decode candidates by row: columns are arrays, or lists where there are few."""

    slots: Any
    missing: Any
    """Prompt tokens whose KV has to move there."""
    transfer_s: Any
    """Exposed time that the move takes."""
    batch: Any
    """Requests that decode there, without this one."""
    kv: Any
    """Their KV tokens."""
    tbt_s: Any
    """Predicted time between tokens with this request."""
    feasible: Any
    """Whether everyone's limit is kept then."""
    total: Any
    """The lowest wins."""
    least: int
    """Row with the least `tbt_s`."""


class DecodeScores(NamedTuple):
    """Scores of the decode candidates (the lowest total wins), and what they rest on."""

    scores: Scores
    feasible: Bools
    """Rows whose batch keeps everyone's TBT limit with this request in it."""
    tbt_s: Floats
    """Predicted time between tokens of the batch with this request, seconds."""


def score_decode(
    d0: Floats,
    d1: Floats,
    *,
    d2: Floats,
    batch: Floats,
    kv_tokens: Floats,
    added_tokens: Floats | float,
    missing_tokens: Floats,
    transfer_s: Floats,
    tbt_slo_s: float,
    strictest_tbt_s: Floats,
    tbt_weight: float = 1.0,
    tbt_slack: float = 1.0,
) -> DecodeScores:
    """Total = transfer_s + tbt_weight * TBT(batch + 1, kv_tokens + added_tokens), shape (k,).

    batch and kv_tokens describe each node without this request; `added_tokens` is the KV it
    brings (prompt and the expected output, or the part still counted), `missing_tokens` what of
    its prompt must move there. A node is feasible where the predicted TBT keeps both this
    request's limit and the strictest limit of the batch, each times `tbt_slack`.
    """
    tbt_s = tbt_seconds(d0, d1, d2, batch + 1.0, kv_tokens + added_tokens)
    limit = np.minimum(strictest_tbt_s, tbt_slo_s) * tbt_slack
    terms = decode_terms(transfer_s, tbt_s, missing_tokens, tbt_weight)
    total = terms["transfer"] + terms["tbt"] + terms["move"]
    return DecodeScores(Scores(total, terms), tbt_s <= limit, tbt_s)


def decode_terms(
    transfer_s: Floats, tbt_s: Floats, missing_tokens: Floats, tbt_weight: float
) -> dict[str, Floats]:
    """The named terms whose sum is a candidate's total."""
    move = MOVE_S_PER_TOKEN * missing_tokens
    return {"transfer": transfer_s, "tbt": tbt_weight * tbt_s, "move": move}

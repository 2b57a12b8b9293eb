"""What earlier moves of a preview do to later decisions: load leaves one node for another. Pure.

A request that would have gone elsewhere no longer weighs on the node it really went to, and weighs
on the other, for as long as it ran. Without this, a preview would send everything to the one node
that happened to be idle. What a moved request would leave in the other node's cache is not known:
records keep no keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from core.control.rescoring import Context, Floats, Recorded, choice
from core.tunables import Tunables

_BATCH_MAX_UNKNOWN = 256.0
_RUN_UNKNOWN_S = 1.0


@dataclass(slots=True)
class _Weight:
    """One request on one node: `sign` takes it away or adds it."""

    node: str
    sign: int
    work_s: float
    tokens: float
    prefilled_s: float
    ends_s: float


class Feedback:
    """Moves made so far, as differences to the recorded load."""

    def __init__(self, rows: Sequence[Recorded], live: Tunables, proposed: Tunables) -> None:
        self._batch_max = _batch_max(rows, live.load.horizon_s)
        self._old_s, self._new_s = live.load.horizon_s, proposed.load.horizon_s
        self._active: list[_Weight] = []

    def adapted(self, r: Recorded) -> Recorded:
        """The recorded candidates as they would stand after the moves."""
        now = r.stored.decision.at.timestamp()
        self._active = [w for w in self._active if w.ends_s > now]
        if not self._active and self._old_s == self._new_s:
            return r
        columns = dict(r.columns)
        batch, queue, tokens = (
            columns[name].copy() for name in ("batch", "queue_s", "queued_tokens")
        )
        rows = {node: i for i, node in enumerate(r.nodes)}
        for w in self._active:
            i = rows.get(w.node)
            if i is None:
                continue
            left_s = min(w.work_s, max(w.prefilled_s - now, 0.0))
            batch[i] += w.sign
            queue[i] += w.sign * left_s
            tokens[i] += w.sign * (w.tokens * left_s / w.work_s if w.work_s else 0.0)
        columns["load"] = self._load(r, batch, queue)
        columns["batch"] = np.maximum(batch, 0.0)
        columns["queue_s"] = np.maximum(queue, 0.0)
        columns["queued_tokens"] = np.maximum(tokens, 0.0)
        return replace(r, columns=columns)

    def moved(self, r: Recorded, row: int) -> None:
        """Count a decision that came out as `row` of the adapted candidates `r`."""
        if row != r.chosen:
            self._active += [_weight(r, r.chosen, -1), _weight(r, row, +1)]

    def _load(self, r: Recorded, batch: Floats, queue: Floats) -> Floats:
        """load(n) of the changed signals; what of the recorded one neither explains stays."""
        most = np.array([self._batch_max.get(node, _BATCH_MAX_UNKNOWN) for node in r.nodes])
        c = r.columns
        known = np.maximum(c["queue_s"] / self._old_s, c["batch"] / most)
        rest = np.where(c["load"] > known * (1 + 1e-2), c["load"], c["kv_usage"])
        busy = np.maximum(np.maximum(queue / self._new_s, batch / most), rest)
        out: Floats = np.clip(busy, 0.0, 1.0)
        return out


def play(
    rows: Iterable[Recorded], t: Tunables, context: Context, feedback: Feedback
) -> list[tuple[Recorded, int]]:
    """Make the decisions (oldest first) again under `t`: (adapted candidates, chosen row)."""
    out = []
    for r in rows:
        adapted = feedback.adapted(r)
        row = choice(adapted, t, context)
        feedback.moved(adapted, row)
        out.append((adapted, row))
    return out


def _batch_max(rows: Sequence[Recorded], horizon_s: float) -> dict[str, float]:
    """Largest batch by node, read off decisions in which the batch made the load."""
    seen: dict[str, list[float]] = {}
    for r in rows:
        c = r.columns
        others = np.maximum(c["queue_s"] / horizon_s, c["kv_usage"])
        told = (c["load"] > others * (1 + 1e-2)) & (c["load"] < 1.0) & (c["batch"] > 0)
        for i in np.flatnonzero(told):
            seen.setdefault(r.nodes[i], []).append(float(c["batch"][i] / c["load"][i]))
    return {node: median(found) for node, found in seen.items()}


def _weight(r: Recorded, row: int, sign: int) -> _Weight:
    d, o, c = r.stored.decision, r.stored.outcome, r.columns
    at = d.at.timestamp()
    work_s = float(c["fetched_prefill_s"][row])
    first_s = float(c["queue_s"][row] + c["transfer_s"][row]) + work_s
    if o is not None and o.e2e_s is not None:
        after_s = max(o.e2e_s - (o.ttft_s or 0.0), 0.0)
    else:
        after_s = d.output_tokens_expected * (d.predicted_tbt_s or 0.0) or _RUN_UNKNOWN_S
    return _Weight(
        node=r.nodes[row],
        sign=sign,
        work_s=work_s,
        tokens=d.prompt_tokens - float(c["prefix_tokens"][row]),
        prefilled_s=at + first_s,
        ends_s=at + first_s + after_s,
    )

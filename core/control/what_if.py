"""One recorded decision made again under other parameters, with every candidate's terms. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

import numpy as np

from core.audit_json import candidates_from_json
from core.control.rescoring import Context, Recorded, RecordedCandidates, choice, recorded
from core.errors import BadRequest
from core.policy import get_policy
from core.ports import StoredDecision
from core.tunables import Tunables


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """One candidate under the other parameters."""

    rank: int
    node: str
    total: float
    terms: Mapping[str, float]
    recorded_total: float | None
    """None where the record's policy is another one: totals of two policies do not compare."""
    recorded: bool
    chosen: bool
    ttft_s: float
    """Predicted: queue + transfer + prefill, as recorded for this node."""
    match_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """How the decision would come out."""

    sense: str
    source: str
    target: str
    candidates: tuple[Again, ...]
    assumptions: tuple[str, ...]

    @property
    def moved(self) -> bool:
        """Whether the request would go elsewhere."""
        return self.source != self.target


def what_if(stored: StoredDecision, tried: Tunables, *, seed: int = 0) -> WhatIf:
    """Make the stored decision again under `tried`.

    BadRequest where the record keeps no candidates: a refusal, or a record without them.
    """
    found = recorded(stored)
    if found is None:
        text = f"decision {stored.decision.id} keeps no candidates: there is nothing to weigh again"
        raise BadRequest(text, field="id")
    context = Context(
        mean_prefill_s=stored.decision.predicted_prefill_s or 0.0, rng=Random(seed)
    )  # fmt: skip
    policy = get_policy(tried.policy)
    scores = policy.score(RecordedCandidates(found, context, found.columns), tried)
    chosen = choice(found, tried, context)
    order = np.argsort(scores.total if policy.sense == "min" else -scores.total, kind="stable")
    before = _recorded_totals(stored, tried)
    rows = tuple(
        Again(
            rank=rank,
            node=found.nodes[row],
            total=float(scores.total[row]),
            terms={name: float(np.asarray(term)[row]) for name, term in scores.terms.items()},
            recorded_total=before.get(found.nodes[row]),
            recorded=row == found.chosen,
            chosen=row == chosen,
            ttft_s=_ttft_s(found, int(row)),
            match_tokens=int(found.columns["match_tokens"][row]),
        )
        for rank, row in enumerate(map(int, order), start=1)
    )
    return WhatIf(
        sense=policy.sense,
        source=found.nodes[found.chosen],
        target=found.nodes[chosen],
        candidates=rows,
        assumptions=_assumptions(found, context, tried),
    )


def _recorded_totals(stored: StoredDecision, tried: Tunables) -> dict[str, float]:
    if stored.decision.policy != tried.policy:
        return {}
    table = candidates_from_json(stored.decision.candidates)
    return {row.node: row.total for row in table.rows} if table is not None else {}


def _ttft_s(r: Recorded, row: int) -> float:
    return sum(float(r.columns[n][row]) for n in ("queue_s", "transfer_s", "fetched_prefill_s"))


def _assumptions(r: Recorded, context: Context, tried: Tunables) -> tuple[str, ...]:
    out = [f"the record does not keep {n}; it is taken as neutral" for n in sorted(context.missing)]
    if r.size > len(r.nodes):
        out.append(f"{r.size - len(r.nodes)} of {r.size} candidates were not kept")
    if tried.policy == "priced_ttft":
        out.append("the fleet's mean prefill time then is not known; this request's stands in")
    return tuple(out)

"""What a change would do, before it is made: recorded decisions made again under it. Pure.

Each decision is made again in the state of the fleet in which it was made. That says where
requests would go, not how queues would then grow: the direction of hit and imbalance shows,
their size after a while does not; for that there is the replay (`core.control.replay`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from core.control.rescoring import (
    COLUMNS,
    Context,
    Floats,
    Recorded,
    choice,
    recorded,
    totals,
)
from core.errors import Invalid
from core.policy import policy_names
from core.ports import StoredDecision
from core.tunables import Tunables, diff

MOVES_MAX = 50
EXAMPLES = 10
_SCORING = frozenset({"policy", "load"} | set(policy_names()) | {"dynamo"})
"""Groups of parameters that re-scoring sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What is expected over the window; None where nothing tells it."""

    ttft_mean_s: float | None
    ttft_p90_s: float | None
    tbt_mean_s: float | None
    hit: float | None
    imbalance: float | None
    """Nodes times the largest node's share of predicted prefill time; 1 is even."""
    imbalance_requests: float | None
    """The same of requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Decisions that would go to another node."""

    source: str
    target: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One decision that would come out differently."""

    id: str
    source: str
    target: str
    ttft_s: tuple[float, float]
    """Predicted: as recorded, as proposed."""
    match_tokens: tuple[int, int]
    total_gap: float
    """How much worse the recorded node is under the proposal, relative to the best total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Whether one changed parameter matters in this window, and what keeps it from it."""

    path: str
    matters: bool
    changed: int
    """Decisions that come out differently because of this parameter alone."""
    constant_inputs: tuple[str, ...]
    """Inputs that it weighs and that were equal on all candidates of every decision."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The whole preview."""

    decisions: int
    left_out: int
    """Refused, or stored without candidates."""
    moved: int
    moves: tuple[Move, ...]
    before: Figures
    after: Figures
    examples: tuple[Example, ...]
    effects: tuple[Effect, ...]
    fidelity: float | None
    """Share of decisions that the live parameters, re-scored, place as recorded."""
    assumptions: tuple[str, ...]


def preview(
    window: Iterable[StoredDecision], live: Tunables, proposed: Tunables, *, seed: int = 0
) -> Report:
    """Make the window's decisions (oldest first) again under `proposed`, beside the records."""
    stored = list(window)
    rows = [r for r in map(recorded, stored) if r is not None]
    means = [s.decision.predicted_prefill_s or 0.0 for s in stored if s.decision.placed]
    mean_prefill_s = float(np.mean(means)) if means else 0.0

    def context() -> Context:
        return Context(mean_prefill_s=mean_prefill_s, rng=Random(seed))

    new = context()
    adapted = [_with_load(r, live, proposed) for r in rows]
    chosen = [choice(r, proposed, new) for r in adapted]
    again = context()
    same = [
        choice(r, live, again) == r.chosen for r in rows if r.stored.decision.policy == live.policy
    ]
    moved = [(r, row) for r, row in zip(adapted, chosen, strict=True) if row != r.chosen]
    pairs = Counter((r.nodes[r.chosen], r.nodes[row]) for r, row in moved)
    return Report(
        decisions=len(rows),
        left_out=len(stored) - len(rows),
        moved=len(moved),
        moves=tuple(
            Move(source=a, target=b, count=n) for (a, b), n in pairs.most_common(MOVES_MAX)
        ),
        before=_figures(rows, [r.chosen for r in rows]),
        after=_figures(rows, chosen),
        examples=_examples(moved, proposed, context()),
        effects=_effects(adapted, live, proposed, chosen, context),
        fidelity=sum(same) / len(same) if same else None,
        assumptions=_assumptions(rows, new, live, proposed),
    )


# -- figures ---------------------------------------------------------------------------------


def _figures(rows: Sequence[Recorded], chosen: Sequence[int]) -> Figures:
    if not rows:
        return Figures(
            ttft_mean_s=None,
            ttft_p90_s=None,
            tbt_mean_s=None,
            hit=None,
            imbalance=None,
            imbalance_requests=None,
        )
    picks = list(zip(rows, chosen, strict=True))
    ttft = np.array([_ttft_s(r, row) for r, row in picks])
    tbt = [t for r, row in picks if (t := _tbt_s(r, row)) is not None]
    prompt = sum(r.stored.decision.prompt_tokens for r in rows)
    matched = sum(float(r.columns["match_tokens"][row]) for r, row in picks)
    nodes = {node for r in rows for node in r.nodes}
    work: dict[str, float] = {}
    for r, row in picks:
        spent_s = float(r.columns["fetched_prefill_s"][row])
        work[r.nodes[row]] = work.get(r.nodes[row], 0.0) + spent_s
    requests = Counter(r.nodes[row] for r, row in picks)
    return Figures(
        ttft_mean_s=float(ttft.mean()),
        ttft_p90_s=float(np.quantile(ttft, 0.9)),
        tbt_mean_s=float(np.mean(tbt)) if tbt else None,
        hit=matched / prompt if prompt else None,
        imbalance=_imbalance(work, len(nodes)),
        imbalance_requests=_imbalance(requests, len(nodes)),
    )


def _ttft_s(r: Recorded, row: int) -> float:
    names = ("queue_s", "transfer_s", "fetched_prefill_s")
    return sum(float(r.columns[name][row]) for name in names)


def _tbt_s(r: Recorded, row: int) -> float | None:
    """TBT on the new node where it decodes as well, else as recorded: decode is chosen apart."""
    d = r.stored.decision
    if d.prefill_node == d.decode_node and r.nodes[row] in r.tbt_s:
        return r.tbt_s[r.nodes[row]]
    return d.predicted_tbt_s


def _imbalance(work: Mapping[str, float], nodes: int) -> float | None:
    total = sum(work.values())
    return nodes * max(work.values()) / total if total else None


def _examples(
    moved: Sequence[tuple[Recorded, int]], t: Tunables, context: Context
) -> tuple[Example, ...]:
    """The decisions in which the recorded node would lose by most."""
    found = []
    for r, row in moved:
        total, _ = totals(r, t, context)
        scale = max(abs(float(total[row])), abs(float(total[r.chosen])))
        gap = abs(float(total[row] - total[r.chosen])) / scale if scale else 0.0
        match = r.columns["match_tokens"]
        found.append(
            Example(
                id=r.stored.decision.id,
                source=r.nodes[r.chosen],
                target=r.nodes[row],
                ttft_s=(_ttft_s(r, r.chosen), _ttft_s(r, row)),
                match_tokens=(int(match[r.chosen]), int(match[row])),
                total_gap=gap,
            )
        )
    return tuple(sorted(found, key=lambda e: (-e.total_gap, e.id))[:EXAMPLES])


# -- which parameter matters -----------------------------------------------------------------


def _effects(
    rows: Sequence[Recorded],
    live: Tunables,
    proposed: Tunables,
    chosen: Sequence[int],
    context: Callable[[], Context],
) -> tuple[Effect, ...]:
    out = []
    for path, (old, _) in diff(live, proposed).items():
        if path.split(".")[0] not in _SCORING:
            continue
        try:
            without = proposed.changed({path: old})
        except Invalid:  # weights that only sum to 1 together have no effect of their own
            continue
        out.append(_effect(rows, path, without, proposed, chosen, context()))
    return tuple(out)


def _effect(
    rows: Sequence[Recorded],
    path: str,
    without: Tunables,
    proposed: Tunables,
    chosen: Sequence[int],
    context: Context,
) -> Effect:
    differs = sum(choice(r, without, context) != row for r, row in zip(rows, chosen, strict=True))
    constant: tuple[str, ...] = ()
    if differs or not rows:
        text = (
            f"changes {differs} of {len(rows)} decisions"
            if rows
            else "there is nothing to judge by"
        )
        return _made(path, differs, constant, text)
    if not _could_matter(rows, without, proposed, context):
        constant = _constant_inputs(rows, without, proposed, context)
        text = _cannot(constant, proposed, len(rows))
    else:
        text = f"shifts totals, but no choice of {len(rows)}"
    return _made(path, 0, constant, text)


def _made(path: str, changed: int, constant: tuple[str, ...], text: str) -> Effect:
    return Effect(
        path=path, matters=changed > 0, changed=changed, constant_inputs=constant, text=text
    )


def _cannot(constant: Sequence[str], proposed: Tunables, n: int) -> str:
    if constant:
        be = "was" if len(constant) == 1 else "were"
        names = " and ".join(constant)
        return f"cannot matter: {names} {be} equal on all candidates in all {n} decisions"
    return f"policy {proposed.policy} does not read it"


def _could_matter(
    rows: Sequence[Recorded], without: Tunables, proposed: Tunables, context: Context
) -> bool:
    return any(_tells_apart(r, without, proposed, context, r.columns) for r in rows)


def _tells_apart(
    r: Recorded,
    without: Tunables,
    proposed: Tunables,
    context: Context,
    columns: dict[str, Floats],
) -> bool:
    """Whether the parameter moves the candidates' totals against each other."""
    new, _ = totals(r, proposed, context, columns)
    old, _ = totals(r, without, context, columns)
    shift = new - old
    spread = float(np.ptp(shift)) if len(shift) else 0.0
    return spread > 1e-9 * max(1.0, float(np.abs(new).max(initial=0.0)))


def _constant_inputs(
    rows: Sequence[Recorded], without: Tunables, proposed: Tunables, context: Context
) -> tuple[str, ...]:
    """Inputs that were constant and through which the parameter would have mattered."""
    wide = max(rows, key=lambda r: len(r.nodes))
    found = []
    for name in COLUMNS:
        if any(len(r.nodes) > 1 and np.ptp(r.columns[name]) > 0 for r in rows):
            continue
        k = len(wide.nodes)
        high = wide.stored.decision.prompt_tokens if name.endswith("_tokens") else 1.0
        varied = {**wide.columns, name: np.linspace(0.0, high, k) if k > 1 else np.zeros(k)}
        if _tells_apart(wide, without, proposed, context, varied):
            found.append(name)
    return tuple(found)


# -- what it rests on ------------------------------------------------------------------------


def _with_load(r: Recorded, live: Tunables, proposed: Tunables) -> Recorded:
    """load(n) under another horizon: its queue part is known, the rest as far as it showed."""
    old, new = live.load.horizon_s, proposed.load.horizon_s
    if old == new:
        return r
    load, wait = r.columns["load"], r.columns["queue_s"]
    rest = np.where(load > wait / old * (1 + 1e-3), load, r.columns["kv_usage"])
    adapted = np.minimum(np.maximum(wait / new, rest), 1.0)
    return Recorded(
        stored=r.stored,
        nodes=r.nodes,
        chosen=r.chosen,
        columns={**r.columns, "load": adapted},
        size=r.size,
        tbt_s=r.tbt_s,
    )


def _assumptions(
    rows: Sequence[Recorded], used: Context, live: Tunables, proposed: Tunables
) -> tuple[str, ...]:
    out = [
        f"records do not keep {name}; it is taken as equal on all nodes"
        for name in sorted(used.missing - {"session_hash", "inflight_tokens"})
    ]
    if "session_hash" in used.missing:
        out.append(
            "sessions are ranked by the digest of their name: the spread holds, not the node"
        )
    if "inflight_tokens" in used.missing:
        out.append("records do not keep inflight_tokens; queued_tokens stand in")
    if proposed.policy == "priced_ttft":
        out.append("the mean prefill time is the window's")
    cut = sum(r.size > len(r.nodes) for r in rows)
    if cut:
        out.append(f"{cut} decisions had more candidates than were kept (16 best and the chosen)")
    unseen = [p for p in diff(live, proposed) if p.split(".")[0] not in _SCORING]
    if unseen:
        out.append(f"re-scoring does not see {', '.join(unseen)}")
    return tuple(out)

"""What a change would do, before it is made: recorded decisions made again under it. Pure.

Each decision is made again in the state of the fleet in which it was made, with the load that
earlier moves would have shifted (`core.control.feedback`). Caches stay as they were recorded: the
direction of hit and imbalance shows, their size after a while does not; for that there is the
replay in the simulator (`core.control.replay`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from core.control.feedback import Feedback, play
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
Pick = tuple[Recorded, int]
"""Candidates, and the row chosen of them."""
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

    def played(t: Tunables) -> list[tuple[Recorded, int]]:
        return play(rows, t, context(), Feedback(rows, live, t))

    used = context()
    picks = play(rows, proposed, used, Feedback(rows, live, proposed))
    again = context()
    own = [r for r in rows if r.stored.decision.policy == live.policy]
    same = [choice(r, live, again) == r.chosen for r in own]
    moved = [(r, row) for r, row in picks if row != r.chosen]
    pairs = Counter((r.nodes[r.chosen], r.nodes[row]) for r, row in moved)
    return Report(
        decisions=len(rows),
        left_out=len(stored) - len(rows),
        moved=len(moved),
        moves=tuple(
            Move(source=a, target=b, count=n) for (a, b), n in pairs.most_common(MOVES_MAX)
        ),
        before=_figures([(r, r.chosen) for r in rows]),
        after=_figures(picks),
        examples=_examples(moved, proposed, context()),
        effects=_effects(picks, live, proposed, played, context),
        fidelity=sum(same) / len(same) if same else None,
        assumptions=(
            *_other_policies(moved, rows, live),
            *_assumptions(rows, used, live, proposed, moved=len(moved)),
        ),
    )


# -- figures ---------------------------------------------------------------------------------


def _figures(picks: Sequence[Pick]) -> Figures:
    if not picks:
        return Figures(
            ttft_mean_s=None,
            ttft_p90_s=None,
            tbt_mean_s=None,
            hit=None,
            imbalance=None,
            imbalance_requests=None,
        )
    ttft = np.array([_ttft_s(r, row) for r, row in picks])
    tbt = [t for r, row in picks if (t := _tbt_s(r, row)) is not None]
    prompt = sum(r.stored.decision.prompt_tokens for r, _ in picks)
    matched = sum(float(r.columns["match_tokens"][row]) for r, row in picks)
    nodes = {node for r, _ in picks for node in r.nodes}
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
    picks: Sequence[Pick],
    live: Tunables,
    proposed: Tunables,
    played: Callable[[Tunables], list[Pick]],
    context: Callable[[], Context],
) -> tuple[Effect, ...]:
    out = []
    changed = {p: old for p, (old, _) in diff(live, proposed).items() if _scores(p)}
    for path, old in changed.items():
        try:
            without = proposed.changed({path: old})
        except Invalid:  # weights that only sum to 1 together have no effect of their own
            continue
        # Alone it did all that is told against the records; played again, live would stray too.
        others = played(without) if len(changed) > 1 else [(r, r.chosen) for r, _ in picks]
        out.append(_effect(picks, others, path, without, proposed, context()))
    return tuple(out)


def _scores(path: str) -> bool:
    """Whether a parameter is one of those that weigh candidates."""
    return path.split(".")[0] in _SCORING


def _effect(
    picks: Sequence[Pick],
    others: Sequence[Pick],
    path: str,
    without: Tunables,
    proposed: Tunables,
    context: Context,
) -> Effect:
    rows = [r for r, _ in picks]
    differs = sum(a[1] != b[1] for a, b in zip(others, picks, strict=True))
    constant: tuple[str, ...] = ()
    could = bool(rows) and _could_matter(rows, without, proposed, context)
    if (differs and could) or not rows:
        text = (
            f"changes {differs} of {len(rows)} decisions"
            if rows
            else "there is nothing to judge by"
        )
        return _made(path, differs, constant, text)
    if not could:
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


def _other_policies(
    moved: Sequence[Pick], rows: Sequence[Recorded], live: Tunables
) -> tuple[str, ...]:
    """That some decisions were not made by the live policy, so that they move without a change."""
    others = Counter(p for r in rows if (p := r.stored.decision.policy) != live.policy)
    if not others:
        return ()
    theirs = sum(r.stored.decision.policy != live.policy for r, _ in moved)
    return (
        f"{others.total()} decisions were made by {', '.join(sorted(others))}, not by the live "
        f"{live.policy}: {theirs} of the moves are theirs, and not of the change alone",
    )


def _assumptions(
    rows: Sequence[Recorded], used: Context, live: Tunables, proposed: Tunables, *, moved: int
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
    if moved:
        out.append("what moved requests leave in caches is not seen: hit is what was held then")
    cut = sum(r.size > len(r.nodes) for r in rows)
    if cut:
        out.append(f"{cut} decisions had more candidates than were kept (16 best and the chosen)")
    unseen = [p for p in diff(live, proposed) if p.split(".")[0] not in _SCORING]
    if unseen:
        out.append(f"re-scoring does not see {', '.join(unseen)}")
    return tuple(out)

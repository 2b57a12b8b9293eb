"""Two revisions on live traffic at once: who goes where, and what came of it. Pure.

A session always stays on one side: the side is a hash of its name (of the request's id where
there is no session), salted with the candidate's number so that each canary draws anew. Requests
of one session are alike, so that counting each as independent would claim too much certainty.
Sessions are therefore hashed into buckets, and confidence intervals come from leaving out one
bucket at a time (the delete-one jackknife), which also holds for ratios like the hit ratio.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import xxhash

from core.domain import Decision, Outcome, OutcomeKind, Request

BUCKETS = 24
BUCKETS_LEAST = 10
"""Fewer filled buckets on a side give no interval."""
_SPAN = float(1 << 64)
Verdict = Literal["better", "worse", "no difference shown", "too few requests"]


def session_hash(request: Request, salt: int) -> int:
    """64 bits that are equal for all requests of a session."""
    name = request.session or request.id
    return xxhash.xxh3_64_intdigest(f"{salt}\0{name}".encode())


def takes(request: Request, *, share: float, salt: int) -> bool:
    """Whether the request belongs to the candidate's share."""
    return session_hash(request, salt) / _SPAN < share


@dataclass(slots=True)
class Sums:
    """What one bucket of one side saw."""

    decisions: int = 0
    refused: int = 0
    finished: int = 0
    failed: int = 0
    good: int = 0
    prompt_tokens: int = 0
    match_tokens: int = 0
    ttft_s: float = 0.0
    ttft_count: int = 0
    tbt_s: float = 0.0
    tbt_count: int = 0

    def plus(self, other: Sums, sign: int = 1) -> Sums:
        """Sum, or difference, of all fields."""
        names = Sums.__slots__
        return Sums(**{n: getattr(self, n) + sign * getattr(other, n) for n in names})


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


MEASURES: dict[str, tuple[Callable[[Sums], float], Literal["min", "max"]]] = {
    "ttft_s": (lambda s: _ratio(s.ttft_s, s.ttft_count), "min"),
    "tbt_s": (lambda s: _ratio(s.tbt_s, s.tbt_count), "min"),
    "hit": (lambda s: _ratio(s.match_tokens, s.prompt_tokens), "max"),
    "good_share": (lambda s: _ratio(s.good, s.finished + s.refused), "max"),
}
"""Name -> (value of sums, which direction is better)."""


@dataclass(slots=True)
class Side:
    """One side's buckets."""

    buckets: list[Sums] = field(default_factory=lambda: [Sums() for _ in range(BUCKETS)])

    def total(self) -> Sums:
        """All buckets."""
        out = Sums()
        for b in self.buckets:
            out = out.plus(b)
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value with the standard error that the jackknife gives; NaN where there is too little."""

    value: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One measure on both sides; low and high bound candidate minus live, at 95 %."""

    name: str
    live: float | None
    candidate: float | None
    difference: float | None
    low: float | None
    high: float | None
    verdict: Verdict


class Canary:
    """Sums of both sides of one trial."""

    def __init__(self, *, number: int, share: float) -> None:
        self.number, self.share = number, share
        self.live, self.candidate = Side(), Side()

    def takes(self, request: Request) -> bool:
        """Whether the candidate decides this request."""
        return takes(request, share=self.share, salt=self.number)

    def decided(self, request: Request, revision: int, decision: Decision | None) -> None:
        """Count a decision, or a refusal (None)."""
        b = self._bucket(request, revision)
        b.decisions += 1
        if decision is None:
            b.refused += 1
            return
        b.prompt_tokens += request.prompt_tokens
        b.match_tokens += decision.match_tokens

    def finished(self, decision: Decision, outcome: Outcome, *, good: bool) -> None:
        """Count an outcome. What is not the scheduler's doing counts for neither side."""
        if outcome.kind in (OutcomeKind.CLIENT_ABORT, OutcomeKind.REFUSED):
            return
        b = self._bucket(decision.request, decision.revision)
        b.finished += 1
        b.good += good
        b.failed += outcome.kind is not OutcomeKind.OK
        if outcome.ttft_s is not None:
            b.ttft_s += outcome.ttft_s
            b.ttft_count += 1
        if outcome.tbt_s is not None:
            b.tbt_s += outcome.tbt_s
            b.tbt_count += 1

    def compare(self) -> list[Compared]:
        """Every measure, with intervals."""
        return [
            _compared(name, self.live.buckets, self.candidate.buckets, value, better)
            for name, (value, better) in MEASURES.items()
        ]

    def _bucket(self, request: Request, revision: int) -> Sums:
        side = self.candidate if revision == self.number else self.live
        # The low bits: the high ones chose the side.
        return side.buckets[session_hash(request, self.number) % BUCKETS]


def jackknife(buckets: Sequence[Sums], value: Callable[[Sums], float]) -> Estimate:
    """The value over all buckets, and its standard error from leaving out each filled one."""
    filled = [b for b in buckets if not math.isnan(value(b))]
    whole = Sums()
    for b in filled:
        whole = whole.plus(b)
    n = len(filled)
    if n < BUCKETS_LEAST:
        return Estimate(value=value(whole), error=math.nan)
    without = [value(whole.plus(b, -1)) for b in filled]
    mean = sum(without) / n
    variance = (n - 1) / n * sum((v - mean) ** 2 for v in without)
    return Estimate(value=value(whole), error=math.sqrt(variance))


def _compared(
    name: str,
    live: Sequence[Sums],
    candidate: Sequence[Sums],
    value: Callable[[Sums], float],
    better: Literal["min", "max"],
) -> Compared:
    a, b = jackknife(live, value), jackknife(candidate, value)
    difference = b.value - a.value
    half = _T_95 * math.hypot(a.error, b.error)
    low, high = difference - half, difference + half
    return Compared(
        name=name,
        live=_known(a.value),
        candidate=_known(b.value),
        difference=_known(difference),
        low=_known(low),
        high=_known(high),
        verdict=_verdict(low, high, better),
    )


_T_95 = 2.26
"""97.5 % point of Student's t for the least number of buckets (9 degrees of freedom): more
buckets would allow less, never more."""


def _verdict(low: float, high: float, better: Literal["min", "max"]) -> Verdict:
    if math.isnan(low):
        return "too few requests"
    if low <= 0.0 <= high:
        return "no difference shown"
    return "better" if (low > 0) == (better == "max") else "worse"


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value

"""The last five minutes in memory: rates, latencies, hit ratios, load. Pure, with `now`.

A ring of five-second buckets, so that the console needs no database to show what happens now.
Latencies go into histograms with logarithmic bins, which can be added up: a percentile is exact
to half a bin, 2.5 %.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from core.domain import Decision, NodeId, Outcome, OutcomeKind

STEP_S = 5.0
BUCKETS = 60
_GROWTH = 1.05
_LOG_GROWTH = math.log(_GROWTH)
_LEAST = 1e-7
"""Seconds; smaller values count as this."""
_ERRORS = frozenset({OutcomeKind.ENGINE_ERROR, OutcomeKind.TIMEOUT, OutcomeKind.LOST})


class LogHistogram:
    """Counts of positive values in bins that grow by 5 %."""

    __slots__ = ("bins", "count", "total")

    def __init__(self) -> None:
        self.bins: dict[int, int] = {}
        self.count = 0
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        n = int(math.log(value / _LEAST) / _LOG_GROWTH) if value > _LEAST else 0
        self.bins[n] = self.bins.get(n, 0) + 1
        self.count += 1
        self.total += value

    def merge(self, other: LogHistogram) -> None:
        """Add another's counts."""
        for n, count in other.bins.items():
            self.bins[n] = self.bins.get(n, 0) + count
        self.count += other.count
        self.total += other.total

    def quantile(self, q: float) -> float:
        """The value below which a share `q` of the counted values lies; NaN when empty."""
        rank, seen = q * self.count, 0
        for n in sorted(self.bins):
            seen += self.bins[n]
            if seen >= rank:
                return float(_LEAST * _GROWTH ** (n + 0.5))
        return math.nan

    @property
    def mean(self) -> float:
        """Exact mean; NaN when empty."""
        return self.total / self.count if self.count else math.nan


def bin_floor(n: int) -> float:
    """Least value of a histogram bin."""
    return float(_LEAST * _GROWTH**n)


@dataclass(slots=True)
class Bucket:
    """What happened in one step of time, or in several added up."""

    start_s: float
    decisions: int = 0
    rejected: int = 0
    finished: int = 0
    errors: int = 0
    aborted: int = 0
    good: int = 0
    """Finished within both limits."""
    prompt_tokens: int = 0
    """Of placed requests."""
    match_tokens: int = 0
    reachable_tokens: int = 0
    reported_prompt_tokens: int = 0
    """Of finished requests whose engine reported its cached tokens."""
    cached_tokens: int = 0
    output_tokens: int = 0
    ttft: LogHistogram = field(default_factory=LogHistogram)
    tbt: LogHistogram = field(default_factory=LogHistogram)
    decide: LogHistogram = field(default_factory=LogHistogram)
    per_node: Counter[NodeId] = field(default_factory=Counter)
    load: Mapping[NodeId, float] = field(default_factory=dict)
    inflight: int | None = None
    queued_tokens: float | None = None

    def add(self, other: Bucket) -> None:
        """Add another bucket's counts; gauges stay."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.ttft.merge(other.ttft)
        self.tbt.merge(other.tbt)
        self.decide.merge(other.decide)
        self.per_node.update(other.per_node)

    @property
    def hit_achieved(self) -> float | None:
        """Matched over prompt tokens; None without any."""
        return _share(self.match_tokens, self.prompt_tokens)

    @property
    def hit_reachable(self) -> float | None:
        """Best match anywhere over prompt tokens."""
        return _share(self.reachable_tokens, self.prompt_tokens)

    @property
    def hit_reported(self) -> float | None:
        """Engine-reported cached over prompt tokens."""
        return _share(self.cached_tokens, self.reported_prompt_tokens)


_COUNTS = (
    "decisions", "rejected", "finished", "errors", "aborted", "good", "prompt_tokens",
    "match_tokens", "reachable_tokens", "reported_prompt_tokens", "cached_tokens",
    "output_tokens",
)  # fmt: skip


@dataclass(slots=True)
class NodeWindow:
    """One node's finished requests of the last minutes."""

    ttft: LogHistogram = field(default_factory=LogHistogram)
    prompt_tokens: int = 0
    cached_tokens: int = 0


class Live:
    """The ring. `total` counts since the start, with the same fields."""

    def __init__(self, now: float) -> None:
        self.total = Bucket(now)
        self._ring: list[Bucket] = [Bucket(self._start(now))]
        self._nodes: list[dict[NodeId, NodeWindow]] = [{}]

    def placed(self, d: Decision, decide_s: float, now: float) -> None:
        """Count a decision and what it cost to make."""
        for b in (self._bucket(now), self.total):
            b.decisions += 1
            b.prompt_tokens += d.request.prompt_tokens
            b.match_tokens += d.match_tokens
            b.reachable_tokens += d.reachable_tokens
            b.per_node[d.prefill] += 1
            b.decide.add(decide_s)

    def rejected(self, decide_s: float | None, now: float) -> None:
        """Count a rejection; decide_s: None where it took no decision."""
        for b in (self._bucket(now), self.total):
            b.decisions += 1
            b.rejected += 1
            if decide_s is not None:
                b.decide.add(decide_s)

    def finished(self, d: Decision, o: Outcome, now: float, *, good: bool) -> None:
        """Count how a placed request ended."""
        reported = o.cached_tokens is not None and o.prompt_tokens is not None
        for b in (self._bucket(now), self.total):
            b.finished += 1
            b.errors += o.kind in _ERRORS
            b.aborted += o.kind is OutcomeKind.CLIENT_ABORT
            b.good += good
            b.output_tokens += o.output_tokens or 0
            if reported:
                b.reported_prompt_tokens += o.prompt_tokens or 0
                b.cached_tokens += o.cached_tokens or 0
            if o.ttft_s is not None:
                b.ttft.add(o.ttft_s)
            if o.tbt_s is not None:
                b.tbt.add(o.tbt_s)
        node = self._nodes[-1].setdefault(d.prefill, NodeWindow())
        if o.ttft_s is not None:
            node.ttft.add(o.ttft_s)
        if reported:
            node.prompt_tokens += o.prompt_tokens or 0
            node.cached_tokens += o.cached_tokens or 0

    def sample(
        self, now: float, *, load: Mapping[NodeId, float], inflight: int, queued_tokens: float
    ) -> None:
        """Note the gauges of the current step; the last sample of a step stays."""
        b = self._bucket(now)
        b.load, b.inflight, b.queued_tokens = dict(load), inflight, queued_tokens

    def buckets(self, now: float) -> list[Bucket]:
        """The ring, oldest first; the last one is not over yet."""
        self._bucket(now)
        return list(self._ring)

    def window(self, now: float, seconds: float) -> Bucket:
        """The last `seconds` added up (whole steps; the current one included)."""
        self._bucket(now)
        steps = max(1, math.ceil(seconds / STEP_S))
        chosen = self._ring[-steps:]
        out = Bucket(chosen[0].start_s)
        for b in chosen:
            out.add(b)
        return out

    def node_windows(self, now: float) -> dict[NodeId, NodeWindow]:
        """Per node, the whole ring added up."""
        self._bucket(now)
        out: dict[NodeId, NodeWindow] = {}
        for step in self._nodes:
            _merge_nodes(out, step.items())
        return out

    def _start(self, now: float) -> float:
        return math.floor(now / STEP_S) * STEP_S

    def _bucket(self, now: float) -> Bucket:
        last = self._ring[-1]
        if now < last.start_s + STEP_S:
            return last
        start = self._start(now)
        first = max(last.start_s + STEP_S, start - (BUCKETS - 1) * STEP_S)
        for i in range(round((start - first) / STEP_S) + 1):
            self._ring.append(Bucket(first + i * STEP_S))
            self._nodes.append({})
        del self._ring[:-BUCKETS], self._nodes[:-BUCKETS]
        return self._ring[-1]


def _merge_nodes(out: dict[NodeId, NodeWindow], step: Iterable[tuple[NodeId, NodeWindow]]) -> None:
    for node, window in step:
        mine = out.setdefault(node, NodeWindow())
        mine.ttft.merge(window.ttft)
        mine.prompt_tokens += window.prompt_tokens
        mine.cached_tokens += window.cached_tokens


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None

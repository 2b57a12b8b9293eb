"""Aggregates over time: counts, reuse and latency percentiles per bucket, shares per node.

Read from the coarsest roll-ups that fit; where one is out of date, from finer ones, in the end
from the rows. So figures are as of now, counts are exact, and percentiles are within the
histograms' error. Finer steps than five minutes reach back as far as the ten-second roll-ups do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from core.errors import BadRequest
from core.ports import NodeShare, TimeBucket
from storage import histogram
from storage.figures import MICROS, Figures, Found, from_rollups, from_rows, merged
from storage.summary_models import FLEET, LEVELS_S, summary_marks
from storage.types import from_micros, to_micros

BUCKETS_MAX = 10_000
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class Stretch(NamedTuple):
    """A stretch of time to be read at one level; None: from the rows."""

    level_s: int | None
    lo_us: int
    hi_us: int


def series(
    connection: Connection, start: datetime, end: datetime, step_s: int, node: str | None
) -> list[TimeBucket]:
    """Buckets of `step_s` seconds, aligned to the epoch, that hold a decision or an outcome."""
    lo_us, hi_us, step_us = to_micros(start), to_micros(end), step_s * MICROS
    if step_s < 1 or (hi_us - lo_us) // max(step_us, 1) > BUCKETS_MAX:
        raise BadRequest(
            f"step_s: {step_s} gives no or more than {BUCKETS_MAX} buckets", field="step_s"
        )
    levels = [level for level in LEVELS_S if step_s % level == 0]
    found = merged(
        _read(connection, stretch, step_us, node or FLEET)
        for stretch in cover(connection, lo_us, hi_us, levels)
    )
    return [
        _time_bucket(from_micros(bucket * step_us), name, figures)
        for (bucket, name), figures in sorted(found.items(), key=lambda item: item[0])
    ]


def node_shares(connection: Connection, start: datetime, end: datetime) -> list[NodeShare]:
    """Placed requests per prefill node, most first."""
    lo_us, hi_us = to_micros(start), to_micros(end)
    whole_us = max(hi_us, 1)  # one bucket for everything
    found = merged(
        _read(connection, stretch, whole_us, None)
        for stretch in cover(connection, lo_us, hi_us, LEVELS_S)
    )
    shares = [
        NodeShare(
            node=node,
            decisions=figures.sums["decisions"],
            prompt_tokens=figures.sums["prompt_tokens"],
            match_tokens=figures.sums["match_tokens"],
            reachable_tokens=figures.sums["reachable_tokens"],
        )
        for (_, node), figures in found.items()
        if node != FLEET and figures.sums["decisions"]
    ]
    return sorted(shares, key=lambda share: (-share.decisions, share.node))


def cover(connection: Connection, lo_us: int, hi_us: int, levels_s: Sequence[int]) -> list[Stretch]:
    """Stretches that make up [lo, hi), each at the coarsest of the levels that is up to date."""
    marks = [
        (level_s, start_us)
        for level_s, start_us in connection.execute(
            select(summary_marks.c.level_s, summary_marks.c.start_us)
            .where(summary_marks.c.start_us < hi_us)
            .where(summary_marks.c.start_us >= lo_us - LEVELS_S[-1] * MICROS)
            .distinct()
        )
    ]
    return list(_cover(lo_us, hi_us, sorted(levels_s), marks))


def _cover(
    lo_us: int, hi_us: int, levels_s: list[int], marks: list[tuple[int, int]]
) -> Iterator[Stretch]:
    if lo_us >= hi_us:
        return
    if not levels_s:
        yield Stretch(None, lo_us, hi_us)
        return
    *finer, level_s = levels_s
    step_us = level_s * MICROS
    first, last = -(-lo_us // step_us) * step_us, hi_us // step_us * step_us
    if first >= last:
        yield from _cover(lo_us, hi_us, finer, marks)
        return
    # A mark on a finer level makes the coarser bucket out of date as well.
    stale = sorted({at // step_us * step_us for level, at in marks if level <= level_s})
    yield from _cover(lo_us, first, finer, marks)
    at = first
    for start, end in runs(stale, step_us, first, last):
        if at < start:
            yield Stretch(level_s, at, start)
        yield from _cover(start, end, finer, marks)
        at = end
    if at < last:
        yield Stretch(level_s, at, last)
    yield from _cover(last, hi_us, finer, marks)


def runs(starts: list[int], step_us: int, lo_us: int, hi_us: int) -> Iterator[tuple[int, int]]:
    """Neighbouring buckets within [lo, hi) as one stretch each."""
    run: tuple[int, int] | None = None
    for start in starts:
        if not lo_us <= start < hi_us:
            continue
        if run is not None and run[1] == start:
            run = (run[0], start + step_us)
            continue
        if run is not None:
            yield run
        run = (start, start + step_us)
    if run is not None:
        yield run


def _read(connection: Connection, stretch: Stretch, step_us: int, node: str | None) -> Found:
    level_s, lo_us, hi_us = stretch
    if level_s is None:
        return from_rows(connection, lo_us, hi_us, step_us, node)
    return from_rollups(connection, level_s, lo_us, hi_us, step_us, node)


def _time_bucket(start: datetime, node: str, figures: Figures) -> TimeBucket:
    placed = figures.sums["decisions"]
    return TimeBucket(
        start=start,
        per_node=figures.per_node if node == FLEET else {node: placed} if placed else {},
        **figures.sums,
        **_percentiles("ttft", figures.ttft),
        **_percentiles("tbt", figures.tbt),
    )


def _percentiles(name: str, spreads: list[histogram.Spread]) -> dict[str, Any]:
    found = histogram.quantiles(histogram.merged(spreads), list(_QUANTILES.values()))
    return {f"{name}_{q}_s": value for q, value in zip(_QUANTILES, found or (), strict=False)}

"""What happened in a stretch of time as sums and histograms that merge: the content of a roll-up.

Figures come from rows (`from_rows`) or from roll-ups of any level (`from_rollups`); both give the
same, because all parts add up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from sqlalchemy import ColumnElement, Connection, Select, case, func, literal, select

from storage import histogram
from storage.histogram import Floats, Spread
from storage.models import decisions, outcomes
from storage.summary_models import FLEET, SUMS, rollups

MICROS = 1_000_000
Statement = Select[*tuple[Any, ...]]
_decode_counts = msgspec.json.Decoder(dict[str, int]).decode
_DECIDED = ("prompt_tokens", "match_tokens", "reachable_tokens")
_ENDED = (
    "finished",
    "failed",
    "aborted",
    "slo_missed",
    "reported_prompt_tokens",
    "cached_tokens",
    "output_tokens",
)


@dataclass(slots=True, eq=False)
class Figures:
    """Sums by the names of `SUMS`, histograms of TTFT and TBT, placed requests by node."""

    sums: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SUMS, 0))
    ttft: list[Spread] = field(default_factory=list)
    tbt: list[Spread] = field(default_factory=list)
    per_node: dict[str, int] = field(default_factory=dict)

    def add(self, sums: Mapping[str, int]) -> None:
        """Add sums; names that are left out stay."""
        for name, value in sums.items():
            self.sums[name] += int(value)

    def place(self, node: str, count: int) -> None:
        """Count placed requests of a node."""
        self.per_node[node] = self.per_node.get(node, 0) + count

    def row(self, level_s: int, node: str, start_us: int) -> dict[str, Any]:
        """The `rollups` row that keeps these figures."""
        return {
            "level_s": level_s,
            "node": node,
            "start_us": start_us,
            **self.sums,
            "ttft": histogram.packed(histogram.merged(self.ttft)),
            "tbt": histogram.packed(histogram.merged(self.tbt)),
            "per_node": _json(self.per_node) if node == FLEET else "",
        }


_ROLLUP = select(*(rollups.c[n] for n in ("start_us", "node", "ttft", "tbt", "per_node", *SUMS)))
Found = dict[tuple[int, str], Figures]
"""Figures by number of the bucket and node."""


def from_rows(
    connection: Connection, lo_us: int, hi_us: int, step_us: int, node: str | None = None
) -> Found:
    """Figures of the rows in [lo, hi).

    `node`: only of that one (`FLEET` for all together, rejections included); left out, of every
    one and of all together.
    """
    found: Found = defaultdict(Figures)
    for row in connection.execute(_decided(lo_us, hi_us, step_us, node)):
        _add_decided(found, node, *row)
    for row in connection.execute(_ended(lo_us, hi_us, step_us, node)):
        _add_ended(found, node, *row)
    observed = connection.execute(_observed(lo_us, hi_us, step_us, node)).all()
    if observed:
        _add_observed(found, node, observed)
    return found


def from_rollups(
    connection: Connection,
    level_s: int,
    lo_us: int,
    hi_us: int,
    step_us: int,
    node: str | None = None,
) -> Found:
    """Figures of the roll-ups of one level that start in [lo, hi); `node` as in `from_rows`."""
    r = rollups.c
    statement = _ROLLUP.where(r.level_s == level_s, r.start_us >= lo_us, r.start_us < hi_us)
    if node is not None:
        statement = statement.where(r.node == node)
    found: Found = defaultdict(Figures)
    for start_us, owner, ttft, tbt, per_node, *sums in connection.execute(statement).all():
        _add_rollup(found[start_us // step_us, owner], sums, ttft, tbt, per_node)
    return found


def _add_rollup(
    figures: Figures, sums: Sequence[int], ttft: bytes, tbt: bytes, per_node: str
) -> None:
    for name, value in zip(SUMS, sums, strict=True):
        figures.sums[name] += value
    if ttft:
        figures.ttft.append(histogram.unpacked(ttft))
    if tbt:
        figures.tbt.append(histogram.unpacked(tbt))
    if per_node:
        for node, count in _decode_counts(per_node).items():
            figures.place(node, count)


def _decided(lo_us: int, hi_us: int, step_us: int, node: str | None) -> Statement:
    """Per bucket and prefill node (NULL for rejections): count and token sums."""
    d, bucket = decisions.c, _bucket(decisions.c.at_us, step_us)
    sums = [func.sum(d[name]) for name in _DECIDED]
    statement = (
        select(bucket, d.prefill_node, func.count(), *sums)
        .where(d.at_us >= lo_us, d.at_us < hi_us)
        .group_by(bucket, d.prefill_node)
    )
    return statement if not node else statement.where(d.prefill_node == node)


def _add_decided(
    found: Found, wanted: str | None, bucket: int, node: str | None, count: int, *sums: int
) -> None:
    placed = {name: value for name, value in zip(_DECIDED, sums, strict=True) if node is not None}
    if not wanted:
        fleet = found[bucket, FLEET]
        fleet.add({"decisions": count, "rejected": 0 if node is not None else count, **placed})
        if node is not None:
            fleet.place(node, count)
    if node is not None and wanted != FLEET:
        found[bucket, node].add({"decisions": count, **placed})


def _ended(lo_us: int, hi_us: int, step_us: int, node: str | None) -> Statement:
    """Per bucket and prefill node: sums over the outcomes."""
    o, bucket = outcomes.c, _bucket(outcomes.c.decided_us, step_us)
    aborted, missed = o.kind == "client_abort", o.slo_missed != ""
    reported = o.prompt_tokens.is_not(None) & o.cached_tokens.is_not(None)
    sums = (
        case((o.kind.in_(("ok", "client_abort")), 0), else_=1),
        case((aborted, 1), else_=0),
        case((missed, 1), else_=0),
        case((reported, o.prompt_tokens), else_=0),
        case((reported, o.cached_tokens), else_=0),
        func.coalesce(o.output_tokens, 0),
    )
    statement = (
        select(bucket, o.prefill_node, func.count(), *(func.sum(column) for column in sums))
        .where(o.decided_us >= lo_us, o.decided_us < hi_us)
        .group_by(bucket, o.prefill_node)
    )
    return statement if not node else statement.where(o.prefill_node == node)


def _add_ended(
    found: Found, wanted: str | None, bucket: int, node: str | None, *values: int
) -> None:
    sums = dict(zip(_ENDED, values, strict=True))
    if not wanted:
        found[bucket, FLEET].add(sums)
    if node is not None and wanted != FLEET:
        found[bucket, node].add(sums)


def _observed(lo_us: int, hi_us: int, step_us: int, node: str | None) -> Statement:
    o = outcomes.c
    statement = select(_bucket(o.decided_us, step_us), o.prefill_node, o.ttft_s, o.tbt_s)
    statement = statement.where(o.decided_us >= lo_us, o.decided_us < hi_us)
    return statement if not node else statement.where(o.prefill_node == node)


def _add_observed(found: Found, wanted: str | None, rows: Sequence[Any]) -> None:
    """Add histograms of the latencies, with columns as `_observed` selects them."""
    buckets, nodes, ttft, tbt = zip(*rows, strict=True)
    latencies = (np.array(ttft, dtype=np.float64), np.array(tbt, dtype=np.float64))
    if not wanted:
        _add_spreads(found, [(bucket, FLEET) for bucket in buckets], latencies)
    if wanted != FLEET:
        _add_spreads(found, list(zip(buckets, nodes, strict=True)), latencies)


def _add_spreads(
    found: Found, keys: Sequence[tuple[int, str | None]], latencies: tuple[Floats, Floats]
) -> None:
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    group = np.fromiter(map(numbers.__getitem__, keys), dtype=np.int64, count=len(keys))
    ttft, tbt = (histogram.grouped(group, seconds) for seconds in latencies)
    for (bucket, node), number in numbers.items():
        if node is None:
            continue
        figures = found[bucket, node]
        figures.ttft += [ttft[number]] if number in ttft else []
        figures.tbt += [tbt[number]] if number in tbt else []


def _bucket(at_us: ColumnElement[int], step_us: int) -> ColumnElement[int]:
    # Written into the statement: databases must see the same expression in SELECT and GROUP BY.
    return (at_us // literal(step_us, literal_execute=True)).label("bucket")


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def merged(parts: Iterator[Found]) -> Found:
    """The parts together."""
    total: Found = defaultdict(Figures)
    for part in parts:
        for key, figures in part.items():
            into = total[key]
            into.add(figures.sums)
            into.ttft += figures.ttft
            into.tbt += figures.tbt
            for node, count in figures.per_node.items():
                into.place(node, count)
    return total

"""Aggregates over time: counts, reuse and latency percentiles per bucket, shares per node.

Computed from the rows themselves, so they are exact and cost time in proportion to the rows of
the range (see the README for figures); ask for the newest minutes and keep the older ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import ColumnElement, Connection, RowMapping, Select, case, func, literal, select

from core.errors import BadRequest
from core.ports import NodeShare, TimeBucket
from storage.decisions import JOINED
from storage.models import decisions, outcomes
from storage.types import from_micros, to_micros

BUCKETS_MAX = 10_000
_MICROS = 1_000_000
_QUANTILES = (0.5, 0.9, 0.99)
Floats = npt.NDArray[np.float64]
Statement = Select[*tuple[Any, ...]]


def series(
    connection: Connection, start: datetime, end: datetime, step_s: int, node: str | None
) -> list[TimeBucket]:
    """Buckets of `step_s` seconds, aligned to the epoch, that hold a decision or an outcome."""
    start_us, end_us, step_us = to_micros(start), to_micros(end), step_s * _MICROS
    if step_s < 1 or (end_us - start_us) // max(step_us, 1) > BUCKETS_MAX:
        raise BadRequest(
            f"step_s: {step_s} gives no or more than {BUCKETS_MAX} buckets", field="step_s"
        )
    found: dict[int, dict[str, Any]] = {}
    for row in connection.execute(_decided(start_us, end_us, step_us, node)).mappings():
        _add_decided(found.setdefault(row["bucket"], {"per_node": {}}), row)
    ended = connection.execute(_ended(start_us, end_us, step_us, node)).all()
    for bucket, figures in _outcome_figures(ended):
        found.setdefault(bucket, {}).update(figures)
    return [
        TimeBucket(start=from_micros(bucket * step_us), **figures)
        for bucket, figures in sorted(found.items())
    ]


def node_shares(connection: Connection, start: datetime, end: datetime) -> list[NodeShare]:
    """Placed requests per prefill node, most first."""
    d = decisions.c
    count = func.count().label("decisions")
    statement = (
        select(
            d.prefill_node.label("node"),
            count,
            func.sum(d.prompt_tokens).label("prompt_tokens"),
            func.sum(d.match_tokens).label("match_tokens"),
            func.sum(d.reachable_tokens).label("reachable_tokens"),
        )
        .where(d.at_us >= to_micros(start), d.at_us < to_micros(end), d.prefill_node.is_not(None))
        .group_by(d.prefill_node)
        .order_by(count.desc(), d.prefill_node)
    )
    return [_share(dict(row)) for row in connection.execute(statement).mappings()]


def _share(row: dict[str, Any]) -> NodeShare:
    return NodeShare(node=row.pop("node"), **{name: int(value) for name, value in row.items()})


def _decided(start_us: int, end_us: int, step_us: int, node: str | None) -> Statement:
    """Per bucket and prefill node (NULL for rejections): count and token sums."""
    d = decisions.c
    bucket = _bucket(d.at_us, step_us)
    statement = (
        select(
            bucket,
            d.prefill_node,
            func.count().label("count"),
            func.sum(d.prompt_tokens).label("prompt_tokens"),
            func.sum(d.match_tokens).label("match_tokens"),
            func.sum(d.reachable_tokens).label("reachable_tokens"),
        )
        .where(d.at_us >= start_us, d.at_us < end_us)
        .group_by(bucket, d.prefill_node)
    )
    return statement if node is None else statement.where(d.prefill_node == node)


def _add_decided(figures: dict[str, Any], row: RowMapping) -> None:
    count = int(row["count"])
    figures["decisions"] = figures.get("decisions", 0) + count
    if row["prefill_node"] is None:
        figures["rejected"] = count
        return
    figures["per_node"][row["prefill_node"]] = count
    for name in ("prompt_tokens", "match_tokens", "reachable_tokens"):
        figures[name] = figures.get(name, 0) + int(row[name])


def _ended(start_us: int, end_us: int, step_us: int, node: str | None) -> Statement:
    o = outcomes.c
    ok, aborted = o.kind == "ok", o.kind == "client_abort"
    statement = select(
        _bucket(o.decided_us, step_us),
        case((ok, 0), (aborted, 0), else_=1),
        case((aborted, 1), else_=0),
        case((o.slo_missed != "", 1), else_=0),
        o.prompt_tokens,
        o.cached_tokens,
        o.output_tokens,
        o.ttft_s,
        o.tbt_s,
    ).where(o.decided_us >= start_us, o.decided_us < end_us)
    if node is None:
        return statement
    statement = statement.select_from(outcomes.join(decisions, JOINED))
    return statement.where(decisions.c.prefill_node == node)


def _outcome_figures(rows: Sequence[Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Per bucket the figures of its outcomes; columns of `rows` as `_ended` selects them."""
    if not rows:
        return
    bucket, *columns = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    order = np.argsort(bucket, kind="stable")
    edges = np.flatnonzero(np.diff(bucket[order])) + 1
    for part in np.split(order, edges):
        yield int(bucket[part[0]]), _figures(*(column[part] for column in columns))


def _figures(
    failed: Floats,
    aborted: Floats,
    missed: Floats,
    prompt: Floats,
    cached: Floats,
    output: Floats,
    ttft_s: Floats,
    tbt_s: Floats,
) -> dict[str, Any]:
    reported = ~np.isnan(prompt) & ~np.isnan(cached)
    return {
        "finished": len(failed),
        "failed": int(failed.sum()),
        "aborted": int(aborted.sum()),
        "slo_missed": int(missed.sum()),
        "reported_prompt_tokens": int(prompt[reported].sum()),
        "cached_tokens": int(cached[reported].sum()),
        "output_tokens": int(np.nansum(output)),
        **_percentiles("ttft", ttft_s),
        **_percentiles("tbt", tbt_s),
    }


def _percentiles(name: str, values: Floats) -> dict[str, float]:
    values = values[~np.isnan(values)]
    if not len(values):
        return {}
    points = np.quantile(values, _QUANTILES)
    return {f"{name}_p{q * 100:.0f}_s": float(p) for q, p in zip(_QUANTILES, points, strict=True)}


def _bucket(at_us: ColumnElement[int], step_us: int) -> ColumnElement[int]:
    # Written into the statement: databases must see the same expression in SELECT and GROUP BY.
    return (at_us // literal(step_us, literal_execute=True)).label("bucket")

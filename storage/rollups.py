"""The roll-up job: computes what is marked as out of date, the newest first, in small steps.

A step is one transaction of a few buckets: read their marks, compute them anew from the rows (or
from the next finer level), replace them, take away the marks that were read, and mark the coarser
bucket. Marks set meanwhile stay, so nothing that is stored later is missed; a step may be
repeated without harm. Steps exclude each other, so that an older result never replaces a newer.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Table, delete, func, insert, select, tuple_

from storage import shares
from storage.database import exclusive, now_us
from storage.figures import MICROS, Found, from_rollups, from_rows
from storage.models import decisions
from storage.series import runs
from storage.share_groups import capped, packed
from storage.summary_models import (
    FACETS,
    LEVELS_S,
    facets,
    horizons,
    rollups,
    share_rollups,
    summary_marks,
)

LOCK = 4_242_003
_STEP_TARGET_S = 0.05
_BUCKETS_MAX = 64
GROUPS_MAX = 4_000
"""Of a bucket's groups by nodes the largest that are kept apart, so that a week stays readable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolled:
    """What a run did: buckets computed, and whether none is left out of date."""

    buckets: int
    complete: bool


class RollUp:
    """Keeps roll-ups up to date through one engine. Not for several threads at once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._buckets = 4

    def run(self, *, budget_s: float = 2.0, levels_s: Sequence[int] = LEVELS_S) -> Rolled:
        """Steps until nothing is out of date on these levels, or for `budget_s` at least."""
        began_s, done = time.monotonic(), 0
        for level_s in sorted(levels_s):
            while buckets := self._step(level_s):
                done += buckets
                if time.monotonic() - began_s >= budget_s:
                    return Rolled(buckets=done, complete=False)
        return Rolled(buckets=done, complete=True)

    def _step(self, level_s: int) -> int:
        """One transaction, of a size that takes about a twentieth of a second."""
        with exclusive(self._engine, LOCK) as connection:
            began_s = time.monotonic()
            done = roll_up(connection, level_s, self._buckets if level_s == LEVELS_S[0] else 1)
            took_s = time.monotonic() - began_s
        if done and level_s == LEVELS_S[0]:
            wanted = self._buckets * _STEP_TARGET_S / max(took_s, 1e-3)
            self._buckets = max(1, min(round(wanted), 2 * self._buckets, _BUCKETS_MAX))
        return done


def roll_up(connection: Connection, level_s: int, limit: int) -> int:
    """Compute up to `limit` marked buckets of a level, the newest first; how many there were."""
    m = summary_marks.c
    starts = connection.scalars(
        select(m.start_us)
        .where(m.level_s == level_s)
        .distinct()
        .order_by(m.start_us.desc())
        .limit(limit)
    ).all()
    if not starts:
        return 0
    marked = (m.level_s == level_s) & m.start_us.in_(starts)
    tokens = connection.execute(select(m.start_us, m.token).where(marked)).all()
    horizon_us = _horizon(connection, level_s)
    kept = sorted(start for start in starts if start >= horizon_us)
    if kept:
        _replace(connection, level_s, kept)
        _mark_coarser(connection, level_s, kept)
    seen = tuple_(m.start_us, m.token).in_([tuple(row) for row in tokens])
    connection.execute(delete(summary_marks).where(m.level_s == level_s, seen))
    return len(starts)


def _replace(connection: Connection, level_s: int, starts: list[int]) -> None:
    step_us = level_s * MICROS
    finest = level_s == LEVELS_S[0]
    stretches = list(runs(starts, step_us, starts[0], starts[-1] + 1))
    rows: list[dict[str, Any]] = []
    for lo_us, hi_us in stretches:
        found = _figures(connection, level_s, lo_us, hi_us)
        rows += [
            figures.row(level_s, node, bucket * step_us)
            for (bucket, node), figures in found.items()
        ]
    r = rollups.c
    _refill(connection, rollups, (r.level_s == level_s) & r.start_us.in_(starts), rows)
    groups = [row for lo, hi in stretches for row in _share_rows(connection, level_s, lo, hi)]
    s = share_rollups.c
    _refill(connection, share_rollups, (s.level_s == level_s) & s.start_us.in_(starts), groups)
    if finest:
        values = [row for lo, hi in stretches for row in _facets(connection, lo, hi, step_us)]
        _refill(connection, facets, facets.c.start_us.in_(starts), values)


def _figures(connection: Connection, level_s: int, lo_us: int, hi_us: int) -> Found:
    finer = LEVELS_S.index(level_s) - 1
    if finer < 0:
        return from_rows(connection, lo_us, hi_us, level_s * MICROS)
    return from_rollups(connection, LEVELS_S[finer], lo_us, hi_us, level_s * MICROS)


def _share_rows(
    connection: Connection, level_s: int, lo_us: int, hi_us: int
) -> Iterator[dict[str, Any]]:
    """How the requests of each bucket fared by tenant, model and nodes."""
    finer, step_us = LEVELS_S.index(level_s) - 1, level_s * MICROS
    if finer < 0:
        found = shares.from_rows(connection, lo_us, hi_us, step_us)
    else:
        found = shares.from_rollups(connection, LEVELS_S[finer], lo_us, hi_us, step_us)
    for bucket, groups in found.items():
        yield {
            "level_s": level_s,
            "start_us": bucket * step_us,
            "oldest_us": groups.oldest_us,
            "data": packed(capped(groups, GROUPS_MAX)),
        }


def _facets(
    connection: Connection, lo_us: int, hi_us: int, step_us: int
) -> Iterator[dict[str, Any]]:
    """Which policies, revisions and models occur in each bucket."""
    columns = [decisions.c[name] for name in FACETS]
    at_us = decisions.c.at_us
    statement = select((at_us // step_us).label("bucket"), *columns)
    statement = statement.where(at_us >= lo_us, at_us < hi_us).distinct()
    found = {
        (kind, str(value), bucket * step_us)
        for bucket, *values in connection.execute(statement)
        for kind, value in zip(FACETS, values, strict=True)
    }
    yield from ({"kind": k, "value": v, "start_us": s} for k, v, s in sorted(found))


def _refill(connection: Connection, table: Table, old: Any, rows: list[dict[str, Any]]) -> None:
    connection.execute(delete(table).where(old))
    if rows:
        connection.execute(insert(table), rows)


def _mark_coarser(connection: Connection, level_s: int, starts: list[int]) -> None:
    coarser = LEVELS_S[LEVELS_S.index(level_s) + 1 :][:1]
    token = secrets.randbits(62)
    rows = [
        {"level_s": level, "start_us": start, "token": token}
        for level in coarser
        for start in sorted({at // (level * MICROS) * level * MICROS for at in starts})
    ]
    if rows:
        connection.execute(insert(summary_marks), rows)


def _horizon(connection: Connection, level_s: int) -> int:
    """Before when the source of this level is gone, so that nothing can be computed anew."""
    finer = LEVELS_S.index(level_s) - 1
    name = "decisions" if finer < 0 else horizon_name(LEVELS_S[finer])
    before_us = connection.scalar(select(horizons.c.before_us).where(horizons.c.name == name))
    return 0 if before_us is None else int(before_us)


def behind_s(connection: Connection) -> float:
    """Age of the oldest rows that wait to be rolled up; 0 where none does."""
    m = summary_marks.c
    oldest_us = connection.scalar(select(func.min(m.start_us)).where(m.level_s == LEVELS_S[0]))
    return 0.0 if oldest_us is None else max(now_us(connection) - int(oldest_us), 0) / MICROS


def horizon_name(level_s: int) -> str:
    """Name of the horizon of a level's roll-ups."""
    return f"rollups.{level_s}"

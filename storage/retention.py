"""Deleting what is old: small steps that may stop anywhere and go on later.

Ages are by the database's clock. On Postgres decisions and outcomes go by whole days, a partition
at a time; everything else goes in batches whose size follows the time they take, with pauses, so
that writers hardly notice. Nothing of where a run stopped is kept: the next one looks again.

Two things keep a wrong clock or setting from emptying the database: a run refuses to delete more
than a share of a table unless it is forced, and decisions wait until they are rolled up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Engine, Table, delete, func, select, text, true
from sqlalchemy.dialects import postgresql, sqlite

from storage import partitions
from storage.database import now_us
from storage.fleet_models import slots
from storage.models import decisions, events, node_telemetry, outcomes, prompts
from storage.replicas import forget
from storage.rollups import horizon_name
from storage.summary_models import (
    LEVELS_S,
    SHARES,
    facets,
    horizons,
    rollups,
    share_rollups,
    summary_marks,
)

DAY_S = 86_400
_MICROS = 1_000_000
_HOUR_US = 3_600 * _MICROS
_ROWS_MIN, _ROWS_MAX = 100, 20_000
_SLOTS_DAYS = 7.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How many days rows are kept, and the largest share of a table that one run may delete."""

    decisions_days: float = 14.0
    """Decisions, outcomes, readings, facets, ten-second roll-ups, and those by tenant and node."""
    rollups_days: float = 400.0
    """Roll-ups of five minutes and an hour, and events."""
    prompts_days: float = 3.0
    """Prompt text; it goes whatever share of it is too old."""
    share_max: float = 0.2
    batch_target_s: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """What a run did to one kind of rows. `left` are rows older than allowed that remain."""

    name: str
    deleted: int = 0
    left: int = 0
    refused: str = ""
    """Why nothing was deleted; empty where it was allowed."""


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    table: Table
    time: ColumnElement[int]
    days: float
    only: ColumnElement[bool]
    always: bool = False
    """Whether rows go however many they are."""


class Retention:
    """Deletes old rows through one engine."""

    def __init__(
        self,
        engine: Engine,
        rules: Rules | None = None,
        *,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._engine = engine
        self._rules = rules or Rules()
        self._sleep = sleep
        self._rows = 1_000

    def run(self, *, force: bool = False, budget_s: float = float("inf")) -> list[Cleaned]:
        """Delete what is too old, for `budget_s` at least; what was done, by kind of rows.

        `force` deletes whatever share of a table is too old.
        """
        ends_s = time.monotonic() + budget_s
        with self._engine.begin() as connection:
            at_us = now_us(connection)
            forget(connection)
        return [self._clean(kind, at_us, force, ends_s) for kind in _kinds(self._rules)]

    def _clean(self, kind: _Kind, at_us: int, force: bool, ends_s: float) -> Cleaned:
        cut_us = at_us - round(kind.days * DAY_S) * _MICROS
        # Whole hours, and whole days of partitions: no roll-up is to lose a part of its rows.
        by_day = self._engine.dialect.name == "postgresql" and kind.name in partitions.PARTITIONED
        cut_us -= cut_us % (partitions.DAY_US if by_day else _HOUR_US)
        with self._counting() as connection:
            old = _count(connection, kind, cut_us)
            every = _count(connection, kind, None) if old else 0
            refused = self._refusal(connection, kind, cut_us, old, every, force)
            if old and not refused:
                _set_horizon(connection, kind.name, cut_us)
        if refused or not old:
            return Cleaned(name=kind.name, left=old, refused=refused)
        if by_day:
            done = self._drop_partitions(kind, cut_us, ends_s)
        else:
            done = sum(self._batches(kind, cut_us, ends_s))
        return Cleaned(name=kind.name, deleted=done, left=old - done)

    @contextmanager
    def _counting(self) -> Iterator[Connection]:
        """A transaction whose statements take the time they need: to count a table of hundreds of
        millions of rows takes longer than any other statement may, and nobody waits for it."""
        with self._engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SET LOCAL statement_timeout = 0"))
            yield connection

    def _refusal(
        self, connection: Connection, kind: _Kind, cut_us: int, old: int, every: int, force: bool
    ) -> str:
        if old > self._rules.share_max * every and not (force or kind.always):
            return (
                f"{old:,} of {every:,} rows are older than {kind.days:g} days, more than"
                f" {self._rules.share_max:.0%}: check the clock and the settings, then force it"
            )
        if kind.name in ("decisions", "outcomes") and self._not_rolled_up(connection, cut_us):
            return "waits for roll-ups"
        return ""

    def _not_rolled_up(self, connection: Connection, cut_us: int) -> bool:
        m = summary_marks.c
        return (
            connection.scalar(
                select(m.start_us).where(m.level_s == LEVELS_S[0], m.start_us < cut_us).limit(1)
            )
            is not None
        )

    def _batches(self, kind: _Kind, cut_us: int, ends_s: float) -> Iterator[int]:
        """Delete batch by batch, resting as long as each took; how many rows each had."""
        while time.monotonic() < ends_s:
            began_s = time.monotonic()
            with self._engine.begin() as connection:
                deleted = _delete_oldest(connection, kind, cut_us, self._rows)
            took_s = time.monotonic() - began_s
            if not deleted:
                return
            yield deleted
            wanted = self._rows * self._rules.batch_target_s / max(took_s, 1e-3)
            self._rows = round(min(max(wanted, _ROWS_MIN), 2 * self._rows, _ROWS_MAX))
            self._sleep(took_s)

    def _drop_partitions(self, kind: _Kind, cut_us: int, ends_s: float) -> int:
        """Drop whole days; how many rows they held. One connection at a time: there may be one."""
        done, last_day = 0, cut_us // partitions.DAY_US
        with self._engine.connect() as connection:
            names = partitions.before(connection, kind.name, last_day)
        for name in names:
            if time.monotonic() >= ends_s:
                break
            with self._counting() as connection:
                count = select(func.count()).select_from(text(name))
                rows = int(connection.scalar(count) or 0)
            with self._engine.connect() as connection:
                connection.execution_options(isolation_level="AUTOCOMMIT")
                partitions.drop(connection, kind.name, name)
            done += rows
        return done


def _kinds(rules: Rules) -> list[_Kind]:
    short, long = rules.decisions_days, rules.rollups_days
    r = rollups.c
    levels = [
        _Kind(
            horizon_name(level_s),
            rollups,
            r.start_us,
            short if level_s == LEVELS_S[0] else long,
            r.level_s == level_s,
        )
        for level_s in LEVELS_S
    ]
    return [
        _Kind("decisions", decisions, decisions.c.at_us, short, true()),
        _Kind("outcomes", outcomes, outcomes.c.decided_us, short, true()),
        _Kind("node_telemetry", node_telemetry, node_telemetry.c.at_us, short, true()),
        _Kind("facets", facets, facets.c.start_us, short, true()),
        _Kind(SHARES, share_rollups, share_rollups.c.start_us, short, true()),
        *levels,
        _Kind("prompts", prompts, prompts.c.at_us, rules.prompts_days, true(), always=True),
        _Kind("events", events, events.c.at_us, long, true()),
        _Kind("slots", slots, slots.c.at_us, _SLOTS_DAYS, true(), always=True),
    ]


def _count(connection: Connection, kind: _Kind, cut_us: int | None) -> int:
    statement = select(func.count()).select_from(kind.table).where(kind.only)
    if cut_us is not None:
        statement = statement.where(kind.time < cut_us)
    return int(connection.scalar(statement) or 0)


def _delete_oldest(connection: Connection, kind: _Kind, cut_us: int, rows: int) -> int:
    """Delete about `rows` of the oldest rows before the cut; how many it were."""
    old = kind.only & (kind.time < cut_us)
    edge = select(kind.time).where(old).order_by(kind.time).limit(1).offset(rows)
    upto_us = connection.scalar(edge)
    doomed = old if upto_us is None else kind.only & (kind.time <= upto_us)
    return connection.execute(delete(kind.table).where(doomed)).rowcount


def _set_horizon(connection: Connection, name: str, before_us: int) -> None:
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(horizons).values(name=name, before_us=before_us)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[horizons.c.name],
            set_={"before_us": statement.excluded.before_us},
            where=horizons.c.before_us < statement.excluded.before_us,
        )
    )

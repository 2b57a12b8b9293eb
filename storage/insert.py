"""Inserts that may be repeated: what is there already stays, or is refreshed where said so.

A batch goes in by the fastest way the database has: prepared `executemany` on SQLite, COPY on
Postgres. COPY knows no "unless it is there", so a batch that meets a row stored before is rolled
back and sent once more through temporary tables.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import psycopg
from sqlalchemy import BigInteger, Connection, Double, Engine, Integer, Table, Text
from sqlalchemy.dialects import postgresql, sqlite

from storage import partitions
from storage.changes import NODES, announce
from storage.models import metadata
from storage.rows import COLUMNS, TIME_AT, Values
from storage.summary_models import LEVELS_S


class Row(NamedTuple):
    """One row on its way: the table's name, and values in the order of its `COLUMNS`."""

    table: str
    values: Values


class Inserter:
    """Stores batches through one engine, each in one transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._days: set[int] = set()

    def store(self, rows: Iterable[Row]) -> int:
        """Store the rows; how many of them were new. Raises whatever the database raises."""
        batch = _by_table(rows)
        try:
            return self._store(batch)
        except Exception:
            self._days.clear()  # whatever went wrong, partitions may be gone
            raise

    def _store(self, batch: Mapping[str, list[Values]]) -> int:
        if self._engine.dialect.name != "postgresql":
            with self._engine.begin() as connection:
                _mark(connection, batch)
                return sum(_insert(connection, name, rows) for name, rows in batch.items())
        self._make_partitions(batch)
        if sum(map(len, batch.values())) == 1:  # a row on its own may be one that COPY refused
            with self._engine.begin() as connection:
                _mark(connection, batch)
                return sum(_insert(connection, name, rows) for name, rows in batch.items())
        try:
            return self._copy(batch, through_temporary=False)
        except psycopg.errors.UniqueViolation:
            return self._copy(batch, through_temporary=True)

    def _copy(self, batch: Mapping[str, list[Values]], *, through_temporary: bool) -> int:
        copy = _copy_new if through_temporary else _copy_all
        with self._engine.begin() as connection:
            _mark(connection, batch)
            return sum(
                _insert(connection, name, rows)
                if name in _REFRESH
                else copy(connection, name, rows)
                for name, rows in batch.items()
            )

    def _make_partitions(self, batch: Mapping[str, list[Values]]) -> None:
        days = set(_times(batch, partitions.DAY_US))
        if days - self._days:
            with self._engine.begin() as connection:
                partitions.ensure(connection, days)
            self._days |= days


def insert_new(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> int:
    """Insert the rows whose key is not there yet; how many that were."""
    dialect: Any = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table).on_conflict_do_nothing()
    return max(connection.execute(statement, rows).rowcount, 0)


def _by_table(rows: Iterable[Row]) -> dict[str, list[Values]]:
    """Rows by table, in the order in which tables are filled."""
    batch: dict[str, list[Values]] = {name: [] for name in COLUMNS}
    for name, values in rows:
        batch[name].append(values)
    return {name: found for name, found in batch.items() if found}


def _times(batch: Mapping[str, list[Values]], step_us: int) -> Iterator[int]:
    """The numbers of the steps in which the batch's decisions were made."""
    for name, at in TIME_AT.items():
        yield from {values[at] // step_us for values in batch.get(name, ())}


def _mark(connection: Connection, batch: Mapping[str, list[Values]]) -> None:
    """Say which roll-ups are out of date with this transaction, and that nodes changed."""
    if "standings" in batch:
        announce(connection, NODES)
    token, level_s = secrets.randbits(62), LEVELS_S[0]
    starts = set(_times(batch, level_s * 1_000_000))
    marks = [(level_s, start * level_s * 1_000_000, token) for start in sorted(starts)]
    if marks:
        marker = _marker(connection)
        connection.exec_driver_sql(
            "INSERT INTO summary_marks (level_s, start_us, token)"
            f" VALUES ({marker}, {marker}, {marker})",
            marks,
        )


def _insert(connection: Connection, name: str, rows: list[Values]) -> int:
    statement = _insert_sql(name, _marker(connection))
    return max(connection.exec_driver_sql(statement, rows).rowcount, 0)


def _marker(connection: Connection) -> str:
    return "%s" if connection.dialect.name == "postgresql" else "?"


def _copy_all(connection: Connection, name: str, rows: list[Values]) -> int:
    """COPY into the table itself; UniqueViolation where a row is there already."""
    with _cursor(connection) as cursor:
        _copy_into(cursor, name, name, rows)
        return int(cursor.rowcount)


def _copy_new(connection: Connection, name: str, rows: list[Values]) -> int:
    """COPY beside the table, then insert what is new."""
    columns, stage = _names(name), f"new_{name}"
    with _cursor(connection) as cursor:
        cursor.execute(f"CREATE TEMP TABLE {stage} (LIKE {name}) ON COMMIT DROP")
        _copy_into(cursor, stage, name, rows)
        cursor.execute(
            f"INSERT INTO {name} ({columns}) SELECT {columns} FROM {stage} ON CONFLICT DO NOTHING"
        )
        return int(cursor.rowcount)


def _copy_into(cursor: psycopg.Cursor[Any], into: str, name: str, rows: list[Values]) -> None:
    """COPY rows of table `name` into a table of the same columns; binary is twice as fast."""
    with cursor.copy(f"COPY {into} ({_names(name)}) FROM STDIN (FORMAT BINARY)") as copy:
        copy.set_types(_types(name))
        for values in rows:
            copy.write_row(values)


@cache
def _types(name: str) -> list[str]:
    kinds = {BigInteger: "int8", Integer: "int4", Double: "float8", Text: "text"}
    columns = metadata.tables[name].c
    return [kinds[type(columns[column].type)] for column in COLUMNS[name]]


def _cursor(connection: Connection) -> psycopg.Cursor[Any]:
    """A cursor of the driver's own, in the connection's transaction."""
    driver: psycopg.Connection[Any] = connection.connection.driver_connection  # type: ignore[assignment]
    return driver.cursor()


@cache
def _names(name: str) -> str:
    return ", ".join(f'"{column}"' for column in COLUMNS[name])


@cache
def _insert_sql(name: str, marker: str) -> str:
    values = ", ".join([marker] * len(COLUMNS[name]))
    return f"INSERT INTO {name} ({_names(name)}) VALUES ({values}) ON CONFLICT {_CONFLICT[name]}"


_REFRESH = {
    "nodes": (
        "(id) DO UPDATE SET spec = excluded.spec, state = excluded.state,"
        " updated_us = excluded.updated_us WHERE excluded.updated_us >= nodes.updated_us"
    ),
    "standings": (
        "(name) DO UPDATE SET data = excluded.data, updated_us = excluded.updated_us"
        " WHERE excluded.updated_us >= standings.updated_us"
    ),
}
"""Tables whose rows say what holds now: a later row replaces an earlier one."""
_CONFLICT = {name: _REFRESH.get(name, "DO NOTHING") for name in COLUMNS}
assert all(set(names) == set(metadata.tables[name].c.keys()) for name, names in COLUMNS.items())

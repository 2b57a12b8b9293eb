"""Records: the audit's questions over five million decisions, deep pages too.

    python -m tests.bench records     (make bench-records)

A fifth of a million decisions of eight candidates are written as the product writes them; the rest
are copies that the database itself makes, each block later than the one before, with ids, times,
requests and revisions of its own. Most indexes are built when all rows are there, which leaves them
a little smaller than they grow by themselves (`bench_storage` prints that). One database at a time
is on the disk. CONDUCTOR_BENCH_ROWS makes it smaller, CONDUCTOR_BENCH_DATABASE (SQLite or Postgres)
asks one alone.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, text

from storage.database import writer_engine
from storage.insert import COLUMNS
from storage.models import decisions, outcomes
from storage.summary_models import LEVELS_S
from tests.bench import bench_storage as storage
from tests.bench import storage_rows

ROWS = int(os.environ.get("CONDUCTOR_BENCH_ROWS", "5000000"))
BLOCK = 200_000
_STEP_US = LEVELS_S[0] * 1_000_000


def main() -> None:
    """Print everything, for SQLite and, where there is a server, for Postgres."""
    wanted = os.environ.get("CONDUCTOR_BENCH_DATABASE", "SQLite Postgres").split()
    if "SQLite" in wanted:
        with tempfile.TemporaryDirectory(prefix="conductor-bench-") as folder:
            bench("SQLite", storage.Folder(Path(folder)).new_database())
    if "Postgres" in wanted:
        try:
            server = storage.PostgresServer()
        except storage.NoPostgres as reason:
            print(reason)
            return
        try:
            server.start()
            bench("Postgres", server.new_database())
        finally:
            server.remove()


def bench(kind: str, url: str) -> None:
    began_s = time.perf_counter()
    storage.fill(url, BLOCK)
    multiply(kind, url, ROWS // BLOCK)
    print(f"{kind}: {ROWS:,} decisions put there in {storage.since(began_s):.0f} s", flush=True)
    storage.bytes_a_row(kind, url, ROWS)
    storage.roll_up(kind, url)
    storage.questions(kind, url, ROWS)


def multiply(kind: str, url: str, blocks: int) -> None:
    """Copy the first block behind itself until there are so many."""
    engine = writer_engine(url)
    with indexes_last(engine):
        for block in range(1, blocks):
            with patient(engine) as connection:
                copy_block(connection, kind, block)
            if kind == "SQLite":
                with engine.connect() as connection:
                    connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    engine.dispose()


@contextmanager
def indexes_last(engine: Engine) -> Iterator[None]:
    """Without the indexes that copying does not read; they are built again at the end."""
    dialect = engine.dialect.name
    apart = [
        index
        for table in (decisions, outcomes)
        for index in sorted(table.indexes, key=lambda index: str(index.name))
        if index.info.get("only", dialect) == dialect and index.name != "ix_decisions_at_us"
    ]
    with patient(engine) as connection:
        for index in apart:
            index.drop(connection)
    yield
    for index in apart:
        with patient(engine) as connection:
            index.create(connection)


@contextmanager
def patient(engine: Engine) -> Iterator[Connection]:
    """A transaction whose statements may take as long as they need."""
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            connection.execute(text("SET LOCAL maintenance_work_mem = '512MB'"))
        else:
            connection.exec_driver_sql("PRAGMA cache_size=-400000")
        yield connection


def copy_block(connection: Connection, kind: str, block: int) -> None:
    """The first block once more, so many blocks later."""
    first_us = int(storage_rows.T0.timestamp() * 1e6)
    length_us = int(BLOCK / storage.PER_S * 1e6)
    later_us = block * length_us
    given = {"later": later_us, "end": first_us + length_us, "revisions": block * BLOCK // 50_000}
    number = f"{block:04x}"
    key = "printf('%012x', {})" if kind == "SQLite" else "lpad(to_hex({}), 12, '0')"
    replaced = {
        "decisions": {
            "id": key.format("(at_us + :later) / 1000") + " || substr(id, 13)",
            "at_us": "at_us + :later",
            "request_id": f"substr(request_id, 1, 9) || '{number}' || substr(request_id, 14)",
            "revision": "revision + :revisions",
        },
        "outcomes": {
            "decision_id": key.format("(decided_us + :later) / 1000")
            + " || substr(decision_id, 13)",
            "decided_us": "decided_us + :later",
            "finished_us": "finished_us + :later",
        },
    }
    for table, changed in replaced.items():
        names = COLUMNS[table]
        time_at = "at_us" if table == "decisions" else "decided_us"
        columns = ", ".join(f'"{name}"' for name in names)
        values = ", ".join(changed.get(name, f'"{name}"') for name in names)
        statement = f"INSERT INTO {table} ({columns}) SELECT {values} FROM {table}"
        connection.execute(text(f"{statement} WHERE {time_at} < :end"), given)
    marks = [
        {"level": LEVELS_S[0], "start": start, "token": 1}
        for start in range(first_us + later_us, first_us + later_us + length_us, _STEP_US)
    ]
    mark = "INSERT INTO summary_marks (level_s, start_us, token) VALUES (:level, :start, :token)"
    connection.execute(text(mark), marks)


if __name__ == "__main__":
    main()

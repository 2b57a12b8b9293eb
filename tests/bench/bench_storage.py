"""Storage: write rates beside raw drivers, bytes a row, and what questions cost.

    python -m tests.bench storage

Decisions of eight candidates as a conductor writes them. "Raw" is the same rows, already
rendered, into the same tables with the same indexes: `executemany` of sqlite3, COPY of psycopg;
both in this run, in turns with the product's writer. CONDUCTOR_BENCH_ROWS sets how many rows the
questions are asked of (default 200,000; `bench_records` asks them of 5,000,000), and
CONDUCTOR_BENCH_PER_S how many a second they were (default 200).
"""

from __future__ import annotations

import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg

sys.path.insert(0, str(Path(__file__).parent.parent))

from postgres_server import NoPostgres, PostgresServer

from core.ports import DecisionQuery, DecisionRecord
from storage import migrate
from storage.database import writer_engine
from storage.insert import Inserter, Row
from storage.rollups import RollUp
from storage.rows import COLUMNS, Values, decision_values, outcome_values
from storage.spool import Spool
from storage.store import Store, open_storage
from tests.bench import storage_rows

ROWS = int(os.environ.get("CONDUCTOR_BENCH_ROWS", "200000"))
PER_S = float(os.environ.get("CONDUCTOR_BENCH_PER_S", "200"))
WRITTEN, ROUNDS, BATCH = 40_000, 5, 1_000
_NAMES = ", ".join(f'"{name}"' for name in COLUMNS["decisions"])


def main() -> None:
    """Print everything, for SQLite and, where there is a server, for Postgres."""
    with tempfile.TemporaryDirectory(prefix="conductor-bench-") as folder:
        bench(Folder(Path(folder)))
        try:
            server = PostgresServer()
        except NoPostgres as reason:
            print(reason)
            return
        try:
            server.start()
            bench(server)
        finally:
            server.remove()


class Folder:
    """SQLite files, by the same calls as a server's databases."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0

    def new_database(self) -> str:
        self._count += 1
        return f"sqlite:///{self._folder / f'{self._count}.db'}"


def bench(databases: Folder | PostgresServer) -> None:
    kind = "SQLite" if isinstance(databases, Folder) else "Postgres"
    write_rates(kind, databases.new_database)
    url = databases.new_database()
    began_s = time.perf_counter()
    fill(url, ROWS)
    print(f"{kind}: {ROWS:,} decisions with outcomes put there in {since(began_s):.0f} s")
    bytes_a_row(kind, url)
    roll_up(kind, url)
    questions(kind, url)


def roll_up(kind: str, url: str) -> None:
    """What the maintenance does meanwhile: roll-ups, and statistics on Postgres."""
    began_s = time.perf_counter()
    engine = writer_engine(url)
    rolled = RollUp(engine).run(budget_s=float("inf"))
    print(f"{kind}: {rolled.buckets:,} roll-ups computed in {since(began_s):.1f} s", flush=True)
    if kind == "Postgres":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("SET statement_timeout = 0")
            connection.exec_driver_sql("VACUUM ANALYZE")
    engine.dispose()


def write_rates(kind: str, new_database: Callable[[], str]) -> None:
    """Rows a second of the writer and of the raw driver, in turns."""
    records = list(storage_rows.decisions(WRITTEN, per_s=PER_S))
    values = [decision_values(record) for record in records]
    raw, ours = [], []
    for _ in range(ROUNDS):
        raw.append(WRITTEN / timed(raw_writes(kind, new_database(), values)))
        ours.append(WRITTEN / our_writes(new_database(), records))
    name = "executemany" if kind == "SQLite" else "COPY"
    ratios = [mine / theirs for mine, theirs in zip(ours, raw, strict=True)]
    print(
        f"{kind}: {statistics.median(ours):,.0f} decisions/s through the writer,"
        f" {statistics.median(raw):,.0f} by raw {name}; ratio {statistics.median(ratios):.2f}"
        f" (rounds: {', '.join(f'{ratio:.2f}' for ratio in ratios)})"
    )
    spool_drain(kind, new_database(), values)


def raw_writes(kind: str, url: str, values: list[Values]) -> Callable[[], None]:
    migrate.upgrade(url)
    Inserter(engine := writer_engine(url)).store([Row("decisions", values[0])])  # partitions
    engine.dispose()
    rest = values[1:]
    return (lambda: _executemany(url, rest)) if kind == "SQLite" else (lambda: _copy(url, rest))


def _executemany(url: str, values: list[Values]) -> None:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA cache_size=-16384")
    marks = ", ".join("?" * len(COLUMNS["decisions"]))
    statement = f"INSERT INTO decisions ({_NAMES}) VALUES ({marks})"
    for batch in batches(values):
        connection.execute("BEGIN")
        connection.executemany(statement, batch)
        connection.execute("COMMIT")
    connection.close()


def _copy(url: str, values: list[Values]) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for batch in batches(values):
            with connection.cursor().copy(f"COPY decisions ({_NAMES}) FROM STDIN") as copy:
                for row in batch:
                    copy.write_row(row)


def our_writes(url: str, records: list[DecisionRecord]) -> float:
    """Seconds from the first record handed over until the last one is stored."""
    migrate.upgrade(url)
    with open_storage(url) as storage:
        storage.sink.put_decision(records[0])
        assert storage.sink.flush()
        began_s = time.perf_counter()
        for record in records[1:]:
            storage.sink.put_decision(record)
        assert storage.sink.flush(60.0), storage.sink.counters()
        took_s = since(began_s)
        assert storage.sink.counters().written == len(records)
    return took_s


def spool_drain(kind: str, url: str, values: list[Values]) -> None:
    """How fast what waited in the spool is stored."""
    migrate.upgrade(url)
    with tempfile.TemporaryDirectory() as folder:
        left = Spool(Path(folder))
        left.append(Row("decisions", row) for row in values)
        began_s = time.perf_counter()
        left.write()
        left.sync()
        wrote_s, size = since(began_s), left.counters().size_bytes
        left.close()
        began_s = time.perf_counter()
        with open_storage(url, spool_dir=Path(folder)) as storage:
            while storage.sink.counters().written < len(values):
                time.sleep(0.005)
        took_s = since(began_s)
    print(
        f"{kind}: {len(values) / took_s:,.0f} rows/s out of the spool; into it"
        f" {len(values) / wrote_s:,.0f} rows/s, {size / len(values):.0f} bytes each"
    )


def fill(url: str, rows: int) -> None:
    """Put decisions with outcomes into the database, a fifth of a million at a time."""
    migrate.upgrade(url)
    engine = writer_engine(url)
    inserter, block = Inserter(engine), 200_000
    made = list(storage_rows.decisions(min(block, rows), per_s=PER_S))
    pairs = list(zip(made, storage_rows.outcomes(iter(made)), strict=True))
    for first in range(0, rows, block):
        for batch in batches(pairs[: rows - first], 4 * BATCH):
            inserter.store(row for pair in batch for row in moved(*pair, first))
        inserter.store([])
    engine.dispose()


def moved(decision: DecisionRecord, outcome: Any, first: int) -> Iterator[Row]:
    """The pair as rows, so many decisions later."""
    d, o = decision_values(decision), outcome_values(outcome)
    number = int(d[2].rpartition("-")[2], 16) + first
    later_us = int(first / PER_S * 1e6)
    key = storage_rows.decision_id(number, per_s=PER_S)
    row = list(d)
    row[0], row[1], row[2] = key, d[1] + later_us, f"chatcmpl-{number:016x}"
    row[COLUMNS["decisions"].index("revision")] += first // 50_000
    yield Row("decisions", tuple(row))
    yield Row("outcomes", (key, o[1] + later_us, o[2] + later_us, *o[3:]))


def bytes_a_row(kind: str, url: str, rows: int = ROWS) -> None:
    sizes = _sqlite_sizes(url) if kind == "SQLite" else _postgres_sizes(url)
    of = {name: sum(sizes[name].values()) / rows for name in ("decisions", "outcomes")}
    row = sizes["decisions"]["decisions"] / rows
    print(
        f"{kind}: {row:.0f} bytes a decision, {of['decisions']:.0f} with all its indexes;"
        f" {of['outcomes']:.0f} more for its outcome"
    )
    for table in ("decisions", "outcomes"):
        parts = sorted(sizes[table].items(), key=lambda item: -item[1])
        print("   ", ", ".join(f"{name} {size / rows:.0f}" for name, size in parts))


def _sqlite_sizes(url: str) -> dict[str, dict[str, int]]:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    found = connection.execute(
        "SELECT m.tbl_name, m.name, sum(s.pgsize) FROM dbstat s JOIN sqlite_master m"
        " ON m.name = s.name GROUP BY m.name"
    ).fetchall()
    connection.close()
    return _nested(found)


def _postgres_sizes(url: str) -> dict[str, dict[str, int]]:
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT split_part(t.relname, '_2', 1), coalesce(p.relname, split_part(c.relname,"
            " '_2', 1)), sum(pg_relation_size(c.oid))::bigint"
            " FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid"
            " JOIN pg_class t ON t.oid = coalesce(i.indrelid, c.oid)"
            " LEFT JOIN pg_inherits h ON h.inhrelid = c.oid AND c.relkind = 'i'"
            " LEFT JOIN pg_class p ON p.oid = h.inhparent"
            " WHERE t.relname ~ '^(decisions|outcomes)_2' AND c.relkind IN ('r', 'i') GROUP BY 1, 2"
        ).fetchall()
    return _nested(found)


def _nested(found: list[Any]) -> dict[str, dict[str, int]]:
    sizes: dict[str, dict[str, int]] = {}
    for table, name, size in found:
        sizes.setdefault(table, {})[name] = int(size)
    return sizes


def questions(kind: str, url: str, rows: int = ROWS) -> None:
    """Time of each question, at the newest rows, in the middle, and far back."""
    store = Store(url)
    last = storage_rows.T0 + timedelta(seconds=rows / PER_S)
    revision = 1 + rows // 50_000 // 2
    pages: dict[str, dict[str, Any]] = {
        "newest": {},
        "by node": {"node": "prefill-1"},
        "by policy (5 %)": {"policy": "linear"},
        "by tenant (2 %)": {"tenant": "tenant-5"},
        "by revision": {"revision": revision},
        "node and policy": {"node": "prefill-1", "policy": "linear"},
        "node, policy, tenant": {"node": "prefill-1", "policy": "linear", "tenant": "tenant-5"},
        "below the best match": {"below_best_match": True},
        "missed SLO": {"slo_missed": True},
        "missed SLO and node": {"slo_missed": True, "node": "prefill-1"},
        "missed SLO and policy": {"slo_missed": True, "policy": "linear"},
        "missed SLO and tenant": {"slo_missed": True, "tenant": "tenant-5"},
        "policy and tenant": {"policy": "linear", "tenant": "tenant-5"},
        "rare outcome": {"kind": "timeout"},
        "rare outcome, node": {"kind": "timeout", "node": "prefill-9"},
        "rare outcome, node, policy": {"kind": "timeout", "node": "prefill-9", "policy": "linear"},
        "never used policy": {"policy": "weighted"},
    }
    print(
        f"{kind}: pages of 100 over {rows:,} decisions, ms p50 / p95; deep: from all over the range"
    )
    for name, filters in pages.items():
        shallow = [partial(store.decisions, DecisionQuery(**filters), whole=False)] * 20
        deep = [
            DecisionQuery(end=storage_rows.T0 + (last - storage_rows.T0) * (k / 21), **filters)
            for k in range(1, 21)
        ]
        far = [partial(store.decisions, query, whole=False) for query in deep]
        print(f"    {name:28} {spread(shallow)}   deep {spread(far)}")
    hour = timedelta(hours=1)
    asked: dict[str, Callable[[], object]] = {
        "an hour of percentiles, by minute": lambda: store.series(last - hour, last),
        "the same of one node": lambda: store.series(last - hour, last, node="prefill-1"),
        "a day by five minutes": lambda: store.series(last - 24 * hour, last, step_s=300),
        "shares of a day": lambda: store.node_shares(last - 24 * hour, last),
        "counts": store.counts,
    }
    for name, ask in asked.items():
        print(f"    {name:36} {spread([ask] * 10)}")
    store.close()


def spread(calls: list[Callable[[], object]]) -> str:
    """Milliseconds of the calls: median and 95th percentile. One call before is not counted."""
    calls[0]()
    times = sorted(timed(call) * 1e3 for call in calls)
    return f"{statistics.median(times):6.1f} / {times[round(0.95 * (len(times) - 1))]:6.1f}"


def timed(call: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    call()
    return since(began_s)


def since(began_s: float) -> float:
    return time.perf_counter() - began_s


def batches(values: list[Any], size: int = BATCH) -> Iterator[list[Any]]:
    """The values, so many at a time."""
    rest = iter(values)
    while part := list(islice(rest, size)):
        yield part


if __name__ == "__main__":
    main()

"""Retention beside a busy writer: how long its steps take, and what writers notice. `-m soak`.

CONDUCTOR_SOAK_ROWS sets how many old decisions there are (default 1,000,000).
"""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from record_cases import decision, rows
from sqlalchemy import text

from storage import migrate, partitions, retention
from storage.database import writer_engine
from storage.retention import Retention, Rules
from storage.rows import COLUMNS, decision_values
from storage.store import Storage, open_storage

ROWS = int(os.environ.get("CONDUCTOR_SOAK_ROWS", "1000000"))
PER_S = 200.0

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3_600)]


def fill(url: str, first: datetime) -> None:
    """Old decisions, one each second, of about a kilobyte."""
    columns = COLUMNS["decisions"]
    values = dict(zip(columns, decision_values(decision(0, candidates="x" * 700)), strict=True))
    start_us = int(first.timestamp()) * 1_000_000
    changing = {
        "id": "'old' || CAST(100000000 + i AS TEXT)",
        "at_us": f"{start_us} + CAST(i AS BIGINT) * 1000000",
    }
    selected = ", ".join(changing.get(name, f":{name}") for name in columns)
    given = {name: value for name, value in values.items() if name not in changing}
    engine = writer_engine(url)
    with engine.begin() as connection:
        numbers = (
            f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})"
        )
        if engine.dialect.name == "postgresql":
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            numbers = f"WITH n(i) AS (SELECT generate_series(0, {ROWS}))"
            day = start_us // partitions.DAY_US
            partitions.ensure(connection, range(day, day + ROWS // 86_400 + 2))
        names = ", ".join(columns)
        insert = f"INSERT INTO decisions ({names}) {numbers} SELECT {selected} FROM n"
        connection.execute(text(insert), given)
    engine.dispose()


def batch_times(storage: Storage, first: int, stop: threading.Event) -> list[float]:
    """Seconds each batch took to be stored, while decisions come at a steady rate."""
    found, number, began = [], first, time.monotonic()
    written = storage.sink.counters().written
    while not stop.is_set():
        due = first + int((time.monotonic() - began) * PER_S)
        while number < due:
            storage.sink.put_decision(decision(number, at=datetime.now(UTC)))
            number += 1
        counters = storage.sink.counters()
        if counters.written != written:
            written = counters.written
            found.append(counters.last_batch_s)
        stop.wait(0.01)
    assert storage.sink.flush(30.0) and storage.sink.counters().dropped == 0
    return sorted(found)


def test_writers_hardly_notice(database_url, tmp_path, monkeypatch):
    migrate.upgrade(database_url)
    fill(database_url, datetime.now(UTC) - timedelta(seconds=ROWS + 20 * 86_400))
    steps: list[float] = []
    real = retention._delete_oldest

    def timed(*args):
        began = time.monotonic()
        deleted = real(*args)
        steps.append(time.monotonic() - began)
        return deleted

    monkeypatch.setattr(retention, "_delete_oldest", timed)
    engine = writer_engine(database_url, connections=2)
    with open_storage(database_url, spool_dir=tmp_path / "spool") as storage:
        calm = threading.Event()
        threading.Timer(10.0, calm.set).start()
        before = batch_times(storage, 0, calm)
        done = threading.Event()
        cleaned = []

        def clean() -> None:
            cleaned.extend(Retention(engine, Rules(share_max=1.0)).run())
            done.set()

        began = time.monotonic()
        threading.Thread(target=clean).start()
        during = batch_times(storage, 1_000_000, done)
        took = time.monotonic() - began
    engine.dispose()
    deleted = next(c for c in cleaned if c.name == "decisions").deleted
    p99 = [times[int(0.99 * (len(times) - 1))] * 1e3 for times in (before, during or before)]
    longest = max(steps, default=0.0) * 1e3
    print(
        f"\n{database_url.partition(':')[0]}: {deleted:,} of {ROWS:,} decisions deleted in"
        f" {took:.0f} s, longest step {longest:.0f} ms; batches of the writer p99"
        f" {p99[0]:.0f} ms before, {p99[1]:.0f} ms during"
    )
    assert deleted >= ROWS * 0.9
    assert (
        rows(database_url, "SELECT count(*) FROM decisions WHERE id LIKE 'old%'")[0][0] <= ROWS / 9
    )

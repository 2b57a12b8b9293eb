"""Writer and spool together on SQLite: what waits, what is counted, what the next start finds."""

from __future__ import annotations

import threading

import pytest
from record_cases import decision, execute, put, rows, wait_for

from storage import migrate
from storage.database import writer_engine
from storage.insert import Row
from storage.rows import decision_values
from storage.spool import Spool
from storage.store import open_storage
from storage.writer import Writer


@pytest.fixture
def url(tmp_path) -> str:
    url = f"sqlite:///{tmp_path / 'records.db'}"
    migrate.upgrade(url)
    return url


@pytest.fixture
def spool_dir(tmp_path):
    return tmp_path / "spool"


def locked(url: str):
    """A connection that keeps every writer away until it is closed."""
    engine = writer_engine(url)
    connection = engine.connect()
    connection.exec_driver_sql("BEGIN IMMEDIATE")
    return connection


def writer(url: str, spool_dir) -> Writer:
    made = Writer(
        writer_engine(url, busy_ms=20),
        spool=Spool(spool_dir),
        interval_s=0.01,
        spool_after_s=0.1,
        retry_max_s=0.05,
    )
    made.start()
    return made


def test_rows_go_to_the_spool_while_the_database_is_away_and_back(url, spool_dir):
    sink, away = writer(url, spool_dir), locked(url)
    for number in range(500):
        sink.put_decision(decision(number))
    wait_for(lambda: sink.counters().spooled == 500)
    during = sink.counters()
    assert (during.queued, during.available, during.dropped) == (0, False, 0)
    assert during.lag_s > 0 and during.spool_bytes > 0
    away.rollback()
    away.engine.dispose()
    assert sink.flush(30.0)
    after = sink.counters()
    assert (after.written, after.spooled, after.available) == (500, 0, True)
    assert after.lag_s == 0
    sink.close()
    assert rows(url, "SELECT count(*) FROM decisions") == [(500,)]
    assert list(spool_dir.iterdir()) == []


def test_what_a_stop_leaves_is_stored_by_the_next_start(url, spool_dir):
    sink, away = writer(url, spool_dir), locked(url)
    for number in range(300):
        sink.put_decision(decision(number))
    wait_for(lambda: sink.counters().failures > 0)
    sink.close(5.0)
    assert (sink.counters().dropped, sink.counters().queued) == (0, 0)
    away.rollback()
    away.engine.dispose()
    assert rows(url, "SELECT count(*) FROM decisions") == [(0,)]
    with open_storage(url, spool_dir=spool_dir) as storage:
        wait_for(lambda: storage.store.counts().decisions == 300)
        put(storage, decision(999))
        assert storage.sink.flush(30.0)
    assert rows(url, "SELECT count(*) FROM decisions") == [(301,)]


def test_a_row_stored_and_spooled_is_there_once(url, spool_dir):
    with open_storage(url, spool_dir=spool_dir) as storage:
        put(storage, *(decision(n) for n in range(50)))
        assert storage.sink.flush()
    left = Spool(spool_dir)
    left.append(Row("decisions", decision_values(decision(n))) for n in range(25, 75))
    assert left.close() == 0
    with open_storage(url, spool_dir=spool_dir) as storage:
        wait_for(lambda: storage.store.counts().decisions == 75)
        wait_for(lambda: storage.sink.counters().spooled == 0)
        assert storage.sink.counters().written == 25


def test_nobody_waits_while_the_database_hangs(url, spool_dir):
    sink = writer(url, spool_dir)
    release = threading.Event()
    stuck = threading.Event()

    def hang(found) -> int:
        stuck.set()
        assert release.wait(60.0)
        return type(sink._inserter).store(sink._inserter, found)

    sink._inserter.store = hang  # type: ignore[method-assign]
    sink.put_decision(decision(0))
    assert stuck.wait(10.0)
    for number in range(1, 1_000):
        sink.put_decision(decision(number))
    wait_for(lambda: sink.counters().spooled == 1_000)
    assert sink.counters().dropped == 0, "the batch in flight is in the spool as well"
    release.set()
    assert sink.flush(30.0)
    sink.close()
    assert rows(url, "SELECT count(*) FROM decisions") == [(1_000,)]


def test_a_schema_that_is_missing_is_waited_for(tmp_path, spool_dir):
    url = f"sqlite:///{tmp_path / 'new.db'}"
    execute(url, "SELECT 1")
    sink = writer(url, spool_dir)
    sink.put_decision(decision(1))
    wait_for(lambda: sink.counters().spooled == 1)
    migrate.upgrade(url)
    assert sink.flush(30.0)
    sink.close()
    assert rows(url, "SELECT count(*) FROM decisions") == [(1,)]

"""The writer: batches, outages, rows that cannot be stored, a full queue, an orderly end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from record_cases import T0, decision, outcome, rows, wait_for
from sqlalchemy import event

from core.domain import NodeId, NodeSpec, Telemetry
from storage import migrate
from storage.database import writer_engine
from storage.writer import Writer


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'records.db'}"


@pytest.fixture
def writers() -> Iterator[list[Writer]]:
    made: list[Writer] = []
    yield made
    for writer in made:
        writer.close(0.1)


def started(writers: list[Writer], url: str, **options: object) -> Writer:
    migrate.upgrade(url)
    writer = Writer(writer_engine(url, busy_ms=20), interval_s=0.01, **options)  # type: ignore[arg-type]
    writers.append(writer)
    writer.start()
    return writer


def test_everything_put_is_stored(url, writers):
    writer = started(writers, url)
    writer.put_outcome(outcome(1))
    writer.put_decision(decision(1))
    writer.put_telemetry("p0", T0, Telemetry(running=3, kv_usage=0.25))
    writer.put_event("breaker.opened", "p0", {"failures": 5}, T0)
    writer.put_node(NodeSpec(id=NodeId("p0"), url="http://p0"), "active", T0)
    assert writer.flush()
    assert rows(url, "SELECT id, prefill_node FROM decisions") == [("0197000001", "p0")]
    assert rows(url, "SELECT decision_id, kind FROM outcomes") == [("0197000001", "ok")]
    assert rows(url, "SELECT node, running, waiting FROM node_telemetry") == [("p0", 3, None)]
    assert rows(url, "SELECT kind, data FROM events") == [("breaker.opened", '{"failures":5}')]
    assert rows(url, "SELECT id, state FROM nodes") == [("p0", "active")]
    counters = writer.counters()
    assert (counters.written, counters.queued, counters.dropped) == (5, 0, 0)
    assert counters.available and counters.lag_s == 0.0


def test_rows_are_stored_in_batches(url, writers):
    migrate.upgrade(url)
    engine = writer_engine(url)
    commits: list[int] = []
    event.listen(engine, "commit", lambda _: commits.append(1))
    writer = Writer(engine, interval_s=0.01, batch_max=100)
    writers.append(writer)
    for number in range(250):
        writer.put_decision(decision(number))
    writer.start()
    assert writer.flush()
    assert rows(url, "SELECT count(*) FROM decisions") == [(250,)]
    assert len(commits) == 3


def test_storing_twice_changes_nothing(url, writers):
    writer = started(writers, url)
    for _ in range(2):
        writer.put_decision(decision(1))
        writer.put_outcome(outcome(1))
        assert writer.flush()
    assert rows(url, "SELECT count(*) FROM decisions") == [(1,)]
    assert rows(url, "SELECT count(*) FROM outcomes") == [(1,)]
    assert writer.counters().written == 2


def test_equal_events_are_all_kept_in_order(url, writers):
    writer = started(writers, url)
    for cause in ("a", "b", "a"):
        writer.put_event("trust", "p0", {"cause": cause}, T0)
    assert writer.flush()
    stored = rows(url, "SELECT data FROM events ORDER BY id")
    assert stored == [('{"cause":"a"}',), ('{"cause":"b"}',), ('{"cause":"a"}',)]


def test_a_node_keeps_its_first_sight_and_takes_its_newest_state(url, writers):
    writer = started(writers, url)
    spec = NodeSpec(id=NodeId("p0"), url="http://p0")
    writer.put_node(spec, "active", T0)
    writer.put_node(spec, "draining", T0.replace(hour=13))
    assert writer.flush()
    ((state, first, updated),) = rows(url, "SELECT state, first_seen_us, updated_us FROM nodes")
    assert state == "draining" and updated - first == 3_600_000_000


def test_a_database_that_is_away_is_waited_for(tmp_path, writers):
    blocked = tmp_path / "state"
    blocked.write_text("a file where the folder should be")
    url = f"sqlite:///{blocked / 'records.db'}"
    writer = Writer(
        writer_engine(url), prepare=lambda: migrate.upgrade(url), interval_s=0.01, retry_max_s=0.02
    )
    writers.append(writer)
    writer.start()
    for number in range(5):
        writer.put_decision(decision(number))
    wait_for(lambda: writer.counters().failures >= 2)
    during = writer.counters()
    assert not during.available and during.queued == 5 and during.last_error
    assert during.lag_s > 0
    blocked.unlink()
    assert writer.flush()
    after = writer.counters()
    assert after.available and (after.written, after.dropped) == (5, 0)
    assert rows(url, "SELECT count(*) FROM decisions") == [(5,)]


def test_a_lock_held_by_another_writer_loses_nothing(url, writers):
    writer = started(writers, url, retry_max_s=0.02)
    other = writer_engine(url)
    with other.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        writer.put_decision(decision(1))
        wait_for(lambda: writer.counters().failures >= 1)
        connection.rollback()
    other.dispose()
    assert writer.flush()
    assert rows(url, "SELECT count(*) FROM decisions") == [(1,)]


def test_a_row_that_can_never_be_stored_does_not_hold_up_the_rest(url, writers):
    migrate.upgrade(url)
    writer = Writer(writer_engine(url), interval_s=0.01)
    writers.append(writer)
    for number in range(20):
        tokens = 2**70 if number == 7 else 1000
        writer.put_decision(decision(number, prompt_tokens=tokens))
    writer.put_event("odd", "", {"value": object()}, T0)
    writer.put_decision(decision(30, at=T0.replace(tzinfo=None)))
    writer.start()
    assert writer.flush()
    assert rows(url, "SELECT count(*) FROM decisions") == [(19,)]
    counters = writer.counters()
    assert (counters.written, counters.dropped, counters.queued) == (19, 3, 0)
    assert counters.last_error


def test_a_full_queue_drops_and_counts_telemetry_first(url, writers):
    migrate.upgrade(url)
    writer = Writer(writer_engine(url), interval_s=0.01, capacity=10)
    writers.append(writer)
    for number in range(5):
        writer.put_decision(decision(number))
    writer.put_telemetry("p0", T0, Telemetry())
    assert writer.counters().dropped == 1
    for number in range(5, 13):
        writer.put_decision(decision(number))
    assert (writer.counters().queued, writer.counters().dropped) == (10, 4)
    writer.start()
    assert writer.flush()
    assert rows(url, "SELECT count(*) FROM decisions") == [(10,)]


def test_close_stores_what_is_queued_and_refuses_more(url):
    migrate.upgrade(url)
    writer = Writer(writer_engine(url), interval_s=60.0)
    writer.start()
    for number in range(50):
        writer.put_decision(decision(number))
    writer.close()
    assert rows(url, "SELECT count(*) FROM decisions") == [(50,)]
    writer.put_decision(decision(99))
    assert writer.counters().dropped == 1


def test_close_gives_up_in_time_where_the_database_is_away(tmp_path):
    blocked = tmp_path / "state"
    blocked.write_text("")
    writer = Writer(writer_engine(f"sqlite:///{blocked / 'x.db'}"), interval_s=0.01)
    writer.start()
    writer.put_decision(decision(1))
    wait_for(lambda: writer.counters().failures >= 1)
    writer.close(0.05)
    assert (writer.counters().dropped, writer.counters().queued) == (1, 0)
    assert not any(t.name == "record-writer" and t.is_alive() for t in threading.enumerate())

"""Retention: what is too old goes, in small steps, and nothing else; what replicas tell."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from record_cases import decision, execute, keep, outcome, rows, wait_for
from sqlalchemy import Engine, insert, text

from core.domain import Telemetry
from core.ports import RevisionRecord
from storage import database, migrate, partitions, retention
from storage.changes import REVISIONS, ChangeWatch
from storage.database import writer_engine
from storage.fleet_models import slots
from storage.maintenance import Maintenance
from storage.replicas import Presence
from storage.retention import Cleaned, Retention, Rules
from storage.rollups import RollUp
from storage.store import Keeping, Storage, open_storage

DAY = timedelta(days=1)
NOW = datetime.now(UTC).replace(microsecond=0)
EDGE = (13, 14, 15)
"""The oldest age that may be left: cuts are at whole hours or days, whatever the hour is now."""


@pytest.fixture
def engine(record_url: str) -> Iterator[Engine]:
    made = writer_engine(record_url, connections=2)
    yield made
    made.dispose()


def keep_days(storage: Storage, ages: range, per_day: int = 20) -> None:
    """Decisions with outcomes and readings, of days so many ago, and their events."""
    for age in ages:
        for n in range(per_day):
            at = NOW - age * DAY - timedelta(minutes=n)
            storage.sink.put_telemetry("p0", at, Telemetry(running=1))
            if n < per_day // 10:
                storage.sink.put_event("k", "p0", {}, at)
            number = age * 1_000 + n
            keep_one = (decision(number, at=at), outcome(number, decided_at=at))
            storage.sink.put_decision(keep_one[0])
            storage.sink.put_outcome(keep_one[1])
    keep(storage)


def found(cleaned: list[Cleaned], name: str) -> Cleaned:
    return next(c for c in cleaned if c.name == name)


def ages(url: str, table: str, time: str) -> list[int]:
    """Ages in days of a table's rows, the oldest last."""
    now_us = NOW.timestamp() * 1e6
    days = {round((now_us - int(str(us))) // 86_400_000_000)
            for (us,) in rows(url, f"SELECT {time} FROM {table}")}  # fmt: skip
    return sorted(days)


def test_what_is_too_old_goes_and_the_rest_stays(storage, engine, record_url):
    keep_days(storage, range(18))
    RollUp(engine).run(budget_s=60.0)
    buckets = rows(record_url, "SELECT count(*) FROM rollups WHERE level_s = 300")
    cleaned = Retention(engine, Rules(share_max=0.3), sleep=lambda _: None).run()
    for name, time in (("decisions", "at_us"), ("outcomes", "decided_us")):
        assert 40 <= found(cleaned, name).deleted <= 80
        left = ages(record_url, name, time)
        assert left[-1] in EDGE and left[:13] == list(range(13))
    assert ages(record_url, "node_telemetry", "at_us")[-1] in EDGE
    assert found(cleaned, "events").deleted == 0
    assert found(cleaned, "rollups.10").deleted > 0
    assert rows(record_url, "SELECT count(*) FROM rollups WHERE level_s = 300") == buckets
    assert not any(c.refused or c.left for c in cleaned)
    again = Retention(engine, Rules(share_max=0.3)).run()
    assert sum(c.deleted for c in again) == 0


def test_series_of_deleted_days_stay(storage, engine):
    keep_days(storage, range(18))
    RollUp(engine).run(budget_s=60.0)
    start, end = NOW - 20 * DAY, NOW + DAY
    before = storage.store.series(start, end, step_s=3_600)
    assert sum(bucket.decisions for bucket in before) == 18 * 20
    Retention(engine, Rules(share_max=1.0), sleep=lambda _: None).run()
    RollUp(engine).run(budget_s=60.0)
    assert storage.store.series(start, end, step_s=3_600) == before


def test_more_than_a_fifth_is_refused_unless_forced(storage, engine, record_url):
    keep_days(storage, range(10, 20))
    RollUp(engine).run(budget_s=60.0)
    clean = Retention(engine, sleep=lambda _: None)
    refused = found(clean.run(), "decisions")
    assert refused.deleted == 0 and refused.left > 50
    assert "more than 20%" in refused.refused and "force" in refused.refused
    assert rows(record_url, "SELECT count(*) FROM decisions") == [(200,)]
    assert rows(record_url, "SELECT count(*) FROM horizons") == [(0,)]
    forced = found(clean.run(force=True), "decisions")
    assert forced.deleted == refused.left and not forced.refused


def test_slots_go_however_many_are_too_old(storage, engine, record_url):
    """After a week-end off, more than a fifth of them is; nobody reads them again."""
    old = [{"job": "j", "slot": n, "replica": "r", "at_us": 1_000_000} for n in range(50)]
    with engine.begin() as connection:
        connection.execute(insert(slots), old)
    cleaned = found(Retention(engine, sleep=lambda _: None).run(), "slots")
    assert (cleaned.deleted, cleaned.refused) == (50, "")


def test_counting_a_large_table_may_take_its_time(storage, record_url, monkeypatch):
    """As long as a lock on it is held here; other statements are cut off long before."""
    keep_days(storage, range(18))
    if record_url.startswith("sqlite"):
        pytest.skip("SQLite has no limit on a statement's time")
    monkeypatch.setattr(database, "_STATEMENT_MS", 200)
    holder, made = writer_engine(record_url), writer_engine(record_url, connections=2)
    let_go = threading.Event()

    def hold() -> None:
        with holder.begin() as connection:
            connection.execute(text("LOCK TABLE decisions IN ACCESS EXCLUSIVE MODE"))
            held.set()
            let_go.wait(1.0)

    held = threading.Event()
    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10.0)
    cleaned = Retention(made, Rules(share_max=0.0), sleep=lambda _: None).run(budget_s=0.0)
    assert "more than 0%" in found(cleaned, "decisions").refused
    let_go.set()
    thread.join()
    for engine in (holder, made):
        engine.dispose()


def test_what_is_left_for_good_is_said(storage, record_url, caplog):
    keep_days(storage, range(10, 20))
    engine = writer_engine(record_url)
    RollUp(engine).run(budget_s=60.0)
    engine.dispose()
    maintenance = Maintenance(record_url)
    for _ in range(2):
        maintenance._clean()
    maintenance.close()
    assert "more than 20%" in maintenance.upkeep().refused
    assert caplog.text.count("old records are not deleted: decisions: ") == 1


def test_a_clock_that_is_a_year_ahead_deletes_nothing(storage, engine, record_url, monkeypatch):
    keep_days(storage, range(3))
    RollUp(engine).run(budget_s=60.0)
    real = retention.now_us
    monkeypatch.setattr(retention, "now_us", lambda c: real(c) + 365 * 86_400_000_000)
    cleaned = Retention(engine).run()
    assert sum(c.deleted for c in cleaned) == 0
    assert all(c.refused for c in cleaned if c.left)
    assert rows(record_url, "SELECT count(*) FROM decisions") == [(60,)]


def test_decisions_wait_for_their_roll_ups(storage, engine):
    keep_days(storage, range(18))
    clean = Retention(engine, Rules(share_max=1.0), sleep=lambda _: None)
    assert found(clean.run(), "decisions").refused == "waits for roll-ups"
    RollUp(engine).run(budget_s=60.0)
    assert found(clean.run(), "decisions").deleted > 0


def test_a_run_that_ends_early_is_finished_by_the_next(storage, engine):
    keep_days(storage, range(18))
    RollUp(engine).run(budget_s=60.0)
    clean = Retention(engine, Rules(share_max=1.0), sleep=lambda _: None)
    clean._rows = 7
    first = clean.run(budget_s=0.0)
    assert sum(c.deleted for c in first) == 0 and found(first, "node_telemetry").left > 0
    step = found(clean.run(budget_s=0.02), "node_telemetry")
    rest = found(clean.run(), "node_telemetry")
    assert step.left == rest.deleted + rest.left and rest.left == 0


def test_a_partition_left_half_dropped_is_dropped_later(postgres_server):
    url = postgres_server.new_database()
    with open_storage(url) as storage:
        keep_days(storage, range(16, 19), per_day=1)
    engine = writer_engine(url, connections=2)
    RollUp(engine).run(budget_s=60.0)
    (oldest, *_) = sorted(name for (name,) in rows(url, "SELECT relname FROM pg_class"
        " WHERE relname LIKE 'decisions\\_2%' AND relkind = 'r'"))  # fmt: skip
    execute(url, f"ALTER TABLE decisions DETACH PARTITION {oldest}")
    Retention(engine).run(force=True)
    engine.dispose()
    left = rows(url, "SELECT relname FROM pg_class WHERE relname LIKE 'decisions\\_2%'")
    assert not [name for (name,) in left if partitions.is_partition(str(name))]


def test_replicas_come_and_go(storage, engine):
    one = Presence(engine, "one", host="h1", pid=1, version="1.0", address="http://h1")
    two = Presence(engine, "two", host="h2", pid=2, version="1.0")
    one.beat()
    two.beat()
    assert {(r.id, r.alive) for r in storage.store.replicas()} == {("one", True), ("two", True)}
    two.leave()
    execute(storage.store._url, "UPDATE replicas SET seen_us = seen_us - 20000000 WHERE id = 'one'")
    gone = {r.id: r for r in storage.store.replicas()}
    assert not gone["one"].alive and gone["one"].stopped_at is None, "silent for too long"
    assert not gone["two"].alive and gone["two"].stopped_at is not None
    one.beat()
    assert {r.id for r in storage.store.replicas() if r.alive} == {"one"}
    assert gone["one"].address == "http://h1"


def revision(number: int) -> RevisionRecord:
    return RevisionRecord(
        number=number, base=number - 1, at=NOW, author="a", reason="r", changes={}, values={}
    )


def test_a_new_revision_is_told_to_who_watches(storage, record_url):
    heard: list[frozenset[str]] = []
    told = threading.Event()

    def on_change(topics: frozenset[str]) -> None:
        heard.append(topics)
        told.set()

    watch = ChangeWatch(record_url, on_change)
    watch.start()
    for number in (1, 2, 3):
        told.clear()
        storage.store.add_revision(revision(number))
        assert told.wait(20.0)
        assert heard[-1] == {REVISIONS}
    assert watch.failures == 0
    watch.close()
    storage.store.add_revision(revision(4))
    assert len(heard) == 3, "closed"


def test_a_watch_survives_the_end_of_its_session(storage, record_url, postgres_server):
    if not record_url.startswith("postgresql"):
        pytest.skip("sessions are ended on a server")
    heard: list[frozenset[str]] = []
    watch = ChangeWatch(record_url, heard.append)
    watch.start()
    storage.store.add_revision(revision(1))
    wait_for(lambda: len(heard) == 1)
    postgres_server.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        f" WHERE datname = '{record_url.rpartition('/')[2]}'"
    )
    wait_for(lambda: watch.failures > 0)
    storage.store.add_revision(revision(2))
    wait_for(lambda: len(heard) >= 2)
    watch.close()


def test_maintenance_does_what_is_due_once(record_url):
    migrate.upgrade(record_url)
    with open_storage(record_url) as storage:
        keep_days(storage, range(2))
        pair = [Maintenance(record_url, replica=name) for name in ("one", "two")]
        for each in pair:
            each.tick()
        assert [each.upkeep().failures for each in pair] == [0, 0], [
            each.upkeep().last_error for each in pair
        ]
        assert sum(each.upkeep().rolled_buckets for each in pair) > 0
        assert {r.id for r in storage.store.replicas() if r.alive} == {"one", "two"}
        jobs = rows(record_url, "SELECT job, count(*) FROM slots GROUP BY job")
        assert {name for name, _ in jobs} == {
            "partitions", "rollups.10", "rollups.300", "retention"
        }  # fmt: skip
        for each in pair:
            each.close()


def test_maintenance_goes_on_when_the_database_is_back(tmp_path):
    blocked = tmp_path / "state"
    blocked.write_text("")
    url = f"sqlite:///{blocked / 'records.db'}"
    upkeep = Maintenance(url, replica="one")
    upkeep.start()
    wait_for(lambda: upkeep.upkeep().failures > 0)
    blocked.unlink()
    migrate.upgrade(url)
    wait_for(lambda: upkeep.upkeep().rolled_at_s > 0, 60.0)
    wait_for(lambda: rows(url, "SELECT count(*) FROM replicas") == [(1,)])
    wait_for(lambda: not upkeep.upkeep().last_error)  # of then, not of ever
    work = upkeep.upkeep().work
    assert work["alive"].runs > work["alive"].failures > 0 and work["roll_up"].runs > 0
    upkeep.close()
    assert rows(url, "SELECT count(*) FROM replicas WHERE stopped_us IS NOT NULL") == [(1,)]


def test_a_service_opens_everything_at_once(record_url):
    heard: list[frozenset[str]] = []
    keeping = Keeping(replica="here", version="1.2", address="http://here", on_change=heard.append)
    with open_storage(record_url, keeping=keeping) as opened:
        keep(opened, decision(1))
        opened.store.add_revision(revision(1))
        wait_for(lambda: heard == [{REVISIONS}])
        wait_for(lambda: opened.maintenance.upkeep().rolled_buckets > 0)
        (me,) = opened.store.replicas()
        assert (me.id, me.version, me.address, me.alive) == ("here", "1.2", "http://here", True)
    assert rows(record_url, "SELECT count(*) FROM replicas WHERE stopped_us IS NULL") == [(0,)]
    assert not [t for t in threading.enumerate() if t.name in ("maintenance", "change-watch")]

"""The database away, slow, or the process killed: what was recorded is there once, in the end."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from record_cases import decision, execute, put, rows, wait_for
from store_process import StoreProcess

from storage import migrate
from storage.store import open_storage

LOST_WITHIN_S = 5.0
"""The promise is one second; a busy machine may stop a process for longer than that. The soak
test holds the promise itself."""


@pytest.fixture
def server(postgres_server):
    """The shared server, running again afterwards."""
    yield postgres_server
    if not postgres_server.running:
        postgres_server.start()


def stored(url: str) -> set[int]:
    """Numbers of the decisions in the database, each with its outcome, none twice."""
    found = rows(url, "SELECT d.id FROM decisions d JOIN outcomes o ON o.decision_id = d.id")
    numbers = [int(str(id)[4:]) for (id,) in found]
    assert len(numbers) == len(set(numbers))
    return set(numbers)


def recover(url: str, spool_dir: Path) -> None:
    """A new start on the same folder, until the spool is empty."""
    with open_storage(url, spool_dir=spool_dir) as storage:
        wait_for(lambda: storage.sink.counters().spooled > 0 or not list(spool_dir.glob("*.spool")))
        assert storage.sink.flush(60.0)
    assert list(spool_dir.iterdir()) == []


def lost(child: StoreProcess, url: str, killed_s: float) -> float:
    """How long before the kill the oldest lost decision was handed over; 0: none was lost."""
    gone = child.handed.keys() - stored(url)
    return max((killed_s - child.handed[number] for number in gone), default=0.0)


def test_an_outage_loses_nothing(server, tmp_path):
    url = server.new_database()
    child = StoreProcess(url, tmp_path / "spool")
    child.wait_for_more(100)
    server.stop()
    child.wait_for_more(400)
    server.start()
    child.wait_for_more(100)
    assert child.stop() == 0
    recover(url, tmp_path / "spool")
    assert stored(url) == set(child.handed)


@pytest.mark.parametrize("phase", ["away", "flush", "normal"])
def test_a_killed_process_loses_the_last_moments_only(server, tmp_path, phase):
    url, spool = server.new_database(), tmp_path / "spool"
    migrate.upgrade(url)
    if phase == "flush":  # a backlog, left by a run that ended in order
        server.stop()
        before = StoreProcess(url, spool, per_s=2_000)
        before.wait_for_more(4_000)
        assert before.stop() == 0
        server.start()
    if phase == "away":
        server.stop()
    child = StoreProcess(url, spool, first=100_000)
    child.wait_for_more(random.Random(1).randrange(300, 500))
    killed_s = child.kill()
    if phase == "away":
        server.start()
    recover(url, spool)
    assert lost(child, url, killed_s) < LOST_WITHIN_S
    if phase == "flush":
        assert set(before.handed) <= stored(url)


def test_a_full_disk_during_an_outage_loses_nothing_that_fits_memory(server, tmp_path):
    url, spool = server.new_database(), tmp_path / "spool"
    child = StoreProcess(url, spool)
    child.wait_for_more(100)
    server.stop()
    child.wait_for_more(200)
    child.tell("full")
    child.wait_for_more(300)
    server.start()
    child.wait_for_more(200)
    child.tell("free")
    assert child.stop() == 0
    recover(url, spool)
    assert stored(url) == set(child.handed)


def test_a_damaged_tail_costs_the_damaged_records_only(server, tmp_path):
    url, spool = server.new_database(), tmp_path / "spool"
    migrate.upgrade(url)
    server.stop()
    child = StoreProcess(url, spool)
    child.wait_for_more(600)
    assert child.stop() == 0
    server.start()
    newest = max(spool.glob("*.spool"))
    data = newest.read_bytes()
    newest.write_bytes(data[:-900] + b"\xff" * 300)
    with open_storage(url, spool_dir=spool) as storage:
        wait_for(lambda: storage.sink.counters().spooled > 0)
        assert storage.sink.flush(60.0)
        assert storage.sink.counters().spool_damaged == 1
    missing = len(child.handed) - len(stored(url))
    assert 0 < missing <= 10


def test_a_slow_database_holds_nobody_and_loses_nothing(server, tmp_path):
    url, spool = server.new_database(), tmp_path / "spool"
    migrate.upgrade(url)
    execute(
        url,
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_sleep(1.5); RETURN NULL; END $$",
        "CREATE TRIGGER slow AFTER INSERT ON decisions FOR EACH STATEMENT EXECUTE FUNCTION slow()",
    )
    with open_storage(url, spool_dir=spool) as storage:
        for number in range(200):
            put(storage, decision(number))
        wait_for(lambda: storage.sink.counters().spooled > 0)
        assert storage.sink.counters().available
        assert storage.sink.flush(60.0)
        assert storage.store.counts().decisions == 200
        assert storage.sink.counters().dropped == 0

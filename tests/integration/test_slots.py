"""Each slot exactly once: with one process, with two, and with one killed, paused or cut off."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cable import Cable
from record_cases import execute, rows, wait_for
from sqlalchemy import text

from core.errors import StoreError
from storage import migrate
from storage.database import now_us, writer_engine
from storage.slots import Slots

CHILD = Path(__file__).with_name("slot_child.py")
STALL_S = 2.0


class Worker:
    """A `slot_child.py` process."""

    def __init__(self, url: str, replica: str, stall_s: float = STALL_S) -> None:
        self.said: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD), url, replica, "0.5", str(stall_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(line.strip())

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def next_line(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def stay_inside(self) -> int:
        """Make it stay in its next slot but the first; which one that is."""
        wait_for(lambda: bool(self.did()), 30.0)
        self.next_line()
        wait_for(lambda: any(line.startswith("in ") for line in self.said), 30.0)
        return int(next(line for line in self.said if line.startswith("in ")).split()[1])

    def did(self) -> list[int]:
        return [int(line.split()[1]) for line in self.said if line.startswith("did ")]

    def end(self) -> None:
        self._process.kill()
        self._process.wait(10.0)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    made: list[Worker] = []
    yield made
    for worker in made:
        worker.end()


@pytest.fixture
def url(postgres_server) -> str:
    url: str = postgres_server.new_database()
    migrate.upgrade(url)
    execute(url, "CREATE TABLE probe (slot BIGINT, replica TEXT)")
    return url


def done(url: str) -> list[int]:
    """Slots whose work is stored, in order; each once and none left out."""
    found = rows(
        url,
        "SELECT s.slot, p.slot FROM slots s FULL JOIN probe p ON p.slot = s.slot ORDER BY 1, 2",
    )
    assert all(taken == worked for taken, worked in found), found
    worked = [int(str(slot)) for slot, _ in found]
    assert worked == list(range(worked[0], worked[0] + len(worked))) if worked else True
    return worked


def test_slots_are_taken_once_and_in_order(database_url):
    migrate.upgrade(database_url)
    engine = writer_engine(database_url)
    seen: list[int] = []
    one, two = Slots(engine, "one"), Slots(engine, "two")

    def work(_connection: object, slot: int) -> None:
        seen.append(slot)

    with engine.begin() as connection:
        now = now_us(connection) // 1_000_000
    assert abs(now - time.time()) < 5
    hour = one.run_due("job", 3_600.0, work)
    assert hour == now // 3_600
    assert two.run_due("job", 3_600.0, work) is None, "done by the other"
    assert two.run_due("other", 3_600.0, work) == hour, "another job"
    assert seen == [hour, hour]
    execute(database_url, "UPDATE slots SET slot = slot - 3 WHERE job = 'job'")
    caught = [one.run_due("job", 3_600.0, work, catch_up=2) for _ in range(3)]
    assert caught == [hour - 1, hour, None], "older ones are past being worth it"
    execute(database_url, "UPDATE slots SET slot = slot + 8766 WHERE job = 'job'")
    assert one.run_due("job", 3_600.0, work) == hour, "rows of a clock that was a year ahead"
    engine.dispose()


def test_work_that_fails_leaves_the_slot_due(database_url):
    migrate.upgrade(database_url)
    engine = writer_engine(database_url)
    slots = Slots(engine, "one")

    def broken(connection, _slot: int) -> None:
        connection.execute(text("INSERT INTO nowhere VALUES (1)"))

    with pytest.raises(StoreError, match="slot of job not done"):
        slots.run_due("job", 3_600.0, broken)
    assert rows(database_url, "SELECT count(*) FROM slots") == [(0,)]
    assert slots.run_due("job", 3_600.0, lambda *_: None) is not None
    engine.dispose()


def test_two_processes_share_the_slots(url, workers):
    workers += [Worker(url, "one"), Worker(url, "two")]
    wait_for(lambda: len(rows(url, "SELECT 1 FROM probe")) >= 6, 30.0)
    assert len(done(url)) >= 6


@pytest.mark.parametrize("fault", ["kill", "pause", "cut"])
def test_a_lost_process_finishes_no_slot_and_the_other_takes_over(
    postgres_server, url, workers, fault
):
    cable = Cable(postgres_server.port)
    database = url.rpartition("/")[2]
    busy = Worker(postgres_server.url(database, port=cable.port), "busy")
    workers.append(busy)
    slot = busy.stay_inside()
    other = Worker(url, "other")
    workers.append(other)
    if fault == "kill":
        busy.signal(signal.SIGKILL)
    elif fault == "pause":
        busy.signal(signal.SIGSTOP)
    else:
        cable.cut.set()
    lost_s = time.monotonic()
    wait_for(lambda: slot in other.did(), 60.0)
    print(f"{fault}: taken over after {time.monotonic() - lost_s:.1f} s")
    busy.next_line() if fault != "kill" else None
    if fault == "pause":
        busy.signal(signal.SIGCONT)
    if fault == "cut":
        cable.cut.clear()
    if fault != "kill":
        wait_for(lambda: "lost" in busy.said, 60.0)
        assert slot not in busy.did()
    wait_for(lambda: len(other.did()) >= 3, 30.0)
    other.signal(signal.SIGSTOP)
    assert slot in done(url)
    assert rows(url, f"SELECT replica FROM probe WHERE slot = {slot}") == [("other",)]
    cable.close()


@pytest.mark.soak
@pytest.mark.timeout(200)
@pytest.mark.parametrize("fault", ["kill", "pause", "cut"])
def test_with_the_product_s_limits_take_over_is_within_fifteen_seconds(
    postgres_server, url, workers, fault
):
    cable = Cable(postgres_server.port)
    database = url.rpartition("/")[2]
    other = Worker(url, f"other-{fault}", stall_s=10.0)
    busy = Worker(postgres_server.url(database, port=cable.port), fault, stall_s=10.0)
    workers += [busy, other]
    wait_for(lambda: other.did() and busy.did(), 60.0)  # starting is no part of taking over
    slot = busy.stay_inside()
    if fault == "cut":
        cable.cut.set()
    else:
        busy.signal(signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
    lost_s = time.monotonic()
    wait_for(lambda: slot in other.did(), 60.0)
    took_s = time.monotonic() - lost_s
    print(f"\n{fault}: taken over after {took_s:.1f} s")
    assert took_s <= 15.0
    if fault == "pause":
        time.sleep(60.0 - took_s)
        busy.next_line()
        busy.signal(signal.SIGCONT)
        wait_for(lambda: "lost" in busy.said, 60.0)
    cable.close()
    other.signal(signal.SIGSTOP)
    assert slot in done(url)

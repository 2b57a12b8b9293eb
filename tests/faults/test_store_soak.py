"""Ten minutes without the database at 200 decisions a second, four ways. Run by `-m soak`.

CONDUCTOR_OUTAGE_S shortens the outage.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from record_cases import rows
from store_process import StoreProcess

from storage import migrate
from storage.store import open_storage

OUTAGE_S = float(os.environ.get("CONDUCTOR_OUTAGE_S", "600"))
PER_S = 200.0
LAST_S, DAMAGED = 1.0, 10
"""What may be lost: the last second where the process is killed, the decisions of a torn tail."""
START_S, GIVE_UP_S = 300.0, 600.0
"""A busy machine is waited for, so that the figures are printed whatever they are."""

pytestmark = [pytest.mark.soak, pytest.mark.timeout(OUTAGE_S * 2 + 1_200)]


def numbers(url: str) -> set[int]:
    """Decisions that are stored with their outcome, none twice."""
    found = rows(url, "SELECT d.id FROM decisions d JOIN outcomes o ON o.decision_id = d.id")
    kept = [int(str(id)[4:]) for (id,) in found]
    assert len(kept) == len(set(kept)), "none twice"
    return set(kept)


def recovered_s(url: str, wanted: set[int], since_s: float) -> float:
    """Seconds from `since_s` until every wanted decision is stored.

    Looks by counting, which hardly disturbs what it waits for; the rows are compared at the end.
    """
    tables = ("decisions", "outcomes")
    while True:
        counts = [rows(url, f"SELECT count(*) FROM {table}")[0][0] for table in tables]
        took_s = time.monotonic() - since_s
        if min(counts) >= len(wanted) and wanted <= numbers(url):
            return took_s
        assert took_s < GIVE_UP_S, f"{counts} stored of {len(wanted)}"
        time.sleep(0.5)


@pytest.mark.parametrize("fault", ["none", "kill", "full disk", "damaged tail"])
def test_ten_minutes_away(postgres_server, tmp_path: Path, fault: str):
    url, spool = postgres_server.new_database(), tmp_path / "spool"
    migrate.upgrade(url)
    try:
        with StoreProcess(url, spool, per_s=PER_S) as child:
            child.wait_for_more(200, START_S)
            postgres_server.stop()
            away(child, fault)
            size = sum(path.stat().st_size for path in spool.glob("*.spool"))
            postgres_server.start()
            wanted, took_s = back(url, spool, child, fault)
    finally:
        if not postgres_server.running:
            postgres_server.start()
    stored, handed = numbers(url), set(child.handed)
    print(
        f"\n{fault}: {len(handed):,} decisions handed over, {OUTAGE_S:.0f} s away, spool"
        f" {size / 2**20:.0f} MiB; all {2 * len(wanted):,} records that must not be lost stored"
        f" {took_s:.1f} s after the database's return, none twice; {len(handed - stored)} of the"
        f" other {len(handed - wanted)} decisions lost"
    )
    assert wanted <= stored <= handed, "nothing but what was handed over"
    assert took_s <= 60.0


def away(child: StoreProcess, fault: str) -> None:
    """Wait for as long as the outage lasts; the disk fills after a tenth of it."""
    if fault != "full disk":
        time.sleep(OUTAGE_S)
        return
    time.sleep(OUTAGE_S / 10)
    child.tell("full")
    time.sleep(OUTAGE_S * 0.9)


def back(url: str, spool: Path, child: StoreProcess, fault: str) -> tuple[set[int], float]:
    """What must be stored now that the database is back, and after how many seconds it was."""
    back_s, handed = time.monotonic(), set(child.handed)
    if fault not in ("kill", "damaged tail"):
        took_s = recovered_s(url, handed, back_s)
        if fault == "full disk":
            child.tell("free")
        assert child.stop() == 0, "no record dropped"
        with open_storage(url, spool_dir=spool):  # what an orderly end left on the disk
            recovered_s(url, set(child.handed), time.monotonic())
        return set(child.handed), took_s
    time.sleep(1.0 if fault == "kill" else 0.0)
    killed_s = child.kill()
    kept = {number for number, at_s in child.handed.items() if at_s < killed_s - LAST_S}
    if fault == "damaged tail":
        newest = max(spool.glob("*.spool"))
        newest.write_bytes(newest.read_bytes()[:-500] + b"\xff" * 100)
        kept -= set(sorted(kept)[-DAMAGED:])
    with open_storage(url, spool_dir=spool):
        return kept, recovered_s(url, kept, back_s)

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

pytestmark = [pytest.mark.soak, pytest.mark.timeout(OUTAGE_S * 2 + 600)]


def numbers(url: str) -> set[int]:
    found = rows(url, "SELECT d.id FROM decisions d JOIN outcomes o ON o.decision_id = d.id")
    kept = [int(str(id)[4:]) for (id,) in found]
    assert len(kept) == len(set(kept)), "none twice"
    return set(kept)


def recovered_s(url: str, wanted: set[int], since_s: float) -> float:
    """Seconds from `since_s` until every wanted decision is stored; at most 120."""
    while not wanted <= numbers(url):
        assert time.monotonic() - since_s < 120.0, len(wanted - numbers(url))
        time.sleep(0.5)
    return time.monotonic() - since_s


@pytest.mark.parametrize("fault", ["none", "kill", "full disk", "damaged tail"])
def test_ten_minutes_away(postgres_server, tmp_path: Path, fault: str):
    url, spool = postgres_server.new_database(), tmp_path / "spool"
    migrate.upgrade(url)
    child = StoreProcess(url, spool, per_s=PER_S)
    child.wait_for_more(200)
    postgres_server.stop()
    if fault == "full disk":
        time.sleep(OUTAGE_S / 10)
        child.tell("full")
        time.sleep(OUTAGE_S * 0.9)
    else:
        time.sleep(OUTAGE_S)
    size = sum(path.stat().st_size for path in spool.glob("*.spool"))
    postgres_server.start()
    back_s, handed = time.monotonic(), set(child.handed)
    if fault in ("kill", "damaged tail"):
        time.sleep(1.0 if fault == "kill" else 0.0)
        killed_s = child.kill()
        kept = {n for n, at in child.handed.items() if at < killed_s - 1.0}
        if fault == "damaged tail":
            newest = max(spool.glob("*.spool"))
            newest.write_bytes(newest.read_bytes()[:-500] + b"\xff" * 100)
            kept -= set(sorted(kept)[-10:])
        with open_storage(url, spool_dir=spool):
            took_s = recovered_s(url, kept, back_s)
    else:
        took_s = recovered_s(url, handed, back_s)
        assert child.stop() == 0
    print(
        f"\n{fault}: {len(handed):,} decisions in {OUTAGE_S:.0f} s away,"
        f" spool {size / 2**20:.0f} MiB, all stored {took_s:.1f} s after the database's return"
    )
    assert took_s <= 60.0

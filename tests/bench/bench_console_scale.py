"""A large fleet in the console: how long each page takes to be there, at first and later.

    python -m tests.bench console_scale     (make bench-console)

256 emulated nodes, a million blocks announced by their event streams, an hour of records, light
traffic, one reader in a real browser. "first" is the first time anybody opens the page, through
the navigation; "later" the worst of the following times. The overview opens with an empty browser
too, which nobody inspects: that includes loading Streamlit and the chart library.

CONDUCTOR_BENCH_NODES (256), CONDUCTOR_BENCH_BLOCKS (1000000), CONDUCTOR_BENCH_PER_S of the
recorded hour (50), CONDUCTOR_BENCH_RATE of requests a second (2), CONDUCTOR_BENCH_LATER (3),
CONDUCTOR_BENCH_RANGES ("5m 1h").
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page

from dashboard.navigation import present
from tests.bench.console_browser import chromium, go, new_page, open_page
from tests.bench.console_cold import open_cold
from tests.bench.console_records import an_hour
from tests.bench.console_world import World, indexed, machine, world

NODES = int(os.environ.get("CONDUCTOR_BENCH_NODES", "256"))
BLOCKS = int(os.environ.get("CONDUCTOR_BENCH_BLOCKS", "1000000"))
PER_S = float(os.environ.get("CONDUCTOR_BENCH_PER_S", "50"))
RATE = float(os.environ.get("CONDUCTOR_BENCH_RATE", "2"))
LATER = int(os.environ.get("CONDUCTOR_BENCH_LATER", "3"))
RANGES = os.environ.get("CONDUCTOR_BENCH_RANGES", "5m 1h").split()
FIRST_S, LATER_S = 3.0, 1.0


def main() -> None:
    """Build the scenario, then print a table a time range."""
    with tempfile.TemporaryDirectory(prefix="conductor-bench-") as folder:
        url = f"sqlite:///{Path(folder) / 'hour.db'}"
        began = time.perf_counter()
        stored = an_hour(url, nodes=NODES, per_s=PER_S)
        print(f"{stored:,} decisions stored in {time.perf_counter() - began:.0f} s", flush=True)
        with world(nodes=NODES, blocks=BLOCKS, database=url) as running:
            running.start_traffic(per_s=RATE)
            running.start_console()
            print(f"{NODES} nodes, {indexed(running):,} blocks; {machine()}", flush=True)
            look(running)


def look(running: World) -> None:
    """Every page in every range, each range in a browser of its own."""
    for chosen in RANGES:
        url = f"{running.console_url}/?range={chosen}"
        cold = open_cold(url)
        print(
            f"range {chosen}: the overview in an empty browser: {cold.took_s:.2f} s; its main "
            f"thread ran {cold.ran_s:.2f} s and waited {cold.waited_s:.2f} s for a core",
            flush=True,
        )
        with chromium() as browser:
            page = new_page(browser)
            open_page(page, url)
            walk(page)
        print(machine(), flush=True)


def walk(page: Page) -> None:
    """All pages in turn, several times."""
    times: dict[str, list[float]] = {}
    for _ in range(1 + LATER):
        for section, entries in present().items():
            for entry in reversed(entries):  # so that the overview is left before it is opened
                took = go(page, section, entry.title, entry.name)
                times.setdefault(entry.name, []).append(took)
    print(f"{'page':12}{'first s':>9}{'later s':>9}")
    for name, (first, *later) in times.items():
        missed = "  missed" if first > FIRST_S or max(later) > LATER_S else ""
        print(f"{name:12}{first:9.2f}{max(later):9.2f}{missed}", flush=True)


if __name__ == "__main__":
    main()

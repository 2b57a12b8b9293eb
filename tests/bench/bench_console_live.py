"""A page left open: does what the reader has set survive, and how busy is the browser.

    python -m tests.bench console_live     (make bench-console)

A refresh a second, under traffic. On each page with live charts every chart is zoomed into and
an entry of its legend is hidden; then each frame of a minute is looked at for charts without
content, and at the end zoom, legend and the charts' elements must be what they were. The main
thread's busy share is of another stretch without that look, by Chromium's own `TaskDuration`.
What a reader has set and blank frames decide (the exit code); the busy share is printed.

CONDUCTOR_BENCH_SECONDS (60) and CONDUCTOR_BENCH_BUSY_SECONDS (20) a page, CONDUCTOR_BENCH_RATE of
requests a second (10), CONDUCTOR_BENCH_NODES (8).
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass

from playwright.sync_api import CDPSession, Page

from tests.bench.console_browser import chromium, frames, new_page, open_page
from tests.bench.console_world import World, machine, world

SECONDS = float(os.environ.get("CONDUCTOR_BENCH_SECONDS", "60"))
BUSY_SECONDS = float(os.environ.get("CONDUCTOR_BENCH_BUSY_SECONDS", "20"))
RATE = float(os.environ.get("CONDUCTOR_BENCH_RATE", "10"))
NODES = int(os.environ.get("CONDUCTOR_BENCH_NODES", "8"))
REFRESH_S = "1"
BUSY_LIMIT = 0.15
WARM_S = 45.0
PAGES = ("/", "/nodes?node=node-002", "/cache?view=Replication", "/slo", "/flow", "/breaker")
_PAUSE_MS = 1_000


@dataclass(frozen=True, slots=True)
class Watched:
    """What a minute on one page showed."""

    charts: int
    frames: int
    blank: int
    draws: int
    changed: list[str]
    busy: float


def main() -> None:
    """A line a page; ends with 1 where something the reader had set was lost."""
    with world(nodes=NODES) as running:
        running.start_traffic(per_s=RATE)
        running.start_console(CONDUCTOR_REFRESH_S=REFRESH_S)
        time.sleep(WARM_S)
        print(f"a refresh every {REFRESH_S} s, {SECONDS:g} s a page; {machine()}", flush=True)
        print(
            f"{'page':26}{'charts':>7}{'draws':>7}{'frames':>8}{'blank':>7}{'busy %':>8}  changed"
        )
        kept = [_page(running, path) for path in PAGES]
        print(machine())
    sys.exit(0 if all(kept) else 1)


def _page(running: World, path: str) -> bool:
    with chromium() as browser:
        page = new_page(browser)
        open_page(page, running.console_url + path)
        found = watch(page, SECONDS)
    told = ", ".join(found.changed) or "nothing"
    over = " (over)" if found.busy > BUSY_LIMIT else ""
    print(
        f"{path:26}{found.charts:7}{found.draws:7}{found.frames:8}{found.blank:7}"
        f"{100 * found.busy:8.1f}  {told}{over}", flush=True,
    )  # fmt: skip
    return not found.changed and not found.blank and found.draws > 0


def watch(page: Page, seconds: float) -> Watched:
    """Set every chart, then leave the page alone for so long."""
    page.wait_for_timeout(_PAUSE_MS)
    frames.set_every_chart(page)
    frames.watch_frames(page)
    before = frames.chart_states(page)
    page.wait_for_timeout(seconds * 1e3)
    after = frames.chart_states(page)
    count, blank, draws = frames.frames_seen(page)
    frames.stop_watching(page)
    changed = [key for key, state in before.items() if after.get(key) != state]
    return Watched(len(before), count, blank, draws, changed, busy_share(page))


def busy_share(page: Page) -> float:
    """Share of a stretch of time in which the page's main thread ran tasks, by its CPU time: what
    else the machine does is left out."""
    cdp = page.context.new_cdp_session(page)
    cdp.send("Performance.enable", {"timeDomain": "threadTicks"})
    began, from_s = time.monotonic(), task_s(cdp)
    page.wait_for_timeout(BUSY_SECONDS * 1e3)
    share = (task_s(cdp) - from_s) / (time.monotonic() - began)
    cdp.detach()
    return share


def task_s(cdp: CDPSession) -> float:
    """CPU seconds the main thread has spent in tasks."""
    metrics = cdp.send("Performance.getMetrics")["metrics"]
    return float(next(m["value"] for m in metrics if m["name"] == "TaskDuration"))


if __name__ == "__main__":
    main()

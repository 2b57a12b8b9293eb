"""Makes pictures of every page: `python -m tests.console.screenshots` with Chromium installed.

A seeded workload over six emulated engines, so that the pictures differ between runs in their
times only. The README's pictures go to `dashboard/screenshots`, all pages in two widths to
`build/screenshots`, for whoever looks whether they are fit to be seen.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).parent
OUT = HERE.parents[1] / "dashboard" / "screenshots"
EVERY = HERE.parents[1] / "build" / "screenshots"
WIDTHS_PX = (1440, 900)
WARM_S = 150.0
RATE_PER_S = 5.0
SPEED = 0.2
"""Slow engines, so that a modest workload already loads them."""
ARGS = ["--no-sandbox", "--disable-gpu", "--force-color-profile=srgb"]


def main() -> None:
    """Start everything, wait until the charts have something to show, take the pictures."""
    sys.path.insert(0, str(HERE))
    from stack import Stack

    roles = ("prefill", "prefill", "prefill", "decode", "decode", "both")
    OUT.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        Stack(Path(folder), roles=roles, speed=SPEED) as stack,
    ):
        stack.start_workload(rate=RATE_PER_S, seed=7)
        time.sleep(WARM_S)
        _take(stack, OUT)


def _take(stack: object, out: Path) -> None:
    url, get = stack.console_url, stack.get  # type: ignore[attr-defined]
    rows = [r for r in get("/decisions", limit=200)["rows"] if _finished(r)]
    split = [r for r in rows if r["prefill_node"] != r["decode_node"]] or rows
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium, args=ARGS)
        page = browser.new_page(viewport={"width": 1440, "height": 1130})
        _shoot(page, url + "/", 4, out / "overview.png")
        page.set_viewport_size({"width": 1440, "height": 1700})
        _shoot(page, f"{url}/decisions?decision={split[0]['id']}", 3, out / "decision.png")
        page.set_viewport_size({"width": 1440, "height": 1100})
        _shoot(page, f"{url}/cache", 1, out / "cache.png")
        _every_page(page, url)
        browser.close()


def _every_page(page: Page, url: str) -> None:
    """All pages in both widths."""
    from dashboard.navigation import address, present

    EVERY.mkdir(parents=True, exist_ok=True)
    for width in WIDTHS_PX:
        page.set_viewport_size({"width": width, "height": 1600})
        for entry in (e for entries in present().values() for e in entries):
            path = EVERY / f"{entry.name}-{width}.png"
            _shoot(page, f"{url}{address(entry.name)}?range=15m", 0, path)


def _finished(row: dict[str, Any]) -> bool:
    return bool(row["outcome"] and row["outcome"]["kind"] == "ok" and row["match_tokens"])


def _shoot(page: Page, url: str, plots: int, path: Path) -> None:
    """A picture once the frame stands, `plots` charts at least are drawn, and none is missing."""
    page.goto(url)
    drawn = f"""() => document.querySelector('.cd-strip')
        && document.querySelectorAll('.cd-plot.js-plotly-plot').length >= {plots}
        && !document.querySelector('[data-testid=stSkeleton], .cd-plot:not(.js-plotly-plot)')"""
    page.wait_for_function(drawn, polling=200, timeout=60_000)
    page.wait_for_timeout(2500)
    page.screenshot(path=path)


if __name__ == "__main__":
    main()

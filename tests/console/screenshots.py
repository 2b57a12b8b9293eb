"""Makes the README's pictures: `python -m tests.console.screenshots` with Chromium installed.

A seeded workload over six emulated engines, so that the pictures differ between runs in their
times only.
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
        browser.close()


def _finished(row: dict[str, Any]) -> bool:
    return bool(row["outcome"] and row["outcome"]["kind"] == "ok" and row["match_tokens"])


def _shoot(page: Page, url: str, plots: int, path: Path) -> None:
    page.goto(url)
    drawn = f"() => document.querySelectorAll('.cd-plot.js-plotly-plot').length >= {plots}"
    page.wait_for_function(drawn, polling=200, timeout=60_000)
    page.wait_for_timeout(1500)
    page.screenshot(path=path)


if __name__ == "__main__":
    main()

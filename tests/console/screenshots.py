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
from typing import TYPE_CHECKING, Any

import httpx
from playwright.sync_api import Page, sync_playwright

if TYPE_CHECKING:
    from stack import Stack

HERE = Path(__file__).parent
OUT = HERE.parents[1] / "dashboard" / "screenshots"
EVERY = HERE.parents[1] / "build" / "screenshots"
WIDTHS_PX = (1440, 900)
WARM_S = 180.0
RATE_PER_S = 5.0
SPEED = 0.2
"""Slow engines, so that a modest workload already loads them."""
KV_TOKENS = 60_000
"""Small caches, for the same reason."""
PLOTS = {
    "overview": 4, "cache": 1, "slo": 4, "flow": 1, "breaker": 1, "changes": 1, "lab": 1,
    "decision": 3, "node": 1, "revision": 1,
}  # fmt: skip
"""Charts that a picture must show at least."""
_WHY = {"reason": "new driver", "author": "ada"}
ACTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/nodes/prefill-3/cordon", _WHY),
    ("/nodes/prefill-3/uncordon", {"reason": "driver is in", "author": "ada"}),
    ("/nodes/both-6/breaker", {"action": "trip", "seconds": 5, "reason": "a drill"}),
    ("/users", {"name": "ada", "role": "operator", "password": "correct horse battery 9"}),
    ("/users", {"name": "bo", "role": "viewer", "password": "correct horse battery 9"}),
    ("/keys", {"name": "batch", "tenant": "search", "requests_per_s": 20, "reason": "nightly"}),
    (
        "/views",
        {"name": "Missed limits", "page": "decisions", "shared": True,
         "params": {"range": "1h", "slo_missed": "true"}},
    ),
    (
        "/lab/jobs",
        {"requests": 300, "arms": [{"policy": "round_robin"}, {"policy": "least_loaded"}],
         "policy": "linear", "axes": {"linear.alpha": [0.2, 0.4, 0.6, 0.8]},
         "reason": "which alpha"},
    ),
)  # fmt: skip
ARGS = ["--no-sandbox", "--disable-gpu", "--force-color-profile=srgb"]


def main() -> None:
    """Start everything, wait until the charts have something to show, take the pictures."""
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    from stack import Stack

    roles = ("prefill", "prefill", "prefill", "decode", "decode", "both")
    OUT.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        Stack(Path(folder), roles=roles, speed=SPEED, kv_tokens=KV_TOKENS) as stack,
    ):
        stack.start_workload(rate=RATE_PER_S, seed=7)
        until_s = time.monotonic() + WARM_S
        time.sleep(WARM_S / 2)
        _acts(stack)
        time.sleep(max(until_s - time.monotonic(), 0))
        _take(stack)


def _acts(stack: Stack) -> None:
    """What people did meanwhile, so that no page is empty."""
    for path, body in ACTS:
        url = f"{stack.url}/admin/v1{path}"
        answer = httpx.post(url, json=body, trust_env=False, timeout=30)
        assert answer.is_success, answer.text
    base = stack.get("/tunables")["revision"]
    changes = {"hotspot.requests_min": 30, "admission.ttft_slack": 1.2}
    body = {"base": base, "changes": changes, "reason": "calmer detector", "author": "ada"}
    url = f"{stack.url}/admin/v1/revisions"
    assert httpx.post(url, json=body, trust_env=False, timeout=30).is_success
    while not any(job["state"] == "done" for job in stack.get("/lab/jobs")["jobs"]):
        time.sleep(1)


def _take(stack: Stack) -> None:
    url = stack.console_url
    rows = [r for r in stack.get("/decisions", limit=200)["rows"] if _finished(r)]
    split = [r for r in rows if r["prefill_node"] != r["decode_node"]] or rows
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium, args=ARGS)
        page = browser.new_page(viewport={"width": 1440, "height": 1130})
        _shoot(page, url + "/", 4, OUT / "overview.png", crop=False)
        page.set_viewport_size({"width": 1440, "height": 3200})
        opened = f"{url}/decisions?decision={split[0]['id']}"
        _shoot(page, opened, 3, OUT / "decision.png", below="hr", height=1250)
        page.set_viewport_size({"width": 1440, "height": 1100})
        _shoot(page, f"{url}/cache", 1, OUT / "cache.png", crop=False)
        _every_page(page, url, opened)
        browser.close()


def _every_page(page: Page, url: str, opened: str) -> None:
    """All pages in both widths, and what opens from them."""
    from dashboard.navigation import address, present

    EVERY.mkdir(parents=True, exist_ok=True)
    names = [entry.name for entries in present().values() for entry in entries]
    shown = {name: f"{url}{address(name)}?range=15m" for name in names} | {
        "decision": opened,
        "node": f"{url}/nodes?range=15m&node=prefill-1",
        "hot": f"{url}/cache?view=Hot+prefixes",
        "revision": f"{url}/tuning?group=linear&draft=linear.alpha:0.7&revision=2",
    }
    for width in WIDTHS_PX:
        page.set_viewport_size({"width": width, "height": 3200})
        for name, where in shown.items():
            _shoot(page, where, PLOTS.get(name, 0), EVERY / f"{name}-{width}.png")


def _finished(row: dict[str, Any]) -> bool:
    return bool(row["outcome"] and row["outcome"]["kind"] == "ok" and row["match_tokens"])


def _shoot(
    page: Page, url: str, plots: int, path: Path, *, crop: bool = True, below: str = "",
    height: int = 3200,
) -> None:  # fmt: skip
    """A picture once the frame stands, `plots` charts at least are drawn, and none is missing.

    With `crop` it ends where the page's content does; `below` names an element to begin under.
    """
    page.goto(url)
    drawn = f"""() => document.querySelector('.cd-strip')
        && document.querySelectorAll('.cd-plot.js-plotly-plot').length >= {plots}
        && !document.querySelector('[data-testid=stSkeleton], .cd-plot:not(.js-plotly-plot)')"""
    page.wait_for_function(drawn, polling=200, timeout=120_000)
    page.wait_for_timeout(2500)
    size = page.viewport_size
    assert size is not None
    if not crop:
        page.screenshot(path=path)
        return
    ends = "() => Math.max(...[...document.querySelectorAll('[data-testid=stElementContainer]')]"
    end = page.evaluate(ends + ".map(e => e.getBoundingClientRect().bottom)) + 24")
    start = 0.0
    if below:
        box = page.locator(below).first.bounding_box()
        assert box is not None
        start = box["y"]
    tall = min(end, size["height"]) - start
    clip = {"x": 0, "y": start, "width": size["width"], "height": min(tall, height)}
    page.screenshot(path=path, clip=clip)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()

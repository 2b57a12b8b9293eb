"""A real Chromium for the console's benchmarks, and when a page of the console is there."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from tests.bench.elsewhere import LIKE_CONSOLE

sys.path.insert(0, str(Path(__file__).parents[1] / "console"))

import frames
from watching import ARGS

__all__ = ["ARGS", "browser_path", "chromium", "frames", "go", "new_page", "open_page"]
WAIT_MS = 30_000
THERE = """() => {
  const app = document.querySelector('[data-testid=stApp]');
  const all = (what, test) => [...document.querySelectorAll(what)].every(test);
  return !!app && app.dataset.testScriptState !== 'running'
    && !!document.querySelector('.cd-strip') && !document.querySelector('[data-testid=stSkeleton]')
    && all('.cd-plot', e => !e.checkVisibility() || e.classList.contains('js-plotly-plot'))
    && all('[data-testid=stCaptionContainer]', e => !e.textContent.startsWith('Reading the '))
    && all('[data-testid=stDataFrame]',
      e => !e.checkVisibility() || e.querySelector('canvas'));
}"""
"""The frame, every chart and every table in sight are drawn, nothing says that it is still being
read, and the script has run to its end."""
_CLICKED = """page => {
  const there = THERE;
  window.cdArrived = new Promise(done => document.addEventListener('click', () => {
    const began = performance.now();
    const look = () => {
      const strip = document.querySelector('.cd-strip');
      if (strip && strip.dataset.page === page && there()) done(performance.now() - began);
      else requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
  }, { once: true, capture: true }));
}""".replace("THERE", THERE)
"""A page that was quick may never have been seen to run: its frame names it."""


def browser_path() -> str:
    """The installed browser; CHROMIUM names another."""
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chrome")
    return found or sys.exit("no Chromium found: install one, or name it in CHROMIUM")


@contextmanager
def chromium() -> Iterator[Browser]:
    """The installed browser, driven by a test library."""
    found = browser_path()
    with tempfile.TemporaryDirectory(prefix="conductor-bench-") as folder, sync_playwright() as p:
        script = Path(folder) / "chromium"
        script.write_text(f'#!/bin/sh\nexec {shlex.join((*LIKE_CONSOLE, found))} "$@"\n')
        script.chmod(0o700)
        launched = p.chromium.launch(executable_path=script, args=ARGS)
        yield launched
        launched.close()


def new_page(browser: Browser) -> Page:
    """A page with empty caches."""
    page = browser.new_context(viewport={"width": 1440, "height": 1300}).new_page()
    page.set_default_timeout(WAIT_MS)
    return page


def open_page(page: Page, url: str) -> None:
    """Open an address and wait until the page is there."""
    page.goto(url, wait_until="commit")
    page.wait_for_function(THERE, polling="raf")


def go(page: Page, section: str, title: str, name: str) -> float:
    """Follow the navigation to a page: seconds from the click until the page is there."""
    if section:
        page.get_by_test_id("stTopNavSection").filter(has_text=section).click()
    link = page.locator("a").get_by_text(title, exact=True)
    link.wait_for()
    page.evaluate(_CLICKED, name)
    link.click()
    return float(page.evaluate("window.cdArrived")) / 1e3

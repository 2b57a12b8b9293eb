"""A browser's page under watch: whatever goes wrong on it is noted; steps that tests share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from playwright.sync_api import Browser, Page, Response, expect

ARGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip
WAIT_MS = 60_000
LOCAL = re.compile(r"^(http://127\.0\.0\.1[:/]|ws://127\.0\.0\.1:|data:|blob:)")
_DRAWN = """() => [...document.querySelectorAll('.cd-plot')].every(
    e => e.classList.contains('js-plotly-plot'))"""
expect.set_options(timeout=WAIT_MS)


class Watched:
    """A page, and everything that went wrong on it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.foreign: list[str] = []
        self.failed: list[str] = []
        self.errors: list[str] = []
        page.on("request", lambda r: LOCAL.match(r.url) or self.foreign.append(r.url))
        page.on("response", self._response)
        page.on("pageerror", lambda e: self.errors.append(str(e)))
        page.on("console", lambda m: m.type == "error" and self.errors.append(m.text))

    def _response(self, r: Response) -> None:
        if r.status >= 400:
            self.failed.append(f"{r.status} {r.url}")

    def check(self) -> None:
        """Nothing foreign, nothing failed, no error, no exception box."""
        assert self.foreign == []
        assert self.failed == []  # names the address, which the error does not
        assert self.errors == []
        expect(self.page.get_by_test_id("stException")).to_have_count(0)


def watch(
    browser: Browser, scheme: str, cookies: Sequence[dict[str, str]] = ()
) -> Iterator[Watched]:
    """A page in a context of its own, in the light or dark scheme."""
    context = browser.new_context(
        viewport={"width": 1440, "height": 1300},
        color_scheme=scheme,  # type: ignore[arg-type]
        timezone_id="Asia/Tokyo",
    )
    context.add_cookies(list(cookies))  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    yield Watched(page)
    context.close()


def plots(page: Page, count: int) -> None:
    """Wait until so many charts are drawn."""
    expect(page.locator(".cd-plot.js-plotly-plot")).to_have_count(count)


def settled(page: Page) -> None:
    """Wait until the page is there: its frame, no skeleton, every chart drawn."""
    expect(page.locator(".cd-strip").first).to_be_visible()
    expect(page.get_by_test_id("stSkeleton")).to_have_count(0)
    expect(page.locator("[data-test-script-state='running']")).to_have_count(0)
    page.wait_for_function(_DRAWN, polling=200)


def go(page: Page, section: str, title: str) -> None:
    """Open a page through the navigation, as a reader does."""
    if section:
        page.get_by_test_id("stTopNavSection").filter(has_text=section).click()
    page.locator("a").get_by_text(title, exact=True).click()

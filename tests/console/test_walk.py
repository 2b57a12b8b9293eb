"""A walk through every page in a real browser, in each condition an operator may meet.

One browser and one world for all but the empty installation. Roles come by cookie; the full
accessibility check runs where pages are fullest (light) and where they are empty, and the rules
that depend on colours in the dark.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import httpx
import pytest
from axe import CONTRAST, script, violations
from playwright.sync_api import Browser, Page, expect
from stack import Stack
from watching import Watched, go, plots, settled, watch

from dashboard.navigation import SECTIONS, address, present
from dashboard.session import COOKIE

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]
WIDTH_PX = 1440


@pytest.fixture
def seen_as(browser: Browser, stack: Stack) -> Iterator[Callable[[str, str], Watched]]:
    """`seen_as(role, scheme)` opens the console for somebody of that role."""
    open_: list[Iterator[Watched]] = []

    def opened(role: str, scheme: str) -> Watched:
        body = {"name": f"a-{role}", "role": role, "reason": "walks"}
        made = httpx.post(f"{stack.url}/admin/v1/tokens", json=body, trust_env=False).json()
        cookie = {"name": COOKIE, "value": made["token"], "url": stack.console_url}
        pages = watch(browser, scheme, [cookie])
        open_.append(pages)
        page = next(pages)
        page.page.goto(stack.console_url)
        settled(page.page)
        expect(page.page.get_by_text(f"a-{role} · {role}")).to_be_visible()
        return page

    yield opened
    for pages in open_:
        next(pages, None)


def walk(
    watched: Watched, *, rules: Sequence[str] | None = (), each: Callable[[str], None] = id
) -> None:
    """Every page by the navigation; axe with `rules` (empty: all; None: not at all)."""
    page, found = watched.page, list[str]()
    source = "" if rules is None else script()
    for section, entries in present().items():
        for entry in entries:
            go(page, section, entry.title)
            expect(page).to_have_url(re.compile(re.escape(address(entry.name)) + r"(\?|$)"))
            settled(page)
            assert page.locator("[data-testid=stMain]").evaluate("e => e.scrollWidth") <= WIDTH_PX
            each(entry.name)
            if rules is not None:
                found += [f"{entry.name}: {v}" for v in violations(page, source, rules)]
            watched.check()
    assert not found, "\n".join(found)


@contextmanager
def traffic(stack: Stack) -> Iterator[None]:
    """A little of it, until the end."""
    over = threading.Event()

    def send() -> None:
        while not over.wait(0.3):
            stack.send(1, base=50_000, tenant="walkers")

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        over.set()
        sender.join()


def test_an_administrator_walks_under_load(
    seen_as: Callable[[str, str], Watched], stack: Stack
) -> None:
    assert present().keys() == SECTIONS.keys()
    watched = seen_as("admin", "light")
    page = watched.page
    plots(page, 4)
    expect(page.locator(".cd-tile")).to_have_count(6)
    with traffic(stack):
        walk(watched)
    expect(page.get_by_text("New user …")).to_be_enabled()  # the last page: Settings


def test_a_viewer_walks_in_the_dark_while_a_node_is_dead(
    seen_as: Callable[[str, str], Watched], stack: Stack
) -> None:
    watched = seen_as("viewer", "dark")
    page = watched.page
    decode = stack.engines["decode-2"].process
    decode.send_signal(signal.SIGSTOP)
    try:
        expect(page.get_by_text("dead: decode-2")).to_be_visible()
        expect(page.get_by_text("1 not available")).to_be_visible()
        walk(watched, rules=CONTRAST, each=lambda name: _cannot_act(page, name))
    finally:
        decode.send_signal(signal.SIGCONT)
    go(page, "", "Overview")
    expect(page.get_by_text("dead: decode-2")).to_have_count(0)
    watched.check()


def _cannot_act(page: Page, name: str) -> None:
    acts = {"breaker": "Trip …", "lab": "Run 4 runs", "tuning": "Review and apply"}
    if name in acts:
        button = page.get_by_role("button", name=acts[name])
        assert name == "tuning" or button.count()
        for i in range(button.count()):
            expect(button.nth(i)).to_be_disabled()
    if name == "settings":
        expect(page.get_by_text("need the role admin")).to_be_visible()


def test_an_operator_walks_while_the_service_stops_and_comes_back(
    seen_as: Callable[[str, str], Watched], stack: Stack
) -> None:
    watched = seen_as("operator", "light")
    page, down = watched.page, "The service does not answer"
    plots(page, 4)
    stack.stop_service()
    try:
        expect(page.get_by_text(down)).to_be_visible()
        expect(page.get_by_text("What you see is from")).to_be_visible()
        plots(page, 4)  # the last data stays
        assert not violations(page, script())
        walk(
            watched, rules=None, each=lambda _: expect(page.get_by_text(down).first).to_be_visible()
        )
    finally:
        stack.start_service()
    go(page, "", "Overview")
    expect(page.get_by_text(down)).to_have_count(0)
    expect(page.get_by_text("No request so far")).to_be_visible()
    stack.send(2, base=9000)
    expect(page.get_by_text("No request so far")).to_have_count(0)
    walk(watched, rules=None)


def test_an_empty_installation_says_on_every_page_what_is_missing(
    browser: Browser, empty_stack: Stack
) -> None:
    for watched in watch(browser, "dark"):
        page = watched.page
        page.goto(empty_stack.console_url)
        settled(page)
        expect(page.get_by_text("No node is registered").first).to_be_visible()
        walk(watched)

"""The fleet's pages in a real browser: acts end to end."""

from __future__ import annotations

import re
from itertools import count

import pytest
from playwright.sync_api import Locator, Page, expect
from stack import Stack
from test_control_pages import act, until
from watching import Watched, go, plots

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]
TABS_MAX = 60
_RING = """e => {
    const s = getComputedStyle(e);
    const outlined = s.outlineStyle !== 'none' && s.outlineWidth !== '0px';
    return e.tagName === 'INPUT' || outlined || s.boxShadow !== 'none';
}"""
"""Whether an element that has the focus is drawn with a ring; a field has its caret."""
ROW_CHECKBOX = {"x": 17, "y": 51}


@pytest.fixture(scope="module")
def hot(stack: Stack) -> str:
    """Key of the hottest prefix, which the index lists."""
    stack.send(8, base=30_000, tenant="walkers")

    def found() -> list[str]:
        prefixes = stack.get("/cache/hot", limit=1)["prefixes"]
        return [p["key"] for p in prefixes if p["holders"]]

    until(found)
    return found()[0]


def test_a_node_is_drained_and_taken_back(plain: Watched, stack: Stack) -> None:
    page = plain.page
    page.goto(f"{stack.console_url}/nodes?node=both-3")
    _act(page, "Drain", "both-3", "new driver")
    expect(page.get_by_text("Done: drain both-3")).to_be_visible()
    expect(page.get_by_text("Drained by")).to_be_visible()
    drain = stack.get("/nodes/both-3")["drain"]
    assert (drain["state"], drain["reason"]) == ("drained", "new driver")
    assert not stack.get("/nodes/both-3")["eligible"]
    _act_by_keys(page, "Undrain", "both-3", "driver is in")
    expect(page.get_by_text("Done: undrain both-3")).to_be_visible()
    assert stack.get("/nodes/both-3")["eligible"]
    plain.check()


def _act(page: Page, name: str, node: str, reason: str) -> None:
    page.get_by_role("button", name=f"{name} …", exact=True).click()
    dialog = page.get_by_role("dialog")
    button = dialog.get_by_role("button", name=f"{name} {node}")
    dialog.get_by_label("Reason (required)").fill(reason)
    button.click()
    expect(dialog).to_have_count(0)


def _act_by_keys(page: Page, name: str, node: str, reason: str) -> None:
    """The same with the keyboard alone; what is missing is said on the way."""
    _tab_to(page.get_by_role("button", name=f"{name} …", exact=True))
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    do = dialog.get_by_role("button", name=f"{name} {node}")
    _tab_to(do)
    page.keyboard.press("Space")
    expect(dialog.get_by_role("alert")).to_contain_text("Reason: say why")
    _tab_to(dialog.get_by_label("Reason (required)"))
    page.keyboard.type(reason)
    page.keyboard.press("Tab")
    expect(do).to_be_focused()
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)


def _tab_to(target: Locator) -> None:
    """Tab until the element has the focus, which is to be seen there."""
    expect(target).to_be_visible()
    for _ in range(TABS_MAX):
        target.page.keyboard.press("Tab")
        if target.evaluate("e => e === document.activeElement"):
            break
    expect(target).to_be_focused()
    assert target.evaluate(_RING), "the focus is not visible"


def test_a_hot_prefix_is_followed_to_its_replicas(plain: Watched, stack: Stack, hot: str) -> None:
    page = plain.page
    page.goto(f"{stack.console_url}/cache?view=Hot+prefixes")
    tables = page.get_by_test_id("stDataFrame")
    expect(tables.first).to_be_visible()
    page.wait_for_timeout(1000)
    tables.first.click(position=ROW_CHECKBOX)
    expect(page).to_have_url(re.compile(r"prefix=[0-9a-f]{16}"))
    key = page.url.rpartition("prefix=")[2][:16]
    expect(page.get_by_role("heading", name="Its replicas").first).to_be_visible()
    expect(tables).to_have_count(2)
    page.wait_for_timeout(1000)
    tables.nth(1).click(position=ROW_CHECKBOX)
    expect(page).to_have_url(re.compile(r"/nodes\?.*node="))
    node = page.url.rpartition("node=")[2].partition("&")[0]
    holders = {h["node"] for h in stack.get(f"/cache/prefixes/{key}")["holders"]}
    assert node in holders
    expect(page.get_by_text("Hottest prefixes it holds")).to_be_visible()
    go(page, "", "Nodes")  # from one of them to all, though it is the page that is open
    expect(page.get_by_text("those that take no requests first")).to_be_visible()
    expect(page).to_have_url(re.compile(r"/nodes$"))
    expect(page).to_have_title("Nodes · Conductor")
    plain.check()


def test_a_click_in_the_tree_goes_deeper_and_the_breadcrumb_back(
    plain: Watched, stack: Stack, hot: str
) -> None:
    page = plain.page
    page.goto(f"{stack.console_url}/cache")
    plots(page, 1)
    page.locator(".st-key-tree .slice").nth(1).click(force=True)
    expect(page).to_have_url(re.compile(r"trail=[0-9a-f]{16}"))
    expect(page.get_by_role("button", name="All prompts")).to_be_enabled()
    page.get_by_role("button", name="All prompts").click()
    expect(page).not_to_have_url(re.compile("trail="))
    plain.check()


def test_a_pinned_window_stays_in_the_address_from_page_to_page(
    plain: Watched, stack: Stack
) -> None:
    page = plain.page
    page.goto(stack.console_url)
    page.get_by_role("button", name="Pin").click()
    fixed = re.compile(r"from=[^&]+.*range=custom|range=custom.*from=[^&]+")
    expect(page).to_have_url(fixed)
    go(page, "", "SLO")
    expect(page).to_have_url(re.compile("/slo"))
    expect(page).to_have_url(fixed)
    page.reload()
    expect(page.get_by_role("group", name="From (UTC)")).to_be_visible()
    expect(page).to_have_url(fixed)
    plain.check()


def test_a_copy_that_hangs_is_given_up_and_one_that_ends_is_followed_to_the_replica(
    plain: Watched, stack: Stack
) -> None:
    page = plain.page
    live = stack.get("/tunables")["revision"]
    switched = {"migration.enabled": True, "migration.dry_run": True}  # by hand alone
    act(stack, "/revisions", changes=switched, base=live, reason="prompts are remembered")
    key, target = _copyable(stack)
    try:
        page.goto(f"{stack.console_url}/cache?view=Hot+prefixes&prefix={key}")
        stack.fault(target, hang="engine")
        _copy(page, target, "it will hang")
        page.get_by_text("Migrations", exact=True).click()
        tables = page.get_by_test_id("stDataFrame")
        expect(page.get_by_role("button", name="Give up …")).to_be_disabled()
        page.wait_for_timeout(1000)
        tables.first.click(position=ROW_CHECKBOX)
        page.get_by_role("button", name="Give up …", disabled=False).click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Reason (required)").fill("it hangs")
        dialog.get_by_role("button", name="Give it up").click()
        expect(page.get_by_text("The migration is given up")).to_be_visible()
        stack.fault(target, hang="")
        page.wait_for_timeout(1000)
        tables.last.click(position=ROW_CHECKBOX)
        _copy(page, target, "once more")
        expect(page.get_by_text("1 done, 0 failed, 1 given up")).to_be_visible()
        page.wait_for_timeout(1000)
        tables.first.click(position=ROW_CHECKBOX)
        holders = page.locator(".cd-tile").filter(has_text="Holders")
        expect(holders).to_contain_text(target)
        ended = stack.get("/migrations")["ended"]
        assert [(m["state"], m["reason"]) for m in ended] == [
            ("done", "once more"), ("cancelled", "it hangs"),
        ]  # fmt: skip
        assert target in {h["node"] for h in stack.get(f"/cache/prefixes/{key}")["holders"]}
    finally:
        stack.fault(target, hang="")
        act(stack, "/revisions/rollback", to=live, reason="back")
    plain.check()


def _copyable(stack: Stack) -> tuple[str, str]:
    """A prefix whose tokens are known, and a node that computes prompts and does not hold it.
    One that was computed here and decoded there is on both; then another is sent."""
    found: list[tuple[str, str]] = []
    bases = count(60_000, 1_000)

    def look() -> bool:
        stack.send(2, base=next(bases), tenant="copied")
        for prefix in stack.get("/cache/hot", limit=50)["prefixes"]:
            free = {"prefill-1", "both-3"} - set(prefix["holders"])
            key = prefix["key"]
            if prefix["holders"] and free and stack.get(f"/cache/prefixes/{key}")["copyable"]:
                found.append((key, min(free)))
        return bool(found)

    until(look)
    return found[0]


def _copy(page: Page, target: str, reason: str) -> None:
    page.get_by_role("button", name="Copy to a node …").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("combobox", name="To node").click()
    page.get_by_role("option", name=target, exact=True).click()
    dialog.get_by_label("Reason (required)").fill(reason)
    dialog.get_by_role("button", name="Copy", exact=True).click()
    expect(page.get_by_text(f"The copy to {target} is on its way")).to_be_visible()

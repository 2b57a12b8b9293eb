"""The console in a real browser, against real services and engines."""

from __future__ import annotations

import re

import httpx
import pytest
from frames import frames_seen, watch_frames
from oidc_provider import OidcProvider
from playwright.sync_api import Locator, Page, expect
from stack import Stack
from watching import Watched, plots, settled

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


_GROWN = """() => [...document.querySelectorAll('.js-plotly-plot')].flatMap(e =>
  ['l', 'r', 't', 'b'].filter(k => e._fullLayout._size[k] > e.layout.margin[k])
    .map(k => `${e.getAttribute('aria-label')}: ${k} ${e._fullLayout._size[k]}`))"""


def test_live_refresh_keeps_zoom_legend_and_the_chart_itself(plain: Watched, stack: Stack) -> None:
    page = plain.page
    page.goto(stack.console_url)
    plots(page, 4)
    assert page.evaluate(_GROWN) == [], "margins that grow: everything was drawn twice"
    chart = page.locator(".st-key-slo .cd-plot")
    chart.locator(".legendtoggle").nth(1).click()
    hidden = "() => document.querySelector('.st-key-slo .cd-plot')._fullData[1].visible"
    page.wait_for_function(f"{hidden} === 'legendonly'", polling=200)
    before = _zoomed(page, chart)
    chart.evaluate(
        "e => { e.mark = 'same'; e.draws = 0; e.on('plotly_afterplot', () => { e.draws += 1; }); }"
    )
    watch_frames(page)
    stack.send(2, base=7000)
    drawn = "() => document.querySelector('.st-key-slo .cd-plot').draws >= 2"
    page.wait_for_function(drawn, polling=200)
    assert chart.evaluate("e => e.mark") == "same"
    assert _ranges(chart) == before
    assert chart.evaluate("e => e._fullData.map(t => t.visible)")[:2] == [True, "legendonly"]
    frames, blank, draws = frames_seen(page)
    assert blank == 0
    assert frames > 3 and draws >= 2
    plain.check()


def _zoomed(page: Page, chart: Locator) -> list[object]:
    """Zoom by dragging over part of the chart, as a reader does; the ranges after it."""
    start = _ranges(chart)
    box = chart.locator(".nsewdrag").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + box["height"] * 0.7, steps=6)
    page.mouse.up()
    chart.page.wait_for_timeout(1000)
    after = _ranges(chart)
    assert after != start
    return after


def _ranges(chart: Locator) -> list[object]:
    found: list[object] = chart.evaluate("e => [e.layout.xaxis.range, e.layout.yaxis.range]")
    return found


def test_a_chart_without_its_library_says_so_and_is_drawn_later(
    plain: Watched, stack: Stack
) -> None:
    page, library = plain.page, "**/assets/plotly.min.js*"
    page.route(library, lambda route: route.abort())
    page.goto(stack.console_url)
    expect(page.get_by_text("the chart library could not be loaded").first).to_be_visible()
    page.unroute(library)
    stack.send(1, base=9500)
    plots(page, 4)
    expect(page.get_by_text("Chart unavailable")).to_have_count(0)


def test_pausing_stops_the_refresh(plain: Watched, stack: Stack) -> None:
    page = plain.page
    page.goto(stack.console_url)
    plots(page, 4)
    page.get_by_text("Live", exact=True).click()
    expect(page.get_by_text("paused at")).to_be_visible()
    expect(page).to_have_url(re.compile("live=false"))
    settled(page)
    shown = page.locator(".cd-tile").first.inner_text()
    stack.send(3, base=8000)
    page.wait_for_timeout(3000)
    assert page.locator(".cd-tile").first.inner_text() == shown
    page.get_by_text("Live", exact=True).click()
    expect(page.get_by_text("paused at")).to_have_count(0)
    plain.check()


def test_a_deep_link_restores_range_zone_filters_and_decision(plain: Watched, stack: Stack) -> None:
    page = plain.page
    rows = stack.get("/decisions", limit=50)["rows"]
    wanted = next(r for r in rows if r["outcome"])
    by_name = httpx.get(f"{stack.console_url}/overview?tz=local", trust_env=False)
    assert (by_name.status_code, by_name.headers["location"]) == (302, "/?tz=local")
    link = f"/decisions?range=1h&tz=local&outcome=ok&decision={wanted['id']}"
    page.goto(stack.console_url + link)
    expect(page.get_by_text("Where the time went")).to_be_visible()
    expect(page.get_by_text("Asia/Tokyo").first).to_be_visible()
    expect(page.get_by_role("radio", name="1h")).to_be_checked()
    plots(page, 3)
    assert "outcome=ok" in page.url
    expect(page.get_by_role("combobox", name="Outcome")).to_have_value("ok")
    plain.check()


def test_a_row_opens_its_decision(plain: Watched, stack: Stack) -> None:
    page = plain.page
    page.goto(stack.console_url)
    page.get_by_test_id("stTopNavSection").filter(has_text="History").click()
    page.locator("a", has_text="Decisions").click()
    page.get_by_role("radio", name="1h").click(force=True)
    table = page.get_by_test_id("stDataFrame").first
    expect(table).to_be_visible()
    page.wait_for_timeout(1000)
    settled(page)
    table.click(position={"x": 17, "y": 51})
    expect(page.get_by_text("Where the time went")).to_be_visible()
    expect(page).to_have_url(re.compile(r"decision=[0-9a-f]{24}"))
    opened = page.url.rpartition("decision=")[2][:24]
    stored = stack.get(f"/decisions/{opened}")
    expect(page.get_by_text(stored["verdict"], exact=True)).to_be_visible()
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_text("Where the time went")).to_have_count(0)
    plain.check()


def test_a_person_signs_in_through_the_provider(
    plain: Watched, stack: Stack, provider: OidcProvider
) -> None:
    """Refused without a role; with one, known by name on every load until the way out."""
    page = plain.page
    page.goto(f"{stack.console_url}/sign-in")
    page.get_by_text("Sign in with your organisation").click()
    expect(page.get_by_text("ada@example.org has no role here")).to_be_visible()
    provider.claims |= {"groups": ["sre"]}
    page.goto(f"{stack.console_url}/sign-in")
    page.get_by_text("Sign in with your organisation").click()
    expect(page.get_by_text("ada@example.org · operator")).to_be_visible()
    page.reload()
    expect(page.get_by_text("ada@example.org · operator")).to_be_visible()
    session = stack.get("/tokens")["tokens"][0]
    assert (session["name"], session["role"]) == ("ada@example.org", "operator")
    page.get_by_text("Sign out").click()
    expect(page.get_by_text("Sign in", exact=True)).to_be_visible()
    assert session["id"] not in [running["id"] for running in stack.get("/tokens")["tokens"]]
    plain.check()

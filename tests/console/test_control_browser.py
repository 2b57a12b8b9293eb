"""Acts of operators in a real browser, end to end; their effect is checked through the API."""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Callable, Iterator

import httpx
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from stack import Stack
from watching import WAIT_MS, Watched

from dashboard.tuning.draft import CONFIRM

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@pytest.fixture
def operator(browser: Browser) -> Iterator[Watched]:
    yield from _at_work(browser)


@pytest.fixture
def other(browser: Browser) -> Iterator[Watched]:
    yield from _at_work(browser)


def _at_work(launched: Browser) -> Iterator[Watched]:
    context = launched.new_context(viewport={"width": 1440, "height": 1300})
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    yield Watched(page)
    context.close()


def until(done: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def filled(field: Locator, text: str) -> None:
    """Type into a field and leave it, which is when its value is taken."""
    field.fill(text)
    field.press("Tab")


def alpha(stack: Stack) -> float:
    items = stack.get("/tunables")["items"]
    return float(next(i["value"] for i in items if i["path"] == "linear.alpha"))


def live(stack: Stack) -> int:
    return int(stack.get("/tunables")["revision"])


def reviewed(page: Page, reason: str) -> Locator:
    """The dialog of the open draft, with its reason given."""
    # Elements of the run before stay for a moment where a message above them went away.
    page.get_by_role("button", name="Review and apply", disabled=False).first.click()
    dialog = page.get_by_role("dialog")
    filled(dialog.get_by_label("Reason (required)"), reason)
    return dialog


def test_alpha_is_changed_with_preview_and_rolled_back(operator: Watched, stack: Stack) -> None:
    page, before, first = operator.page, alpha(stack), live(stack)
    until(lambda: stack.get("/decisions", limit=5)["rows"])
    page.goto(f"{stack.console_url}/tuning?group=linear")
    filled(page.get_by_label("linear.alpha number"), "0.85")
    expect(page.get_by_text("What it would do")).to_be_visible()
    expect(page).to_have_url(re.compile("draft=linear.alpha"))
    page.reload()  # the draft is in the address
    expect(page.get_by_label("linear.alpha number")).to_have_value("0.85")
    dialog = reviewed(page, "more weight on caches")
    dialog.get_by_role("button", name="Apply", exact=True).click()
    expect(page.get_by_text(f"Revision {first + 1} is live")).to_be_visible()
    assert alpha(stack) == 0.85
    page.goto(f"{stack.console_url}/tuning?revision={first + 1}")
    expect(page.get_by_text("steps before and after the change")).to_be_visible()
    page.get_by_role("button", name="Roll back to the one before").click()
    dialog = page.get_by_role("dialog")
    filled(dialog.get_by_label("Reason (required)"), "it did not help")
    dialog.get_by_role("button", name="Roll back", exact=True).click()
    expect(page.get_by_text(f"values of revision {first} are live again")).to_be_visible()
    assert alpha(stack) == before
    a_shadow_is_stopped_with_a_reason(page, stack)
    operator.check()


def a_shadow_is_stopped_with_a_reason(page: Page, stack: Stack) -> None:
    """On a Tuning page that is open already, which follows what runs beside it. (A canary would
    use up a revision's number, and other tests count them.)"""
    body = {"changes": {"fetch.balancing_threshold": 1.5}, "reason": "a trial"}
    answer = httpx.post(f"{stack.url}/admin/v1/shadow/start", json=body, trust_env=False)
    assert answer.status_code < 300, answer.text
    page.get_by_role("button", name="Stop the shadow …").click()
    dialog = page.get_by_role("dialog")
    do = dialog.get_by_role("button", name="Stop the shadow")
    do.click()
    expect(dialog.get_by_role("alert")).to_contain_text("Reason: say why")
    filled(dialog.get_by_label("Reason (required)"), "seen enough")
    do.click()
    expect(page.get_by_text("The shadow is stopped")).to_be_visible()
    assert not stack.get("/shadow")["running"]
    (entry,) = stack.get("/audit", action="shadow.stopped")["entries"]
    assert entry["reason"] == "seen enough"


def test_two_operators_at_once_lose_nothing(
    operator: Watched, other: Watched, stack: Stack
) -> None:
    before, first = alpha(stack), live(stack)
    draft = f"{stack.console_url}/tuning?group=linear&base={first}&draft=linear.alpha:"
    mine, theirs = operator.page, other.page
    mine.goto(draft + "0.9")
    dialog = reviewed(mine, "mine")
    theirs.goto(draft + "0.2")
    reviewed(theirs, "theirs").get_by_role("button", name="Apply", exact=True).click()
    expect(theirs.get_by_text(f"Revision {first + 1} is live")).to_be_visible()
    dialog.get_by_role("button", name="Apply", exact=True).click()
    expect(mine.get_by_text("Somebody was faster: nothing was applied")).to_be_visible()
    assert alpha(stack) == 0.2
    mine.get_by_role("button", name=f"Put my draft on revision {first + 1}").click()
    expect(mine.get_by_text("Somebody was faster")).to_have_count(0)
    reviewed(mine, "mine, after theirs").get_by_role("button", name="Apply", exact=True).click()
    expect(mine.get_by_text(f"Revision {first + 2} is live")).to_be_visible()
    assert alpha(stack) == 0.9
    stack_back(stack, first)
    assert alpha(stack) == before


def stack_back(stack: Stack, revision: int) -> None:
    """Restore a revision through the API."""
    body = {"to": revision, "reason": "after the test"}
    url = f"{stack.url}/admin/v1/revisions/rollback"
    assert httpx.post(url, json=body, trust_env=False).status_code == 201


def test_the_breaker_is_tripped_with_the_typed_word_and_reset(
    operator: Watched, stack: Stack
) -> None:
    page = operator.page
    page.goto(f"{stack.console_url}/breaker?range=1h")
    page.get_by_role("button", name="Trip …").click()
    dialog = page.get_by_role("dialog")
    do = dialog.get_by_role("button", name="Trip the global breaker until it is reset")
    filled(dialog.get_by_label("Reason (required)"), "a drill")
    do.click()
    expect(dialog.get_by_role("alert")).to_contain_text("Confirmation: type ROUND ROBIN")
    filled(dialog.get_by_label("Type ROUND ROBIN to confirm"), "ROUND ROBIN")
    do.click()
    expect(page.get_by_text("tripped by hand").first).to_be_visible()
    assert stack.get("/breaker")["state"] == "tripped"
    page.get_by_role("button", name="Reset …").click()
    dialog = page.get_by_role("dialog")
    filled(dialog.get_by_label("Reason (required)"), "the drill is over")
    dialog.get_by_role("button", name="Close the global breaker").click()
    expect(page.get_by_text("Done: Close the global breaker")).to_be_visible()
    assert stack.get("/breaker")["state"] == "closed"
    expect(dialog).to_have_count(0)
    a_nodes_breaker_is_tripped_and_ends_by_itself(page, stack)
    operator.check()


def a_nodes_breaker_is_tripped_and_ends_by_itself(page: Page, stack: Stack) -> None:
    """On a Breaker page that is open already; the five minutes are cut short."""
    page.get_by_role("button", name="Trip …").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("combobox", name="Breaker").click()
    page.get_by_role("option", name="both-3", exact=True).click()
    dialog.get_by_role("combobox", name="For how long").click()
    page.get_by_role("option", name="5 min", exact=True).click()
    expect(dialog.get_by_text("At the end: takes a few trial requests")).to_be_visible()
    filled(dialog.get_by_label("Reason (required)"), "its fan is loud")
    filled(dialog.get_by_label("Type both-3 to confirm"), "both-3")
    dialog.get_by_role("button", name="Trip node both-3 for 5 min").click()
    out = page.locator(".cd-tile").filter(has_text="Nodes out by their breaker")
    expect(out).to_contain_text("both-3")
    breaker = stack.get("/nodes/both-3")["breaker"]
    assert (breaker["state"], breaker["reason"]) == ("tripped", "its fan is loud")
    assert 240 < breaker["until_s"] <= 300
    shorter = {"action": "trip", "seconds": 1, "reason": "nobody waits five minutes here"}
    url = f"{stack.url}/admin/v1/nodes/both-3/breaker"
    assert httpx.post(url, json=shorter, trust_env=False).status_code < 300
    until(lambda: stack.get("/nodes/both-3")["breaker"]["state"] in ("half_open", "closed"))
    assert httpx.post(
        url, json={"action": "reset", "reason": "enough"}, trust_env=False
    ).status_code < 300  # fmt: skip
    expect(out).to_contain_text("every breaker lets requests through")


def test_why_a_decision_went_where_it_did(operator: Watched, stack: Stack) -> None:
    stack.send(2, base=15_000, tenant="asks-why")
    until(lambda: len(stack.get("/decisions", tenant="asks-why")["rows"]) == 2)
    row = stack.get("/decisions", tenant="asks-why")["rows"][0]
    page = operator.page
    page.goto(f"{stack.console_url}/decisions?tenant=asks-why&decision={row['id']}")
    stored = stack.get(f"/decisions/{row['id']}")
    expect(page.get_by_text(stored["verdict"], exact=True)).to_be_visible()
    assert stored["row"]["decide_s"] > 0
    expect(page.get_by_text("observed: decide").first).to_be_visible()
    page.get_by_role("button", name="Weigh again").click()
    expect(page.get_by_text(f"It would go to {row['prefill_node']} again.")).to_be_visible()
    expect(page.locator(".st-key-what_if_bars .js-plotly-plot")).to_be_visible()
    operator.check()


def test_a_view_is_kept_opened_and_deleted(operator: Watched, stack: Stack) -> None:
    page = operator.page
    page.goto(f"{stack.console_url}/decisions?tenant=nobody&range=1h&live=false")
    page.get_by_role("button", name="Views", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("tenant nobody; range 1h")).to_be_visible()
    filled(dialog.get_by_label("Name"), "of <b>nobody")
    dialog.get_by_text("Shared", exact=True).click()
    dialog.get_by_role("button", name="Keep", exact=True).click()
    link = page.get_by_role("link", name="of <b>nobody")
    expect(link).to_be_visible()
    (kept,) = stack.get("/views")["views"]
    assert (kept["page"], kept["shared"]) == ("decisions", True)
    assert kept["params"] == {"tenant": "nobody", "range": "1h"}
    page.goto(f"{stack.console_url}/settings")
    link.click()
    expect(page).to_have_url(re.compile("/decisions\\?.*tenant=nobody"))
    expect(page.get_by_text("No decision matches these filters")).to_be_visible()
    page.goto(f"{stack.console_url}/settings")
    page.get_by_role("button", name="Delete …").click()
    dialog = page.get_by_role("dialog")
    filled(dialog.get_by_label("Reason (required)"), "not needed")
    dialog.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("of <b>nobody is deleted")).to_be_visible()
    assert stack.get("/views")["views"] == []
    operator.check()


def test_the_best_point_of_a_sweep_in_the_lab_becomes_live(operator: Watched, stack: Stack) -> None:
    page = operator.page
    page.goto(f"{stack.console_url}/lab")
    filled(page.get_by_label("At most this many"), "60")
    field = page.get_by_role("combobox", name="Sweep the parameters of")
    field.click()
    page.get_by_role("option", name="linear", exact=True).click()
    filled(page.get_by_role("textbox", name=re.compile("^linear.alpha, FROM")), "0.2, 0.8")
    filled(page.get_by_label("Reason (required)"), "which alpha")
    page.get_by_role("button", name=re.compile("^Run 6 runs")).click()
    promote = page.get_by_role("button", name="Promote to a draft")
    expect(promote).to_be_visible()
    expect(page.locator(".st-key-lab_pareto .js-plotly-plot")).to_be_visible()
    job = stack.get("/lab/jobs")["jobs"][0]
    assert (job["reason"], job["state"], job["total"]) == ("which alpha", "done", 6)
    first, picked = live(stack), page.get_by_role("combobox", name="Configuration").input_value()
    points = {p["label"]: p for p in stack.get(f"/lab/jobs/{job['id']}")["points"]}
    assert picked == job["best"] or points[job["best"]]["live"]
    promote.click()
    expect(page).to_have_url(re.compile("/tuning.*draft="))
    dialog = reviewed(page, "the Lab's best")
    filled(dialog.get_by_label(re.compile("to confirm")), CONFIRM)  # another policy is a danger
    dialog.get_by_role("button", name="Apply", exact=True).click()
    expect(page.get_by_text(f"Revision {first + 1} is live")).to_be_visible()
    now = {i["path"]: i["value"] for i in stack.get("/tunables")["items"]}
    assert points[picked]["params"].items() <= now.items()
    stack_back(stack, first)
    operator.check()


def test_a_filtered_audit_is_exported(operator: Watched, stack: Stack) -> None:
    stack.send(3, base=16_000, tenant="audited")
    until(lambda: len(stack.get("/decisions", tenant="audited")["rows"]) == 3)
    page = operator.page
    page.goto(f"{stack.console_url}/decisions?tenant=audited")
    page.get_by_role("button", name="Export").click()
    with page.expect_download() as coming:
        page.get_by_role("button", name="Download csv").click()
    rows = list(csv.DictReader(coming.value.path().read_text().splitlines()))
    assert len(rows) == 3
    assert {r["tenant"] for r in rows} == {"audited"}
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Tables", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("3 rows")).to_be_visible()
    dialog.get_by_text("parquet", exact=True).click()
    with page.expect_download() as coming:
        dialog.get_by_role("button", name="Download parquet").click()
    assert coming.value.suggested_filename == "decisions-decisions-newest-first.parquet"
    assert pq.read_table(coming.value.path()).num_rows == 3
    operator.check()


def test_a_user_is_made_with_the_keyboard_alone(operator: Watched, stack: Stack) -> None:
    page = operator.page
    page.goto(f"{stack.console_url}/settings")
    page.get_by_role("button", name="New user …").press("Enter")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("night-shift")
    password = dialog.get_by_label("Password", exact=True)
    password.fill("an owl reads at 3")
    password.press("Tab")  # to the button that shows it
    page.keyboard.press("Tab")
    expect(dialog.get_by_label("Reason (required)")).to_be_focused()
    page.keyboard.type("she begins tonight")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_text("night-shift may sign in as viewer")).to_be_visible()
    assert "night-shift" in [u["name"] for u in stack.get("/users")["users"]]
    operator.check()

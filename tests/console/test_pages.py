"""Pages run as scripts against a real service: what they say in each condition."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stack import Stack, free_port
from streamlit.testing.v1 import AppTest

APP = str(Path(__file__).parents[2] / "dashboard" / "app.py")
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("CONDUCTOR_ENVIRONMENT", raising=False)
    yield


def opened(
    monkeypatch: pytest.MonkeyPatch, url: str, page: str | None = None, **params: str
) -> AppTest:
    monkeypatch.setenv("CONDUCTOR_URL", url)
    at = AppTest.from_file(APP, default_timeout=60)
    for name, value in params.items():
        at.query_params[name] = value
    at.run()
    if page is not None:
        at.switch_page(f"views/{page}.py").run()
    assert not at.exception
    return at


def text(at: AppTest) -> str:
    """All markup and captions of the page."""
    return " ".join([*(h.proto.body for h in at.get("html")), *(c.value for c in at.caption)])


def charts(at: AppTest) -> int:
    return len(at.get("bidi_component"))


def until(at: AppTest, done: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, text(at)
        time.sleep(0.2)
        at.run()
        assert not at.exception


def test_overview_of_a_working_fleet(monkeypatch: pytest.MonkeyPatch, stack: Stack) -> None:
    stack.send(4)
    at = opened(monkeypatch, stack.url)
    found = text(at)
    assert charts(at) == 4
    assert found.count("class='cd-tile ") == 6
    assert "<i>policy</i><b>min_ttft</b>" in found
    assert re.search(r"<i>revision</i><b>\d+</b>", found)
    fleet = at.dataframe[0].value
    assert set(fleet["Node"]) == {"prefill-1", "decode-2", "both-3"}
    assert set(fleet["State"]) == {"✓ healthy"}
    until(at, lambda: at.dataframe[0].value["Decisions"].sum() >= 4)


def test_a_longer_range_reads_stored_minutes(monkeypatch: pytest.MonkeyPatch, stack: Stack) -> None:
    at = opened(monkeypatch, stack.url, range="1h")
    until(at, lambda: charts(at) == 4)
    assert "requests placed a minute" in text(at)
    until(at, lambda: at.dataframe[1].value["Requests"].sum() >= 12)


def test_a_fixed_window_comes_from_the_address(
    monkeypatch: pytest.MonkeyPatch, stack: Stack
) -> None:
    ends = {"from": "2026-03-01T10:00", "to": "2026-03-01T12:30"}
    at = opened(monkeypatch, stack.url, range="custom", **ends)
    until(at, lambda: "Nothing was measured from 01 Mar 10:00 to 01 Mar 12:30" in text(at))
    assert charts(at) == 0 and "The tiles are of the last minute" in text(at)
    assert {name: at.query_params[name] for name in ends} == ends
    at.segmented_control(key="range").set_value("1h").run()
    assert "01 Mar" not in text(at)


def test_overview_of_an_empty_service(monkeypatch: pytest.MonkeyPatch, empty_stack: Stack) -> None:
    at = opened(monkeypatch, empty_stack.url)
    assert "No node is registered" in text(at)
    assert charts(at) == 0


def test_decisions_of_an_empty_service(monkeypatch: pytest.MonkeyPatch, empty_stack: Stack) -> None:
    at = opened(monkeypatch, empty_stack.url, "decisions")
    assert "No node is registered" in text(at)
    assert len(at.dataframe) == 0


@pytest.mark.parametrize("page", [None, "decisions"])
def test_a_service_that_is_not_there(monkeypatch: pytest.MonkeyPatch, page: str | None) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    at = opened(monkeypatch, url, page)
    found = text(at)
    assert "does not answer" in found
    assert url in found
    assert charts(at) == 0


def test_decisions_list_filters_and_pages(monkeypatch: pytest.MonkeyPatch, stack: Stack) -> None:
    stack.send(60, base=3000, tenant="many")
    at = opened(monkeypatch, stack.url, "decisions")
    at.segmented_control(key="range").set_value("1h").run()
    until(at, lambda: len(at.dataframe) == 1 and len(at.dataframe[0].value) == 50)
    first = set(at.dataframe[0].value["Decision"])
    _button(at, "Older →").click().run()
    second = set(at.dataframe[0].value["Decision"])
    assert second
    assert not first & second
    _button(at, "← Newer").click().run()
    assert set(at.dataframe[0].value["Decision"]) == first
    at.selectbox(key="outcome").set_value("timeout").run()
    assert "No decision matches these filters" in text(at)
    _button(at, "Clear filters").click().run()
    assert len(at.dataframe[0].value) == 50
    assert not at.exception


def test_a_search_by_id_finds_one(monkeypatch: pytest.MonkeyPatch, stack: Stack) -> None:
    wanted = stack.get("/decisions", limit=1)["rows"][0]
    at = opened(monkeypatch, stack.url, "decisions")
    at.text_input(key="q").set_value(wanted["id"]).run()
    assert list(at.dataframe[0].value["Decision"]) == [wanted["id"]]


def test_one_decision_in_full(monkeypatch: pytest.MonkeyPatch, stack: Stack) -> None:
    rows = stack.get("/decisions", limit=200)["rows"]
    wanted = next(r for r in rows if r["outcome"] and r["match_tokens"])
    at = opened(monkeypatch, stack.url, "decisions")
    at.query_params["decision"] = wanted["id"]
    at.run()
    assert not at.exception
    found = text(at)
    assert "Placed on" in found
    assert "Where the time went" in found
    assert "does not do this part of the work" in str([d.value.to_dict() for d in at.dataframe])
    assert charts(at) == 3
    candidates = next(d.value for d in at.dataframe if "Why it lost" in d.value.columns)
    chosen = candidates[candidates["Chosen"] != ""]["Node"]
    assert list(chosen) == [wanted["prefill_node"]]
    assert wanted["id"] in at.code[0].value
    _button(at, "Close").click().run()
    assert "Where the time went" not in text(at)


def test_an_unknown_decision_is_said_to_be_unknown(
    monkeypatch: pytest.MonkeyPatch, stack: Stack
) -> None:
    at = opened(monkeypatch, stack.url, "decisions")
    at.query_params["decision"] = "f" * 24
    at.run()
    assert "No such decision" in text(at)
    assert not at.exception


def test_paused_pages_keep_what_they_showed(monkeypatch: pytest.MonkeyPatch, stack: Stack) -> None:
    at = opened(monkeypatch, stack.url)
    at.toggle(key="live").set_value(False).run()
    before = at.dataframe[0].value["Decisions"].sum()
    assert "paused at" in text(at)
    stack.send(3, base=5000)
    at.run()
    assert at.dataframe[0].value["Decisions"].sum() == before
    at.toggle(key="live").set_value(True).run()
    until(at, lambda: at.dataframe[0].value["Decisions"].sum() >= before + 3)


def test_a_service_that_hangs_is_noticed_and_the_data_dated(
    monkeypatch: pytest.MonkeyPatch, stack: Stack
) -> None:
    at = opened(monkeypatch, stack.url)
    stack.signal_service(signal.SIGSTOP)
    try:
        # Stale comes first, and is passed by where a run of the page takes long.
        until(at, lambda: "The data is stale" in text(at) or "does not answer" in text(at))
        until(at, lambda: "does not answer" in text(at))
        assert "What you see is from" in text(at)
        assert charts(at) == 4
    finally:
        stack.signal_service(signal.SIGCONT)
    until(at, lambda: "does not answer" not in text(at) and "stale" not in text(at))


def _button(at: AppTest, label: str):
    return next(b for b in at.button if b.label == label)

"""A part of a page is drawn by one session and sent again to the others, never across rights."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import streamlit as st
from streamlit.runtime.scriptrunner import RerunData
from streamlit.testing.v1 import AppTest, local_script_runner

from dashboard.parts.drawn import drawn
from dashboard.parts.live_plot import live_plot

FIGURE = {"data": [], "layout": {"height": 100}}
SCRIPT = f"""
import sys
import streamlit as st

st.fragment(sys.modules[{__name__!r}].page)()
"""
answers: dict[str, list[str]] = {}
"""What each reader is shown: the same object for those of the same rights."""
drawings: list[str] = []


def page() -> None:
    """A part with a chart between two others, and a button that is each session's own."""
    answer = answers[st.session_state["reader"]]

    def draw() -> None:
        drawings.append(answer[0])
        with st.container():
            st.html(answer[0])
        live_plot(FIGURE, key="chart", alt="A chart")

    st.html("before")
    drawn("part", given=(answer,), draw=draw)
    st.button("press", key="press", on_click=lambda: st.session_state.update(pressed=True))
    st.html(f"after, {st.session_state.get('pressed')}")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    drawings.clear()
    st.cache_resource.clear()
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def opened(script: Path, reader: str) -> AppTest:
    at = AppTest.from_file(str(script), default_timeout=30)
    at.session_state["reader"] = reader
    return at.run()


def refreshed(monkeypatch: pytest.MonkeyPatch, at: AppTest) -> list[str]:
    """What stands in the fragment after a timed run of it."""
    (fragment,) = at._fragment_storage._fragments  # type: ignore[attr-defined]
    timed = partial(RerunData, fragment_id=fragment, is_auto_rerun=True)
    with monkeypatch.context() as patched:
        patched.setattr(local_script_runner, "RerunData", timed)
        at.run()
    assert not at.exception
    assert len(at.get("bidi_component")) == 1
    return [element.proto.body for element in at.get("html")]


def test_one_draws_for_all_who_see_the_same_and_for_nobody_else(
    monkeypatch: pytest.MonkeyPatch, script: Path
) -> None:
    seen_by_all, seen_by_few = ["seen by all"], ["seen by few"]
    answers.update(one=seen_by_all, two=seen_by_all, admin=seen_by_few)
    one, two, admin = (opened(script, name) for name in ("one", "two", "admin"))
    assert drawings == ["seen by all", "seen by all", "seen by few"]
    drawings.clear()
    for at in (one, two, one, two):
        assert refreshed(monkeypatch, at) == ["before", "seen by all", "after, None"]
    assert drawings == ["seen by all"]
    assert refreshed(monkeypatch, admin) == ["before", "seen by few", "after, None"]
    assert drawings == ["seen by all", "seen by few"]
    answers["two"] = ["newer"]
    assert refreshed(monkeypatch, two) == ["before", "newer", "after, None"]
    assert refreshed(monkeypatch, one) == ["before", "seen by all", "after, None"]


def test_what_a_reader_does_stays_that_readers_own(
    monkeypatch: pytest.MonkeyPatch, script: Path
) -> None:
    answers["one"] = answers["two"] = ["same"]
    one, two = opened(script, "one"), opened(script, "two")
    refreshed(monkeypatch, one)
    two.button(key="press").click().run()
    assert refreshed(monkeypatch, two) == ["before", "same", "after, True"]
    assert refreshed(monkeypatch, one) == ["before", "same", "after, None"]

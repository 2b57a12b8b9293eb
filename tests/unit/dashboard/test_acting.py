"""What is asked before an act: what is missing is named, and a refusal loses nothing."""

from __future__ import annotations

from typing import Any, cast

import pytest
from streamlit.testing.v1 import AppTest

from dashboard import session
from dashboard.api.client import Unreachable
from dashboard.api.feed import Feed


def _dialog() -> None:
    """The content of a dialog, as a page: a reason, a word, and an act that is refused once."""
    import streamlit as st

    from core import wire
    from dashboard.api.client import Refused
    from dashboard.parts import acting

    form = acting.Form()
    form.need(st.text_input("Name", key="name"), "Name: give one.")
    reason = form.reason("reason")
    form.typed("gpu-1", "word")
    weight = form.number("Weight", 1.0, 0.01, 1000.0, key="weight")
    if form.go("Do it", key="do"):
        why = Refused(422, wire.ErrorDetail(message="name: too odd", param="name"))

        def act() -> None:
            st.session_state["asked"] = st.session_state.get("asked", 0) + 1
            st.session_state["weight_asked"] = weight
            if reason != "good enough":
                raise why

        acting.carry_out(act, "Done")
    acting.told()


class _Away:
    """A client whose service is not there."""

    def state(self) -> None:
        raise Unreachable("away")


def _said(at: AppTest) -> str:
    return " ".join(str(m.proto.body) for m in at.get("html"))


def test_what_is_missing_is_named_and_what_was_typed_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    feed = Feed(cast(Any, _Away()))
    monkeypatch.setattr(session, "feed", lambda: feed)
    at = AppTest.from_function(_dialog)
    at.run()
    assert not at.exception and "Not done" not in _said(at)
    at.text_input(key="reason").set_value("no")
    at.button(key="do").click().run()
    for words in ("Name: give one.", "Reason: say why, in 3 characters", "gpu-1"):
        assert words in _said(at)
    assert "asked" not in at.session_state
    at.text_input(key="name").set_value("odd")
    at.text_input(key="reason").set_value("because")
    at.text_input(key="word").set_value("gpu-1")
    at.button(key="do").click().run()
    assert "Refused: name" in _said(at) and "too odd" in _said(at)
    assert [f.value for f in at.text_input] == ["odd", "because", "gpu-1"]
    at.text_input(key="reason").set_value("good enough")
    for wrong in (5000.0, None):  # beyond the bounds, and emptied
        at.number_input(key="weight").set_value(wrong)
        at.button(key="do").click().run()
        assert "Weight: a number from 0.01 to 1,000." in _said(at)
        assert at.number_input(key="weight").value == wrong
    at.number_input(key="weight").set_value(5.0)
    at.button(key="do").click().run()
    assert "Done" in _said(at) and not at.exception
    assert (at.session_state["asked"], at.session_state["weight_asked"]) == (2, 5.0)

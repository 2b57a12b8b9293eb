"""The theme that is announced at each run is worked out once, and is the same."""

from __future__ import annotations

import pytest
from streamlit import config
from streamlit.proto.NewSession_pb2 import NewSession
from streamlit.runtime import app_session

from dashboard.lighter import remember_theme

SECTIONS = {"theme": "", "theme.light": "light", "theme.dark": "dark", "theme.sidebar": "sidebar"}


def filled() -> NewSession:
    message = NewSession()
    for section, part in SECTIONS.items():
        theme = message.custom_theme
        app_session._populate_theme_msg(getattr(theme, part) if part else theme, section)
    return message


def test_the_theme_is_the_same_and_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    original = app_session._populate_theme_msg
    monkeypatch.setattr(app_session, "_populate_theme_msg", original)
    before = {s: config.get_option(f"{s}.primaryColor") for s in ("theme.light", "theme.dark")}
    try:
        config.set_option("theme.light.primaryColor", "#0b62a8")
        config.set_option("theme.dark.primaryColor", "#6cb8f2")
        expected = filled()
        assert expected.custom_theme.light.primary_color == "#0b62a8"
        remember_theme()
        remember_theme()
        assert app_session._populate_theme_msg is not original
        assert filled() == expected
        asked: list[str] = []
        monkeypatch.setattr(config, "get_options_for_section", asked.append)
        assert filled() == expected
        assert asked == []
    finally:
        for section, colour in before.items():
            config.set_option(f"{section}.primaryColor", colour)

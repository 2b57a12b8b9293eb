"""Main script of the console: navigation, and the frame around the chosen page."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from dashboard.frame import frame

_PAGES = Path(__file__).parent / "pages"

st.set_page_config(page_title="Conductor", page_icon="🎼", layout="wide")
page = st.navigation(
    [
        st.Page(_PAGES / "overview.py", title="Overview", default=True),
        st.Page(_PAGES / "decisions.py", title="Decisions", url_path="decisions"),
    ],
    position="top",
)
frame()
page.run()

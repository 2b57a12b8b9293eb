"""Main script of the console: navigation, and the frame around the chosen page."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from dashboard.frame import frame

# Not called "pages": a folder of that name beside the main script is run without the frame.
_VIEWS = Path(__file__).parent / "views"

st.set_page_config(page_title="Conductor", page_icon="🎼", layout="wide")
page = st.navigation(
    [
        st.Page(_VIEWS / "overview.py", title="Overview", default=True),
        st.Page(_VIEWS / "decisions.py", title="Decisions", url_path="decisions"),
    ],
    position="top",
)
frame()
page.run()

"""Main script of the console: navigation, and the frame around the chosen page."""

from __future__ import annotations

import streamlit as st

from dashboard import oidc, session
from dashboard.addresses import heed, show_unheeded
from dashboard.frame import frame, write_address
from dashboard.live import follow_strip
from dashboard.navigation import DEFAULT, Entry, present
from dashboard.parts.export import begin_page, export_tables
from dashboard.settings.saved import views_dialog
from dashboard.who import ask_to_sign_in


def _page(entry: Entry) -> st.Page:
    if entry.name == DEFAULT:
        return st.Page(entry.path, title=entry.title, default=True)
    return st.Page(entry.path, title=entry.title, url_path=entry.name)


page = st.navigation(
    {section: [_page(e) for e in entries] for section, entries in present().items()},
    position="top",
)
st.set_page_config(page_title=f"{page.title} · Conductor", page_icon="🎼", layout="wide")
oidc.step(session.service_url())
if session.must_sign_in():
    ask_to_sign_in()
else:
    if why := oidc.problem():
        st.error(why)
    name = page.url_path or DEFAULT
    heed(name)
    tables = frame(name, page.title, lambda: views_dialog(name, page.title))
    show_unheeded()
    begin_page()
    page.run()
    follow_strip()
    write_address(name)
    if tables:
        export_tables(name)

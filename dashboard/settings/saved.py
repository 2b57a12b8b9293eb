"""Saved views: from the frame's dialog they are opened and kept, on the Settings page deleted."""

from __future__ import annotations

from html import escape

import streamlit as st

from core import wire
from dashboard import session
from dashboard.addresses import PARAMETERS
from dashboard.api.views import ViewsClient
from dashboard.parts import acting
from dashboard.parts.components import heading
from dashboard.parts.page import act, part
from dashboard.parts.tables import plain_table
from dashboard.settings import saved_models as sv

NAME_MAX = 80


def views() -> ViewsClient:
    """Calls in the reader's name; while the service is down, of its read-only twin."""
    return ViewsClient(session.reader())


@st.dialog("Views", width="medium")
def views_dialog(page: str, title: str) -> None:
    """The views there are, and the shown page as a new one."""
    acting.told()
    with part("The saved views"):
        found = views().all()
        st.html(sv.links_markup(found.views))
        _keep(page, title, found)


def _keep(page: str, title: str, found: wire.SavedViewList) -> None:
    params = sv.kept_params(st.query_params.to_dict(), PARAMETERS.get(page, {}))
    heading("Keep what is shown", sv.params_words(params) or "the page as it is")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        name = st.text_input("Name", key="view_name", max_chars=NAME_MAX, placeholder=title)
        shared = st.toggle("Shared", key="view_shared", help="Everybody may open it")
        name = name.strip()
        taken = any(v.mine and v.name == name for v in found.views)
        full = "You keep as many as one may." if sv.full(found) and not taken else ""
        role = "" if session.may("operator") else "This needs the role operator."
        wrong = role or full or sv.complaint(params)
        # Not disabled by a moment without an answer: nothing would enable it while paused.
        pressed = st.button(
            "Replace" if taken else "Keep", key="view_keep", type="primary",
            disabled=bool(wrong), help=wrong or None,
        )  # fmt: skip
    form = acting.Form()
    form.need(name, "Name: give one.")
    if pressed and form.complete():
        asked = wire.SavedViewAsk(name=name, page=page, params=params, shared=shared, replace=taken)
        acting.attempt(lambda: views().save(asked), f"The view {name} is kept")
        st.rerun(scope="fragment")


def views_section() -> None:
    """All of them on the Settings page, and the end of one."""
    what = "a page with its filters and its window, under a name"
    heading("Saved views", f"{what}; {session.zone_name()}")
    found = views().all().views
    if not found:
        st.caption("None yet: open the page you want, then Views at the top right.")
        return
    st.html(sv.links_markup(found))
    plain_table(sv.view_rows(found, session.zone()), key="views", alt="Saved views")
    mine = {v.id: v for v in found if v.mine or session.may("admin")}
    if not mine:
        return
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        id = st.selectbox(
            "View", list(mine), key="pick_view", width=320, format_func=lambda i: mine[i].name
        )
        if act("Delete …", key="delete_view"):
            _delete(mine[str(id)])


@st.dialog("Delete a view")
def _delete(view: wire.SavedView) -> None:
    """The view is gone for everybody who sees it."""
    shared = " It is shared: it goes for everybody." if view.shared else ""
    st.html(f"<p>This deletes the view <b>{escape(view.name)}</b>.{shared}</p>")
    form = acting.Form()
    reason = form.reason("view_reason")
    if form.go("Delete", key="view_delete"):
        done = f"The view {view.name} is deleted"
        acting.carry_out(lambda: views().remove(view.id, reason), done)

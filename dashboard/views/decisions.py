"""Decisions: find one, and see why it came out as it did."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import streamlit as st

from core import wire
from dashboard import session
from dashboard.api.client import Refused, ServiceError
from dashboard.decisions import models as dm
from dashboard.decisions.compare import difference_panel
from dashboard.decisions.detail import show_decision
from dashboard.decisions.export import export_menu
from dashboard.decisions.filters import Filters, clear, filter_bar, query_of
from dashboard.decisions.reading import full_page
from dashboard.live import live
from dashboard.overview import models as vm
from dashboard.parts import format as fmt
from dashboard.parts.components import heading, notice
from dashboard.parts.tables import SELECT, decision_table
from dashboard.parts.window import words

OPEN = "decision"
"""Query parameter with the id of the open decision."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A page as it was read; kept until the question changes, so that rows do not move."""

    question: tuple[object, ...]
    page: wire.DecisionPage | None
    at: datetime
    total: int
    """Decisions the service had made by then."""
    error: str = ""


def main() -> None:
    """Filters, the list, and the open decision below it."""
    look = session.look()
    filters = filter_bar(look.state)
    loaded = _loaded(filters)
    live(lambda: _news(loaded), key="decision_news")
    if loaded.page is not None:
        _list(loaded, filters, look.state)
    chosen = st.query_params.get(OPEN)
    if chosen:
        _detail(chosen)
    elif loaded.page is not None and loaded.page.rows:
        st.caption(f"{SELECT[0].upper()}{SELECT[1:]} to see why the request went where it did.")


def _loaded(filters: Filters) -> Loaded:
    """The page that answers the current question, from the session or from the service."""
    stack: list[str] = st.session_state.setdefault("cursors", [])
    base = (filters, _range_key())
    if st.session_state.get("asked") != base:
        st.session_state["asked"] = base
        stack.clear()
    question = (*base, tuple(stack), st.session_state.get("reload", 0))
    held: Loaded | None = st.session_state.get("loaded")
    if held is not None and held.question == question:
        return held
    fresh = _read(filters, question, stack[-1] if stack else None)
    if fresh.page is None and held is not None and held.question[:3] == question[:3]:
        fresh = Loaded(question, held.page, held.at, held.total, fresh.error)
    st.session_state["loaded"] = fresh
    return fresh


def _range_key() -> tuple[object, ...]:
    """What a change of which makes another question; a moving window is one question."""
    window = session.window()
    return ("last", window.span) if window.span is not None else (window.start, window.end)


def _read(filters: Filters, question: tuple[object, ...], cursor: str | None) -> Loaded:
    now, state = session.now(), session.look().state
    total = state.totals.decisions if state else 0
    query = query_of(filters, window=session.window(), cursor=cursor)
    try:
        return Loaded(question, full_page(session.reader(), query), now, total)
    except ServiceError as e:
        return Loaded(question, None, now, total, error=str(e))


def _news(loaded: Loaded) -> None:
    """Live part: the connection, and how much has happened since the list was read."""
    look = session.look()
    at = fmt.clock(look.good_at, session.zone()) if look.good_at else ""
    clock = f"{at} {session.zone_name()}"
    message = vm.connection_notice(look, now=session.now(), clock=clock, url=session.service_url())
    if message is not None and session.live():
        notice(message)
    elif loaded.error:
        if not look.error and session.live():
            _reload()
            st.rerun()
        notice(vm.Notice("bad", "The decisions could not be read", loaded.error))
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if st.button("Refresh", help="Read the newest decisions"):
            _reload()
            st.rerun()
        st.caption(_since(loaded, look.state))


def _reload() -> None:
    st.session_state["reload"] = st.session_state.get("reload", 0) + 1
    st.session_state["cursors"] = []


def _since(loaded: Loaded, state: wire.FleetState | None) -> str:
    read = f"Read at {fmt.clock(loaded.at, session.zone())} {session.zone_name()}"
    new = state.totals.decisions - loaded.total if state else 0
    return f"{read}; {fmt.count(new)} decisions since then" if new > 0 else f"{read}; none since"


def _list(loaded: Loaded, filters: Filters, state: wire.FleetState | None) -> None:
    page = loaded.page
    assert page is not None
    stack: list[str] = st.session_state["cursors"]
    if not page.rows:
        if page.next is None:
            _nothing(filters, state, deep=bool(stack))
        else:
            text = "Newer decisions were searched; what matches may lie further back."
            notice(vm.Notice("none", "None found so far", text))
            _pager(page, stack)
        return
    key = f"decisions-{abs(hash(loaded.question))}"
    ids = [row.id for row in page.rows]
    decision_table(
        page.rows, key=key, zone=session.zone(), zone_name=session.zone_name(),
        on_select=lambda: _selected(key, ids),
    )  # fmt: skip
    _pager(page, stack)
    export_menu(filters)
    difference_panel(filters, loaded.question[:2] + loaded.question[-1:])


def _selected(key: str, ids: list[str]) -> None:
    rows = st.session_state[key]["selection"]["rows"]
    if rows:
        st.query_params[OPEN] = ids[rows[0]]
    else:
        st.query_params.pop(OPEN, None)


def _pager(page: wire.DecisionPage, stack: list[str]) -> None:
    more = page.next
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.button("← Newer", disabled=not stack, on_click=_newer)
        st.button("Older →", disabled=more is None, on_click=stack.append, args=(more,))
        rest = "more follow" if more else "the last page"
        st.caption(f"Page {len(stack) + 1}: {len(page.rows)} decisions, {rest}")


def _newer() -> None:
    st.session_state["cursors"].pop()


def _nothing(filters: Filters, state: wire.FleetState | None, *, deep: bool) -> None:
    if deep:
        notice(vm.Notice("none", "No older decision", "This was the last page."))
    elif not filters.empty:
        notice(vm.Notice("none", "No decision matches these filters", _range_words(filters)))
        st.button("Clear filters", on_click=clear)
    elif state is not None and not state.totals.decisions:
        empty = vm.fleet_notice(state)
        if empty is not None:
            notice(empty)
    else:
        notice(vm.Notice("none", "No decision in this range", _range_words(filters)))


def _range_words(filters: Filters) -> str:
    if filters.q:
        return "The whole history was searched."
    shown = words(session.window(), session.zone())
    return f"Looked at {shown} {session.zone_name()}; choose a longer range above."


def _detail(decision_id: str) -> None:
    st.divider()
    with st.container(horizontal=True, horizontal_alignment="distribute"):
        heading("Decision", decision_id)
        st.button("Close", on_click=_close)
    found = _read_detail(decision_id)
    if found is not None:
        show_decision(found)


def _close() -> None:
    st.query_params.pop(OPEN, None)


def _read_detail(decision_id: str) -> wire.DecisionDetail | None:
    """The record; finished ones never change and are kept."""
    held: wire.DecisionDetail | None = st.session_state.get("open_decision")
    if held is not None and held.row.id == decision_id and dm.row_outcome(held.row) != "open":
        return held
    try:
        found = session.reader().decision(decision_id)
    except Refused as e:
        what = "No such decision" if e.status == 404 else "The decision could not be read"
        notice(vm.Notice("bad", what, str(e)))
        return None
    except ServiceError as e:
        notice(vm.Notice("bad", "The decision could not be read", str(e)))
        return None
    st.session_state["open_decision"] = found
    return found


main()

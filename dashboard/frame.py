"""The frame of every page: what is live, how old it is, and the controls all pages obey."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import streamlit as st

from dashboard import session
from dashboard.api.feed import Look
from dashboard.overview import models as vm
from dashboard.parts import format as fmt
from dashboard.parts.components import badge, strip
from dashboard.parts.theme import style_sheet
from dashboard.parts.window import CHOICES, CUSTOM, LIVE_RANGE, parse, spell, words
from dashboard.who import here, who_markup

_STRIP = "strip"
"""Key of the place where the strip of badges stands, and of the name and title of its page."""


def frame(page: str, title: str, open_views: Callable[[], None]) -> bool:
    """Draw the frame of a page, which follows below. `open_views` shows the saved views.

    True where the reader asked for the tables of the page, which is still to be drawn.
    """
    st.html(style_sheet(session.colours()))
    _heed_address()
    left, right = st.columns([5, 6], vertical_alignment="center")
    with right:
        tables = _controls(open_views)
        if session.chosen_range() == CUSTOM:
            _ends()
    with left:
        st.session_state[_STRIP] = (st.empty(), page, title)
    redraw_strip()
    return tables


def redraw_strip() -> None:
    """The strip of badges anew, in the place the frame keeps for it."""
    place, page, title = st.session_state[_STRIP]
    with place:
        strip(_badges(session.look()), page, title)


def _controls(open_views: Callable[[], None]) -> bool:
    with st.container(
        horizontal=True, horizontal_alignment="right", vertical_alignment="center", gap="small"
    ):
        _widgets()
        if st.button("Views", key="views", help="Open or keep a page with its filters"):
            open_views()
        return st.button("Tables", key="tables", help="Take tables of this page along as files")


def _widgets() -> None:
    st.segmented_control(
        "Time range",
        list(CHOICES),
        default=LIVE_RANGE,
        required=True,
        key="range",
        bind="query-params",
        label_visibility="collapsed",
        on_change=_chosen,
    )
    st.selectbox(
        "Time zone",
        ["UTC", session.LOCAL_TIME],
        key="tz",
        bind="query-params",
        label_visibility="collapsed",
        width=120,
    )
    st.toggle("Live", value=True, key="live", bind="query-params")
    if session.chosen_range() != CUSTOM:
        st.button(
            "Pin",
            key="pin",
            on_click=_pin,
            help="Put the shown window into the address, so that the link shows the same later",
        )


def _pin() -> None:
    """Turn the moving window into a fixed one, whole minutes."""
    shown = session.window()
    for name, at in (("from", shown.start), ("to", shown.end + timedelta(minutes=1))):
        st.session_state[name] = at.replace(tzinfo=None, second=0, microsecond=0)
    st.session_state["range"] = CUSTOM


def _chosen() -> None:
    """A reader who chooses "custom" starts from the last hour."""
    if st.session_state.get("range") == CUSTOM and "from" not in st.session_state:
        st.session_state["range"] = "1h"
        _pin()


def _ends() -> None:
    """Both ends of a fixed window. In UTC whatever the zone, so that a link means the same."""
    with st.container(horizontal=True, horizontal_alignment="right", gap="small"):
        for name, label in (("from", "From (UTC)"), ("to", "To (UTC)")):
            st.datetime_input(label, None, key=name, step=60, width=210, format="YYYY-MM-DD")


def _heed_address() -> None:
    """Both ends from the address, by hand: a bound widget leaves out the value it is first drawn
    with. An address that differs from what was written last came from a link or the Back button,
    and wins.
    """
    written: dict[str, str] = st.session_state.setdefault("written_ends", {})
    for name in ("from", "to"):
        given = st.query_params.get(name, "")
        if given and given != written.get(name):
            st.session_state[name] = parse(given)


def write_address(page: str) -> None:
    """Both ends into the address, once the page is drawn.

    Where the page changes, the browser writes an address without them, and would drop what comes
    before that.
    """
    fixed = session.chosen_range() == CUSTOM
    ends = {name: st.session_state.get(name) if fixed else None for name in ("from", "to")}
    texts = {name: spell(at) if at is not None else "" for name, at in ends.items()}
    st.session_state["written_ends"] = texts
    shown = {name: st.query_params.get(name, "") for name in texts}
    was, st.session_state["address_of"] = st.session_state.get("address_of"), page
    if texts == shown and was == page:
        return
    st.query_params.update({name: text for name, text in texts.items() if text})
    for name, text in texts.items():
        if shown[name] and not text:
            del st.query_params[name]


def _badges(look: Look) -> list[str]:
    badges = [badge("environment", session.environment())]
    state = look.state
    if state is not None:
        level, words_ = vm.breaker_summary(state)
        badges += [
            badge("policy", state.policy),
            badge("revision", str(state.revision)),
            badge("breakers", words_, level),
            badge("alerts", *vm.alert_summary(state)),
            badge("problems", *vm.problem_summary(state)),
        ]
    badges += [_age(look), _shown_window()]
    reader = session.user()
    who = f"{reader.name or 'not signed in'} · {reader.role or 'no role'}"
    badges.append(badge("user", who if session.known() else "not known yet"))
    badges.append(f"<span class='cd-badge'>{who_markup(reader, here())}</span>")
    return badges


def _shown_window() -> str:
    return badge("window", f"{words(session.window(), session.zone())} {session.zone_name()}")


def _age(look: Look) -> str:
    if not session.live() and look.good_at is not None:
        at = fmt.clock(look.good_at, session.zone())
        return badge("paused at", f"{at} {session.zone_name()}", "none")
    level, words_ = vm.freshness(look, session.now())
    return badge("data", words_, level)

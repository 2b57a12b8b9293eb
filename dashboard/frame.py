"""The frame of every page: what is live, how old it is, and the controls all pages obey."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from dashboard import session
from dashboard.api.feed import Look
from dashboard.overview import models as vm
from dashboard.parts import format as fmt
from dashboard.parts.components import badge, strip
from dashboard.parts.theme import style_sheet
from dashboard.parts.window import CHOICES, CUSTOM, LIVE_RANGE, parse, spell, words
from dashboard.who import here, who_markup

_RESTATE = "restate_ends"
_STRIP = "strip"
"""Key of the place where the strip of badges stands."""


def frame(open_views: Callable[[], None]) -> bool:
    """Draw the frame; pages follow below. `open_views` shows the saved views.

    True where the reader asked for the tables of the page, which is still to be drawn.
    """
    st.html(style_sheet(session.colours()))
    _address()
    left, right = st.columns([5, 6], vertical_alignment="center")
    with right:
        tables = _controls(open_views)
        if session.chosen_range() == CUSTOM:
            _ends()
    with left:
        st.session_state[_STRIP] = st.empty()
    redraw_strip()
    st.session_state[_RESTATE] = True
    return tables


def redraw_strip() -> None:
    """The strip of badges anew, in the place the frame keeps for it."""
    _restate_ends()
    with st.session_state[_STRIP]:
        strip(_badges(session.look()))


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


def _address() -> None:
    """Keep both ends in the address.

    Done by hand: a bound widget leaves out the value it is first drawn with. An address that
    differs from what was written last came from a link or the Back button, and wins.
    """
    written: dict[str, str] = st.session_state.setdefault("written_ends", {})
    fixed = (st.query_params.get("range") or st.session_state.get("range")) == CUSTOM
    for name in ("from", "to"):
        given = st.query_params.get(name, "")
        if given and given != written.get(name):
            st.session_state[name] = parse(given)
        at = st.session_state.get(name)
        text = spell(at) if fixed and at is not None else ""
        written[name] = text
        if text:  # also where it is known: another page's address comes without it
            st.query_params[name] = text
        elif given and not text:
            del st.query_params[name]


def _restate_ends() -> None:
    """Both ends into the address once more, at a page's first refresh: as the page changes, the
    browser and the frame write to it at the same time, and the browser may come last."""
    ctx = get_script_run_ctx(suppress_warning=True)
    if ctx is None or not ctx.fragment_ids_this_run or not st.session_state.pop(_RESTATE, False):
        return
    written: dict[str, str] = st.session_state.get("written_ends", {})
    if found := {name: text for name, text in written.items() if text}:
        st.query_params.update(found)


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
    badges.append(badge("user", f"{reader.name or 'not signed in'} · {reader.role or 'no role'}"))
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

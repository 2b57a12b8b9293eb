"""The frame of every page: what is live, how old it is, and the controls all pages obey."""

from __future__ import annotations

import streamlit as st

from dashboard import format as fmt
from dashboard import session
from dashboard import view_models as vm
from dashboard.components import badge, strip
from dashboard.feed import Look
from dashboard.theme import style_sheet


def frame() -> None:
    """Draw the frame; pages follow below."""
    st.html(style_sheet(session.colours()))
    left, right = st.columns([6, 5], vertical_alignment="center")
    with right:
        _controls()
    with left:
        _status(session.refresh_every())


def _controls() -> None:
    with st.container(
        horizontal=True, horizontal_alignment="right", vertical_alignment="center", gap="small"
    ):
        _widgets()


def _widgets() -> None:
    st.segmented_control(
        "Time range",
        list(session.RANGES),
        default=session.LIVE_RANGE,
        required=True,
        key="range",
        bind="query-params",
        label_visibility="collapsed",
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


def _status(every: float | None) -> None:
    st.fragment(_status_strip, run_every=every, key="frame")()


def _status_strip() -> None:
    look = session.look()
    strip(_badges(look))


def _badges(look: Look) -> list[str]:
    badges = [badge("environment", session.environment())]
    state = look.state
    if state is not None:
        level, words = vm.breaker_summary(state)
        problems = len(vm.problems(state, most=1000))
        badges += [
            badge("policy", f"{state.policy} · revision {state.revision}"),
            badge("breakers", words, level),
            badge("problems", str(problems), "warn" if problems else "ok"),
        ]
    badges.append(_age(look))
    return badges


def _age(look: Look) -> str:
    if not session.live() and look.good_at is not None:
        at = fmt.clock(look.good_at, session.zone())
        return badge("paused at", f"{at} {session.zone_name()}", "none")
    level, words = vm.freshness(look, session.now())
    return badge("data", words, level)

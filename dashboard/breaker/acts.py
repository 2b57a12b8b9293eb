"""Tripping, resetting and holding breakers: one dialog with reason, end and the typed name."""

from __future__ import annotations

from typing import Literal, cast

import streamlit as st

from core import wire
from dashboard.breaker import models as bm
from dashboard.breaker.models import Act
from dashboard.parts import acting

ENDS = {"until it is reset": None, "5 min": 5.0, "15 min": 15.0, "1 h": 60.0, "4 h": 240.0}


@st.dialog("Breaker", width="medium")
def breaker_dialog(nodes: list[str], target: str, action: str) -> None:
    """Say what is to happen and do it."""
    names = [bm.GLOBAL, *nodes]
    chosen = st.selectbox(
        "Breaker", names, key="breaker_target", index=names.index(target) if target in names else 0
    )
    kinds = list(bm.ACTIONS)
    kind = st.segmented_control(
        "Act", kinds, default=action, required=True, key="breaker_action",
        format_func=lambda k: bm.ACTIONS[k],
    )  # fmt: skip
    minutes = None
    if kind != "reset":
        options = [e for e in ENDS if kind == "trip" or ENDS[e] is not None]
        minutes = ENDS[str(st.selectbox("For how long", options, key=f"breaker_ends_{kind}"))]
    act = Act("" if chosen == bm.GLOBAL else str(chosen), str(kind), minutes)
    st.caption(f"{act.words}. {_effect(act)}")
    form = acting.Form()
    reason = form.reason("breaker_reason")
    if act.confirm:
        form.typed(act.confirm, "breaker_word")
    form.need(not act.missing, act.missing)
    if form.go(act.words, key="breaker_do"):
        _do(act, reason)


def _effect(act: Act) -> str:
    state = {"trip": "tripped", "reset": "closed", "hold": "held"}[act.action]
    words = bm.MEANS[state][1 if act.target else 0]
    if act.action != "trip" or act.minutes is None:
        return f"Then: {words}."
    trial = bm.MEANS["half_open"][1 if act.target else 0]
    return f"Until then: {words}. At the end: {trial}."


def _do(act: Act, reason: str) -> None:
    asked = wire.BreakerAction(
        action=cast(Literal["trip", "reset", "hold"], act.action),
        reason=reason,
        author=acting.author(),
        seconds=None if act.minutes is None else act.minutes * 60,
    )
    acting.carry_out(lambda: acting.control().switch(act.target, asked), f"Done: {act.words}")

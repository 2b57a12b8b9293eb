"""The draft's widgets: sliders, numbers, switches and choices, all over one draft.

The draft is the truth: each run puts its values into the widgets before they are drawn, and a
widget's callback puts the reader's value into the draft.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from core import wire
from dashboard.tuning import draft as dr
from dashboard.tuning.draft import Draft

_DRAFT = "tuning_draft"
_ADDRESS = "draft"
SLIDER_SPAN = 10.0
"""Wider ranges get a number field alone: a slider could not be set exactly enough."""


def current(view: wire.TunablesView) -> tuple[Draft, list[str]]:
    """The session's draft, or the one in the address; and what of that could not be used."""
    held: Draft | None = st.session_state.get(_DRAFT)
    text = st.query_params.get(_ADDRESS)
    wrong: list[str] = []
    if text is not None and (held is None or text != dr.draft_text(held)):
        number = dr.parse_base(st.query_params.get("base", ""), view.revision)
        held, wrong = dr.parse_draft(text, number, view.items)
        keep(held)
    if held is None or not held:
        held = Draft(view.revision)
    st.session_state[_DRAFT] = held
    _to_address(held)
    return held, wrong


def keep(draft: Draft) -> None:
    """Remember a draft, in the session and in the address."""
    st.session_state[_DRAFT] = draft
    _to_address(draft)


def _to_address(draft: Draft) -> None:
    if draft:
        st.query_params[_ADDRESS] = dr.draft_text(draft)
        st.query_params["base"] = str(draft.base)
    else:
        for name in (_ADDRESS, "base"):
            st.query_params.pop(name, None)


def held() -> Draft:
    """The draft as it is now."""
    found: Draft = st.session_state[_DRAFT]
    return found


def discard() -> None:
    """Throw the draft away; a callback."""
    keep(Draft(held().base))


def editor(
    items: list[wire.TunableView], policies: list[wire.PolicyView], *, disabled: bool
) -> None:
    """One row a parameter."""
    for item in items:
        _row(item, policies, disabled=disabled)


def _row(item: wire.TunableView, policies: list[wire.PolicyView], *, disabled: bool) -> None:
    drafted = item.path in held().changes
    with st.container(key=f"row-{item.path.replace('.', '-')}"):
        about, field, facts = st.columns([4, 6, 3], vertical_alignment="center", gap="small")
        with about:
            mark = " ✎" if drafted else ""
            st.markdown(f"`{item.path}`{mark}  \n:small[{_about(item)}]")
        with field:
            _field(item, policies, disabled=disabled)
        with facts:
            live = dr.word(item.value, item.unit)
            st.markdown(
                f":small[live **{live}** · default {dr.word(item.default, item.unit)}  \n"
                f"{dr.bounds(item)}]"
            )


def _about(item: wire.TunableView) -> str:
    source = f" ({item.source})" if item.source and item.source != "ours" else ""
    return item.doc.replace("[", "\\[").replace("*", "\\*") + source


def _field(item: wire.TunableView, policies: list[wire.PolicyView], *, disabled: bool) -> None:
    value = held().changes.get(item.path, item.value)
    key = f"set-{item.path}"
    common: dict[str, Any] = {
        "label_visibility": "collapsed", "on_change": _changed, "disabled": disabled,
    }  # fmt: skip
    names = [p.name for p in policies] if item.path == "policy" else list(item.choices)
    if isinstance(item.default, bool):
        st.session_state[key] = value
        st.toggle(item.path, key=key, args=(item, key), **common)
    elif names:
        st.session_state[key] = value
        options = list(dict.fromkeys([*names, value]))
        st.selectbox(item.path, options, key=key, args=(item, key), **common)
    elif isinstance(item.default, str):
        st.session_state[key] = value
        st.text_input(item.path, key=key, args=(item, key), **common)
    else:
        _number(item, value, common)


def _number(item: wire.TunableView, value: Any, common: dict[str, Any]) -> None:
    whole = isinstance(item.default, int)
    kind: Any = int if whole else float
    low, high = kind(item.low or 0), kind(item.high or 0)
    narrow = high - low <= SLIDER_SPAN
    step = 1 if whole else 0.01 if narrow else _step(float(item.default))
    key = f"set-{item.path}"
    if narrow:
        left, right = st.columns([1, 1], vertical_alignment="center", gap="small")
        slider = f"slide-{item.path}"
        st.session_state[slider] = kind(value)
        with left:
            st.slider(item.path, low, high, step=step, key=slider, args=(item, slider), **common)
    else:
        right = st.container()
    st.session_state[key] = kind(value)
    with right:
        shown = None if whole else "%g"
        st.number_input(
            f"{item.path} number", low, high, None, step=step, key=key, format=shown,
            args=(item, key), **common,
        )  # fmt: skip


def _step(default: float) -> float:
    """A tenth of the default's size, at least a thousandth."""
    size = abs(default) or 1.0
    step = 10.0 ** (len(str(int(size))) - 2)
    return max(step, 0.001)


def _changed(item: wire.TunableView, key: str) -> None:
    value = st.session_state[key]
    if value is not None:
        if isinstance(item.default, float):
            value = float(f"{value:.10g}")
        keep(held().put(item, value))

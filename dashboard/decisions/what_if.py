"""One decision under other parameters: the form, and what would have come out."""

from __future__ import annotations

from typing import Any

import streamlit as st

from core import wire
from dashboard import session
from dashboard.api.client import ServiceError
from dashboard.decisions import figures
from dashboard.decisions.what_if_models import as_selection, tried_words, what_if_rows
from dashboard.overview.models import Notice
from dashboard.parts import acting
from dashboard.parts.components import heading, notice
from dashboard.parts.live_plot import live_plot
from dashboard.parts.page import failure_notice
from dashboard.parts.tables import plain_table
from dashboard.parts.theme import Level
from dashboard.tuning.draft import group_of, word

BASES = {"as they were then": "then", "as they are live": "live"}


def what_if_panel(row: wire.DecisionRow) -> None:
    """A form under the decision; nothing is asked before the reader does."""
    heading("What if", "the recorded candidates, weighed under other parameters")
    try:
        view, policies = _known()
    except ServiceError as e:
        notice(failure_notice("The parameters", e))
        return
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        base = st.selectbox("Parameters", list(BASES), key="what_if_base", width=200)
        names = [p.name for p in policies.policies]
        policy = st.selectbox(
            "Policy", names, key="what_if_policy", width=220,
            index=names.index(row.policy) if row.policy in names else 0,
        )  # fmt: skip
        changes = _values(view, str(policy))
        asked = st.button("Weigh again", key="what_if_do", type="primary")
    question = (row.id, str(base), str(policy), tuple(sorted(changes.items())))
    if asked:
        _ask(row.id, BASES[str(base)], {"policy": policy, **changes}, question)
    held = st.session_state.get("what_if")
    if held is not None and held[0][0] == row.id:
        if held[0] != question:
            st.caption("The form was changed since; weigh again to see it.")
        _show(held[1])


def _known() -> tuple[wire.TunablesView, wire.PolicyList]:
    calls = acting.control()
    return calls.tunables(), calls.policies()


def _values(view: wire.TunablesView, policy: str) -> dict[str, Any]:
    """Number fields of the policy's own parameters; those that differ from the live value."""
    changes = {}
    for item in view.items:
        numeric = isinstance(item.default, (int, float)) and not isinstance(item.default, bool)
        if group_of(item.path) != policy or not numeric:
            continue
        kind: Any = int if isinstance(item.default, int) else float
        value = st.number_input(
            item.path.partition(".")[2], kind(item.low or 0), kind(item.high or 0),
            value=kind(item.value), key=f"what_if-{item.path}", width=150,
            help=f"{item.doc}; live {word(item.value, item.unit)}",
        )  # fmt: skip
        if value != item.value:
            changes[item.path] = value
    return changes


def _ask(id: str, base: str, changes: dict[str, Any], question: object) -> None:
    try:
        told = acting.control().what_if(
            id, wire.WhatIfAsk.model_validate({"base": base, "changes": changes})
        )
    except ServiceError as e:
        st.session_state.pop("what_if", None)
        notice(failure_notice("The decision under other parameters", e))
    else:
        st.session_state["what_if"] = (question, told)


def _show(told: wire.WhatIfView) -> None:
    level: Level = "warn" if told.moved else "ok"
    text = f"Policy `{told.policy}` on the parameters of revision {told.base}"
    notice(Notice(level, told.text, f"{text}{tried_words(told)}."))
    live_plot(
        figures.candidates(as_selection(told), session.colours()),
        key="what_if_bars", alt="Candidates' terms under the other parameters",
    )  # fmt: skip
    plain_table(what_if_rows(told), key="what_if_rows", alt="Candidates weighed again")
    for text in told.assumptions:
        st.caption(f"· {text}")

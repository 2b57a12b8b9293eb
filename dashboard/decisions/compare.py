"""What is different about the filtered decisions: a panel that reads two samples and compares."""

from __future__ import annotations

import streamlit as st

from core import wire
from dashboard import session
from dashboard.decisions import differences as dd
from dashboard.decisions.filters import Filters, query_of
from dashboard.decisions.reading import SAMPLE, sample
from dashboard.overview.models import Notice
from dashboard.parts.components import heading, notice
from dashboard.parts.live_plot import live_plot
from dashboard.parts.page import part
from dashboard.parts.tables import plain_table

_HELD = "different_read"
Samples = tuple[list[wire.DecisionRow], list[wire.DecisionRow]]


def difference_panel(filters: Filters, question: object) -> None:
    """A switch, and below it what the filtered decisions have more or less often."""
    shown = st.toggle(
        "What is different about these", key="different", bind="query-params",
        help="Compares the filtered decisions with all others of the same time",
    )  # fmt: skip
    if not shown:
        return
    if filters.empty or filters.q:
        text = "Filter by a node, an outcome, a tenant or missed limits: that is the selection."
        notice(Notice("none", "Nothing is selected", text))
        return
    with part("The comparison"):
        _compare(*_samples(filters, question))


def _samples(filters: Filters, question: object) -> Samples:
    held = st.session_state.get(_HELD)
    if held is not None and held[0] == question:
        found: Samples = held[1]
        return found
    client, window = session.reader(), session.window()
    with st.spinner("Reading both sides …"):
        selected = sample(client, query_of(filters, window=window, cursor=None), SAMPLE)
        others = sample(client, query_of(Filters(), window=window, cursor=None), 2 * SAMPLE)
    both = selected, dd.rest_of(others, selected)
    st.session_state[_HELD] = (question, both)
    return both


def _compare(selected: list[wire.DecisionRow], rest: list[wire.DecisionRow]) -> None:
    heading("What is different", f"{len(selected)} selected against {len(rest)} others, newest")
    if min(len(selected), len(rest)) < dd.LEAST:
        text = f"A comparison needs {dd.LEAST} on each side; choose a longer range."
        notice(Notice("none", "Too few decisions to compare", text))
        return
    found = dd.differences(selected, rest)
    left, right = st.columns([7, 4], gap="medium")
    with left:
        if found:
            live_plot(
                dd.difference_figure(found, session.colours()), key="differences",
                alt="Shares among the selected decisions against the rest",
            )  # fmt: skip
        else:
            notice(Notice("ok", "Nothing differs by 5 % or more", "The selection is as the rest."))
    with right:
        plain_table(dd.figure_rows(selected, rest), key="medians", alt="Medians of both sides")
    if found:
        with st.expander("Numbers behind the chart"):
            plain_table(dd.difference_rows(found), key="difference_rows", alt="What is different")

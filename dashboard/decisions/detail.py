"""One decision in full: what was weighed, what was predicted, what happened."""

from __future__ import annotations

from html import escape

import streamlit as st

from core import wire
from dashboard import session
from dashboard.decisions import figures
from dashboard.decisions import models as dm
from dashboard.decisions.prompt import prompt_panel
from dashboard.decisions.what_if import what_if_panel
from dashboard.overview.models import Notice
from dashboard.parts import times
from dashboard.parts.components import badge, heading, notice, strip, tile_grid
from dashboard.parts.live_plot import live_plot
from dashboard.parts.tables import candidate_table, plain_table


def show_decision(detail: wire.DecisionDetail) -> None:
    """Everything about one decision, the answer first."""
    row = detail.row
    st.html(f"<strong>{escape(detail.verdict)}</strong>")
    strip([badge(label, value) for label, value in dm.facts(row)])
    tile_grid(dm.summary_tiles(row))
    if detail.missed_match:
        notice(Notice("warn", "Less than the best match was taken", detail.missed_match))
    for text in detail.notes:
        notice(Notice("none", "Note", text))
    _times(row)
    _selection("Prefill node", f"{row.policy}: ", detail.prefill, key="prefill")
    if detail.decode is not None:
        _selection("Decode node", "", detail.decode, key="decode")
    if row.routed:
        what_if_panel(row)
    prompt_panel(detail)
    _raw(detail)


def _times(row: wire.DecisionRow) -> None:
    segments = dm.waterfall(row)
    if not segments:
        return
    heading("Where the time went", dm.title(row, session.zone(), session.zone_name()))
    figure = figures.waterfall(segments, session.colours(), limit_s=row.ttft_slo_s)
    live_plot(figure, key="waterfall", alt="Predicted and observed times of this request")
    plain_table(dm.prediction_rows(row), key="predictions", alt="Predicted against observed")
    if row.routed:
        why = dm.unobserved(row)
        st.caption(f"{why} {times.TTFT} {times.TBT}".strip())


def _selection(title: str, by: str, selection: wire.SelectionView, *, key: str) -> None:
    heading(title, by + dm.selection_note(selection))
    if selection.formula:
        st.caption(" ".join(selection.formula.split()))
    if weights := dm.weight_note(selection):
        st.caption(weights)
    if selection.candidates:
        figure = figures.candidates(selection, session.colours())
        live_plot(figure, key=f"{key}_bars", alt=f"{title}: candidates' terms")
        candidate_table(dm.candidate_rows(selection), key=f"{key}_candidates")
    excluded = dm.excluded_rows(selection)
    if excluded:
        heading("Not candidates")
        plain_table(excluded, key=f"{key}_excluded", alt="Excluded nodes by reason")


def _raw(detail: wire.DecisionDetail) -> None:
    with st.expander("The same as text"):
        st.code(detail.explanation, language=None)
    with st.expander("Raw record"):
        text = detail.model_dump_json(indent=2)
        st.download_button(
            "Download JSON", text, file_name=f"decision-{detail.row.id}.json",
            mime="application/json", on_click="ignore",
        )  # fmt: skip
        st.json(text, expanded=1)

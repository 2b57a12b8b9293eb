"""Flow: whose requests go where, from tenant through prefill to decode."""

from __future__ import annotations

import streamlit as st

from core import wire
from dashboard import session
from dashboard.flow import models as fm
from dashboard.flow.forecast import forecast_rows, forecast_words
from dashboard.nodes.acts import records
from dashboard.overview.models import Notice
from dashboard.parts import acting
from dashboard.parts import format as fmt
from dashboard.parts.components import heading, notice
from dashboard.parts.drawn import drawn
from dashboard.parts.kept import MEANWHILE_S, kept
from dashboard.parts.live_plot import live_plot, prepared
from dashboard.parts.page import page, part
from dashboard.parts.shared import shared
from dashboard.parts.tables import select_table

READ_EVERY_S = 8.0


def main(state: wire.FleetState | None = None) -> None:
    """The diagram and its table over the shown window; of a live service, what comes next."""
    _flow()
    if state is not None:
        with part("The forecast"):
            _forecast()


def _forecast() -> None:
    read = acting.control().forecast
    found = kept("forecast", ttl_s=READ_EVERY_S, read=read, meanwhile_s=MEANWHILE_S)
    drawn("forecast", given=(found,), draw=lambda: _what_comes(found))


def _what_comes(found: wire.ForecastView) -> None:
    heading("What comes next", f"expected in {fmt.seconds(found.horizon_s)}")
    st.caption(forecast_words(found))
    if found.enabled and found.series:
        figures = ("Now", "Expected", "Error", "Error of persistence")
        number = st.column_config.NumberColumn(format="%.1f")
        select_table(
            forecast_rows(found), key="forecast_rows", alt="Forecast by model and tenant class",
            given=(found,), columns=dict.fromkeys(figures, number),
        )  # fmt: skip


def _flow() -> None:
    measure = st.session_state.get("measure") or fm.MEASURES[0]
    with part("The flow"):
        window = session.window()
        key = window.span or (window.start, window.end)
        calls = records()
        shares = kept(
            "shares", key, ttl_s=READ_EVERY_S, meanwhile_s=MEANWHILE_S,
            read=lambda: calls.shares(window),
        )  # fmt: skip
        given = (shares, session.colours(), session.zone())
        drawn("flow", measure, given=given, draw=lambda: _diagram(shares, measure))


def _diagram(shares: wire.Shares, measure: str) -> None:
    oldest = shares.covered_from
    since = fmt.moment(oldest, session.zone())[:19] if oldest else ""
    heading("Tenants, prefill nodes, decode nodes", fm.coverage(shares, since))
    if not shares.groups:
        notice(
            Notice(
                "none",
                "No request in this window",
                "Choose a longer range above, or send one to `/v1/chat/completions`.",
            )
        )
        return
    p = session.colours()
    figure = shared(
        "flow", measure, given=(shares, p),
        make=lambda: prepared(fm.sankey(fm.graph(shares, measure), measure, p)),
    )  # fmt: skip
    live_plot(figure, key="flow", alt="Flow of requests from tenants to nodes")
    number = st.column_config.NumberColumn(format="localized")
    names = ("Requests", "Failed", "Limits missed", "Prompt tokens")
    select_table(
        fm.rows(shares), key="flow_rows", alt="Flow by tenant, model and nodes",
        percent=("Reuse",), given=(shares,), columns=dict.fromkeys(names, number),
    )  # fmt: skip


st.segmented_control(
    "Measure", list(fm.MEASURES), default=fm.MEASURES[0], required=True, key="measure",
    bind="query-params",
)  # fmt: skip
page(main, key="flow", history=main)

"""Overview: is the fleet well, and if not, where to look."""

from __future__ import annotations

import streamlit as st

from core import wire
from dashboard import figures, session
from dashboard import view_models as vm
from dashboard.components import heading, notice, problem_list, tile_grid
from dashboard.feed import Look
from dashboard.live_plot import live_plot
from dashboard.page import page
from dashboard.tables import fleet_table, series_table


def overview(state: wire.FleetState) -> None:
    """The page's live part."""
    if (idle := vm.fleet_notice(state)) is not None:
        notice(idle)
    _body(state, _series(session.look()))


def _series(look: Look) -> wire.Series | None:
    window = session.window()
    if window.in_memory:
        return look.live
    return session.feed().past(window)


def _body(state: wire.FleetState, series: wire.Series | None) -> None:
    tile_grid(vm.tiles(state))
    left, right = st.columns([7, 4], gap="medium")
    span = not session.window().in_memory
    with left:
        what = "requests placed a minute" if span else "load"
        heading("Nodes over time", f"{what}, busiest on top, {session.zone_name()}")
        if series is not None:
            _heat(state, series, span=span)
    with right:
        heading("Look at first")
        problem_list(vm.problems(state))
    if series is None:
        st.caption("Reading the stored measurements …")
        return
    _charts(series)
    heading("Fleet", f"{len(state.nodes)} nodes, those that take no requests first")
    fleet_table(state.nodes)
    with st.expander("Numbers behind the charts"):
        series_table(series, session.zone(), session.zone_name())


def _heat(state: wire.FleetState, series: wire.Series, *, span: bool) -> None:
    nodes = [n.id for n in state.nodes]
    figure = figures.load_heat(series, nodes, session.colours(), zone=session.zone(), span=span)
    live_plot(figure, key="heat", alt="Nodes over time")


def _charts(series: wire.Series) -> None:
    p, zone = session.colours(), session.zone()
    columns = st.columns(3, gap="medium")
    with columns[0]:
        heading("Latency against its limit", "observed / limit")
        live_plot(figures.slo_ratio(series, p, zone=zone), key="slo", alt="Latency against limit")
    with columns[1]:
        heading("Cache reuse", "share of prompt tokens")
        live_plot(figures.reuse(series, p, zone=zone), key="reuse", alt="Cache reuse")
    with columns[2]:
        heading("Traffic", "requests per second")
        live_plot(figures.traffic(series, p, zone=zone), key="traffic", alt="Traffic")


page(overview, key="overview")

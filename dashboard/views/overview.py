"""Overview: is the fleet well, and if not, where to look."""

from __future__ import annotations

import streamlit as st

from core import wire
from dashboard import figures, session
from dashboard import format as fmt
from dashboard import view_models as vm
from dashboard.components import heading, notice, problem_list, tile_grid
from dashboard.feed import Look
from dashboard.live_plot import live_plot
from dashboard.tables import fleet_table, series_table


def overview() -> None:
    """The page's live part. Containers come first, so that nothing moves when one fills."""
    top, body = st.container(), st.container()
    look, zone = session.look(), session.zone()
    clock = f"{fmt.clock(look.good_at, zone)} {session.zone_name()}" if look.good_at else ""
    message = None
    if session.live() or look.state is None:
        message = vm.connection_notice(
            look, now=session.now(), clock=clock, url=session.service_url()
        )
    with top:
        if message is not None:
            notice(message)
        elif look.state is not None and (empty := vm.fleet_notice(look.state)) is not None:
            notice(empty)
    if look.state is not None and look.state.nodes:
        with body:
            _body(look.state, _series(look))


def _series(look: Look) -> wire.Series | None:
    chosen = session.chosen_range()
    if chosen == session.LIVE_RANGE:
        return look.live
    return session.feed().past(session.RANGES[chosen])


def _body(state: wire.FleetState, series: wire.Series | None) -> None:
    tile_grid(vm.tiles(state))
    left, right = st.columns([7, 4], gap="medium")
    span = session.chosen_range() != session.LIVE_RANGE
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


st.fragment(overview, run_every=session.refresh_every(), key="overview")()

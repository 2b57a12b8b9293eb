"""Overview: is the fleet well, and if not, where to look."""

from __future__ import annotations

import streamlit as st

from core import wire
from dashboard import session
from dashboard.api.client import ServiceError
from dashboard.api.feed import Look
from dashboard.overview import models as vm
from dashboard.parts import acting, figures
from dashboard.parts.components import heading, notice, problem_list, tile_grid
from dashboard.parts.kept import kept
from dashboard.parts.live_plot import live_plot
from dashboard.parts.marks import Mark, marks
from dashboard.parts.page import page
from dashboard.parts.tables import fleet_table, series_table

ORDERS = ("by load", "by rack")
"""How the rows of the node picture are ordered."""
CHANGES_EVERY_S = 8.0
EVENTS_READ = 400


def overview(state: wire.FleetState) -> None:
    """The page's live part."""
    if (idle := vm.fleet_notice(state)) is not None:
        notice(idle)
    series = _series(session.look())
    tile_grid(vm.tiles(state))
    left, right = st.columns([7, 4], gap="medium")
    with left:
        _nodes(state, series)
    with right:
        heading("Look at first")
        problem_list(vm.problems(state), lambda text: vm.problem_link(text, state))
    if series is None:
        st.caption("Reading the stored measurements …")
        return
    _charts(series)
    heading("Fleet", f"{len(state.nodes)} nodes, those that take no requests first")
    fleet_table(state.nodes)
    with st.expander("Numbers behind the charts"):
        series_table(series, session.zone(), session.zone_name())


def _series(look: Look) -> wire.Series | None:
    window = session.window()
    return look.live if window.in_memory else session.feed().past(window)


def _nodes(state: wire.FleetState, series: wire.Series | None) -> None:
    span = not session.window().in_memory
    order = st.session_state.get("rows") or ORDERS[0]
    what = "requests placed a minute" if span else "load"
    heading("Nodes over time", f"{what}, {order}, {session.zone_name()}")
    st.segmented_control(
        "Order of the nodes", list(ORDERS), default=ORDERS[0], required=True, key="rows",
        bind="query-params", label_visibility="collapsed",
    )  # fmt: skip
    if series is None:
        return
    racks = {n.id: n.place.rack for n in state.nodes} if order == ORDERS[1] else None
    figure = figures.load_heat(
        series, [n.id for n in state.nodes], session.colours(), zone=session.zone(), span=span,
        racks=racks,
    )  # fmt: skip
    live_plot(figure, key="heat", alt="Nodes over time")


def _charts(series: wire.Series) -> None:
    p, zone = session.colours(), session.zone()
    columns = st.columns(3, gap="medium")
    with columns[0]:
        heading("Latency against its limit", "observed / limit; changes are marked")
        figure = figures.slo_ratio(series, p, zone=zone, marks=_changes())
        live_plot(figure, key="slo", alt="Latency against limit")
    with columns[1]:
        heading("Cache reuse", "share of prompt tokens")
        live_plot(figures.reuse(series, p, zone=zone), key="reuse", alt="Cache reuse")
    with columns[2]:
        heading("Traffic", "requests per second")
        live_plot(figures.traffic(series, p, zone=zone), key="traffic", alt="Traffic")


def _changes() -> list[Mark]:
    """What was changed in the shown window; nothing where that cannot be read now."""
    window = session.window()
    key = window.span or (window.start, window.end)
    try:
        found = kept(
            "changes", key, ttl_s=CHANGES_EVERY_S,
            read=lambda: acting.records().history(
                since=window.start, until=window.end, limit=EVENTS_READ
            ),
        )  # fmt: skip
    except ServiceError:
        return []
    return marks(found.events)


def _history() -> None:
    """What stored measurements alone can show."""
    window = session.window()
    series = session.reader().minutes(window.start, window.end)
    if not series.points:
        notice(vm.Notice("none", "Nothing was stored in this window", "Choose a longer one above."))
        return
    _charts(series)
    series_table(series, session.zone(), session.zone_name())


page(overview, key="overview", history=_history)

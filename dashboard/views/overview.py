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
from dashboard.parts.drawn import drawn
from dashboard.parts.kept import MEANWHILE_S, kept
from dashboard.parts.live_plot import Prepared, live_plot, prepared
from dashboard.parts.marks import Mark, marks
from dashboard.parts.page import page
from dashboard.parts.shared import shared
from dashboard.parts.tables import fleet_table, series_table
from dashboard.parts.window import words

CHANGES_EVERY_S = 8.0
EVENTS_READ = 400


def overview(state: wire.FleetState) -> None:
    """The page's live part."""
    series = _series(session.look())
    drawn("tiles", given=(state,), draw=lambda: _tiles(state))
    if not session.window().in_memory:
        st.caption("The tiles are of the last minute, whatever the window.")
    left, right = st.columns([7, 4], gap="medium")
    with left:
        _nodes(state, series)
    with right:
        drawn("problems", given=(state,), draw=lambda: _problems(state))
    if series is None:
        st.caption("Reading the stored measurements …")
    elif series.points:
        _charts(series)
    else:
        _nothing_stored()
    drawn("fleet", given=(state,), draw=lambda: _fleet(state))
    if series is not None and series.points:
        drawn("numbers", given=(series, session.zone()), draw=lambda: _numbers(series))


def _nothing_stored() -> None:
    """Why there are no charts."""
    shown = f"{words(session.window(), session.zone())} {session.zone_name()}"
    title = f"Nothing was measured from {shown}"
    notice(vm.Notice("none", title, "Choose another window above."))


def _tiles(state: wire.FleetState) -> None:
    if (idle := vm.fleet_notice(state)) is not None:
        notice(idle)
    tile_grid(vm.tiles(state))


def _problems(state: wire.FleetState) -> None:
    heading("Look at first")
    problem_list(vm.problems(state), lambda text: vm.problem_link(text, state))


def _fleet(state: wire.FleetState) -> None:
    heading("Fleet", f"{len(state.nodes)} nodes, those that take no requests first")
    fleet_table(state.nodes)


def _numbers(series: wire.Series) -> None:
    with st.expander("Numbers behind the charts"):
        series_table(series, session.zone(), session.zone_name())


def _series(look: Look) -> wire.Series | None:
    window = session.window()
    return look.live if window.in_memory else session.feed().past(window)


def _nodes(state: wire.FleetState, series: wire.Series | None) -> None:
    span = not session.window().in_memory
    order = st.session_state.get("rows") or vm.ORDERS[0]
    what = "requests placed a minute" if span else "load"
    places = tuple((n.id, n.place.rack) for n in state.nodes)
    by_rack = order == vm.ORDERS[1] and any(rack for _, rack in places)
    rows = order if by_rack or order == vm.ORDERS[0] else "by load: no node names its rack"
    heading("Nodes over time", f"{what}; rows {rows}; {session.zone_name()}")
    st.segmented_control(
        "Order of the nodes", list(vm.ORDERS), default=vm.ORDERS[0], required=True, key="rows",
        bind="query-params", label_visibility="collapsed",
    )  # fmt: skip
    if series is None or not series.points:
        return
    p, zone = session.colours(), session.zone()

    def heat() -> Prepared:
        racks = dict(places) if by_rack else None
        nodes = [node for node, _ in places]
        return prepared(figures.load_heat(series, nodes, p, zone=zone, span=span, racks=racks))

    def draw() -> None:
        figure = shared("heat", order, span, places, given=(series, p, zone), make=heat)
        live_plot(figure, key="heat", alt="Nodes over time")

    drawn("heat", order, span, places, given=(series, p, zone), draw=draw)


def _charts(series: wire.Series) -> None:
    changes = _changes()
    given = (series, changes, session.colours(), session.zone())
    drawn("charts", given=given, draw=lambda: _three_charts(series, changes))


def _three_charts(series: wire.Series, changes: wire.EventHistory | None) -> None:
    p, zone = session.colours(), session.zone()
    columns = st.columns(3, gap="medium")
    with columns[0]:
        heading("Latency against its limit", "observed / limit; changes are marked")
        figure = shared(
            "slo", given=(series, changes, p, zone),
            make=lambda: prepared(figures.slo_ratio(series, p, zone=zone, marks=_marks(changes))),
        )  # fmt: skip
        live_plot(figure, key="slo", alt="Latency against limit")
    with columns[1]:
        heading("Cache reuse", "share of prompt tokens")
        figure = shared(
            "reuse", given=(series, p, zone),
            make=lambda: prepared(figures.reuse(series, p, zone=zone)),
        )  # fmt: skip
        live_plot(figure, key="reuse", alt="Cache reuse")
    with columns[2]:
        heading("Traffic", "requests per second")
        figure = shared(
            "traffic", given=(series, p, zone),
            make=lambda: prepared(figures.traffic(series, p, zone=zone)),
        )  # fmt: skip
        live_plot(figure, key="traffic", alt="Traffic")


def _marks(changes: wire.EventHistory | None) -> list[Mark]:
    return marks(changes.events) if changes is not None else []


def _changes() -> wire.EventHistory | None:
    """What was changed in the shown window; nothing where that cannot be read now."""
    window = session.window()
    key = window.span or (window.start, window.end)
    try:
        calls = acting.records()
        return kept(
            "changes", key, ttl_s=CHANGES_EVERY_S, meanwhile_s=MEANWHILE_S,
            read=lambda: calls.history(since=window.start, until=window.end, limit=EVENTS_READ),
        )  # fmt: skip
    except ServiceError:
        return None


def _history() -> None:
    """What stored measurements alone can show."""
    window = session.window()
    key = window.span or (window.start, window.end)
    series = kept(
        "minutes", key, ttl_s=CHANGES_EVERY_S,
        read=lambda: session.reader().minutes(window.start, window.end),
    )  # fmt: skip
    if not series.points:
        _nothing_stored()
        return
    _charts(series)
    series_table(series, session.zone(), session.zone_name())


page(overview, key="overview", history=_history)

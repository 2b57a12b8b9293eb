"""Nodes: the fleet as one dense table, and everything about one node."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from core import wire
from dashboard import session
from dashboard.live import live
from dashboard.nodes import figures as node_figures
from dashboard.nodes import models as node_models
from dashboard.nodes.acts import fleet, node_buttons, records
from dashboard.overview import models as vm
from dashboard.parts import acting
from dashboard.parts import format as fmt
from dashboard.parts.components import bar, heading, notice, tile_grid
from dashboard.parts.drawn import drawn
from dashboard.parts.kept import kept
from dashboard.parts.live_plot import live_plot
from dashboard.parts.page import page, part
from dashboard.parts.tables import (
    SELECT,
    decision_table,
    fleet_table,
    hot_table,
    plain_table,
    time_table,
)

OPEN = "node"
"""Query parameter with the id of the open node."""
READ_EVERY_S = 10.0
DECISIONS_SHOWN = 15


def main() -> None:
    """The open node, or all of them."""
    open_id = st.query_params.get(OPEN)
    if open_id:
        page(lambda state: _node(state, open_id), key="node", live=False, history=_gone(open_id))
    else:
        _filters()
        page(_all, key="nodes")


# -- all nodes ---------------------------------------------------------------------------------


def _filters() -> None:
    acting.told()
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        st.text_input(
            "Find", key="find", bind="query-params", width=260,
            placeholder="id, rack, model, role or note",
        )  # fmt: skip
        st.segmented_control(
            "Show", list(node_models.ONLY), default=node_models.ONLY[0], required=True,
            key="only", bind="query-params",
        )  # fmt: skip


def _all(state: wire.FleetState) -> None:
    if st.query_params.get(OPEN):
        st.rerun()
    text, only = st.session_state.get("find") or "", st.session_state.get("only") or "all"
    nodes = node_models.chosen(state.nodes, text, only)
    total = len(state.nodes)
    shown = f"{len(nodes)} of {total}" if len(nodes) != total else str(total)
    heading("Nodes", f"{shown}; those that take no requests first; {SELECT} to open a node")
    if not nodes:
        notice(vm.Notice("none", "No node matches", "Change the text or the choice above."))
        return
    ids = [n.id for n in vm.fleet_order(nodes)]
    fleet_table(
        nodes, given=state, choice=(text, only), key="nodes_table", most=22,
        on_select=lambda: _selected(ids),
    )  # fmt: skip


def _selected(ids: list[str]) -> None:
    rows = st.session_state["nodes_table"]["selection"]["rows"]
    if rows and rows[0] < len(ids):
        st.query_params[OPEN] = ids[rows[0]]


# -- one node ----------------------------------------------------------------------------------


def _node(state: wire.FleetState, node_id: str) -> None:
    found = node_models.find(state.nodes, node_id)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.button("← All nodes", key="back", on_click=_back)
        if found is not None:
            place = " / ".join(p for p in (found.place.zone, found.place.rack) if p)
            heading(node_id, f"{found.role.value}, {found.engine.value} {place}")
    acting.told()
    if found is None:
        notice(vm.Notice("warn", f"{node_id} is not in the fleet", "It may have been removed."))
        _gone(node_id)()
        return
    node_buttons(found)
    live(lambda: _live(node_id), key="node_live")


def _back() -> None:
    st.query_params.pop(OPEN, None)


def _live(node_id: str) -> None:
    look = session.look()
    n = node_models.find(look.state.nodes, node_id) if look.state else None
    if n is None:
        return
    drawn("tiles", node_id, given=(look.state, session.zone()), draw=lambda: _tiles(n))
    _gauges(node_id, look.live)
    left, right = st.columns([6, 5], gap="medium")
    with left, part("Its prefixes"):
        heading("Hottest prefixes it holds", "as its events say")
        _prefixes(node_id)
    with right:
        drawn("facts", node_id, given=(look.state,), draw=lambda: _facts(n))
        with part("Its cache signal"):
            _signal(node_id)
        with part("Its cost models"):
            _cost(node_id)
    with part("Its decisions"):
        _decisions(node_id)


def _tiles(n: wire.NodeView) -> None:
    if n.drain is not None:
        share, words = node_models.drain_words(n.drain)
        bar(share, words, level="ok" if share >= 1 else "warn")
    if n.note is not None:
        by = f"{n.note.author}, {fmt.moment(n.note.at, session.zone())[:16]}"
        notice(vm.Notice("none", n.note.text, by))
    for warning in n.warnings:
        notice(vm.Notice("warn", warning))
    tile_grid(node_models.node_tiles(n))


def _facts(n: wire.NodeView) -> None:
    heading("What is known of it")
    plain_table(node_models.facts(n), key="facts", alt="What was registered or discovered")


def _gauges(node_id: str, live: wire.Series | None) -> None:
    p, zone, window = session.colours(), session.zone(), session.window()
    columns = st.columns(3, gap="medium")

    def load() -> None:
        heading("Load and placements", "last 5 min, by the scheduler")
        if live is not None:
            figure = node_figures.load_chart(live, node_id, p, zone=zone)
            live_plot(figure, key="node_load", alt=f"Load of {node_id}")

    with columns[0]:
        drawn("load", node_id, given=(live, p, zone), draw=load)
    with part("Its readings"):
        key = window.span or (window.start, window.end)
        found = kept(
            "readings", node_id, key, ttl_s=READ_EVERY_S,
            read=lambda: records().readings(node_id, window),
        )  # fmt: skip
        if not found.points:
            with columns[1]:
                st.caption("The node reported nothing in this range.")
            return
        given = (found, p, zone)
        with columns[1]:
            drawn("kv", node_id, given=given, draw=lambda: _shares(node_id, found))
        with columns[2]:
            drawn("batch", node_id, given=given, draw=lambda: _batch(node_id, found))
        drawn("readings", node_id, given=given, draw=lambda: _numbers(found))


def _shares(node_id: str, found: wire.Readings) -> None:
    heading("Cache", "as the engine reports it")
    figure = node_figures.shares_chart(found, session.colours(), zone=session.zone())
    live_plot(figure, key="node_kv", alt=f"KV use and reuse of {node_id}")


def _batch(node_id: str, found: wire.Readings) -> None:
    heading("Requests on it", "as the engine reports them")
    figure = node_figures.batch_chart(found, session.colours(), zone=session.zone())
    live_plot(figure, key="node_batch", alt=f"Running and waiting requests of {node_id}")


def _numbers(found: wire.Readings) -> None:
    with st.expander("Numbers behind the charts"):
        rows = node_figures.reading_rows(found)
        time_table(
            rows, key="readings", alt="Readings", zone=session.zone(),
            zone_name=session.zone_name(), percent=("KV use", "Reuse"),
        )  # fmt: skip


def _prefixes(node_id: str) -> None:
    found = kept(
        "hot_of", node_id, ttl_s=READ_EVERY_S, read=lambda: fleet().hot(limit=12, node=node_id)
    )

    def draw() -> None:
        if found.prefixes:
            hot_table(node_models.hot_rows(found), key="node_hot")
        else:
            st.caption("None of the prefixes that are asked for lately.")

    drawn("hot", node_id, given=(found,), draw=draw)


def _signal(node_id: str) -> None:
    found = kept("signal", node_id, ttl_s=3.0, read=lambda: fleet().signal(node_id))

    def draw() -> None:
        with st.expander("Cache signal: what its event stream brought and lost"):
            st.caption(node_models.signal_words(found))
            if rows := node_models.signal_rows(found):
                plain_table(rows, key="signal", alt="What its event stream brought and lost")

    drawn("signal", node_id, given=(found,), draw=draw)


def _cost(node_id: str) -> None:
    found = kept("cost", node_id, ttl_s=READ_EVERY_S, read=lambda: fleet().cost(node_id))

    def draw() -> None:
        with st.expander("Cost models: how its times are predicted, and how well"):
            st.caption(
                "Off by: median relative error on requests that nothing was fitted to. A fit is "
                "live only while it is better than the profile."
            )
            rows = node_models.cost_rows(found)
            plain_table(rows, key="cost", alt="How its times are predicted")
            for line in node_models.cost_formulas(found):
                st.caption(line)

    drawn("cost", node_id, given=(found,), draw=draw)


def _decisions(node_id: str) -> None:
    query = wire.DecisionQuery(node=node_id, limit=DECISIONS_SHOWN)
    found = kept("decisions_of", node_id, ttl_s=3.0, read=lambda: session.reader().decisions(query))
    drawn("decisions", node_id, given=(found, session.zone()), draw=lambda: _last(node_id, found))


def _last(node_id: str, found: wire.DecisionPage) -> None:
    heading("Last decisions with it", "as prefill or decode node")
    if not found.rows:
        st.caption("None is stored.")
        return
    decision_table(
        found.rows, key="node_decisions", zone=session.zone(), zone_name=session.zone_name()
    )
    st.page_link("views/decisions.py", label="All its decisions", query_params={"node": node_id})


def _gone(node_id: str) -> Callable[[], None]:
    """What stored records tell of a node that is not there, or while the service is not."""

    def draw() -> None:
        with part("Its decisions"):
            _decisions(node_id)

    return draw


main()

"""Breaker: which breakers are open and why, what the hotspot detector sees, and the switches."""

from __future__ import annotations

from datetime import datetime

import pandas as pd  # type: ignore[import-untyped]
import streamlit as st

from core import wire
from dashboard import session
from dashboard.api.client import ServiceError
from dashboard.breaker import models as bm
from dashboard.breaker.acts import breaker_dialog
from dashboard.live import live
from dashboard.overview.models import Notice
from dashboard.parts import acting
from dashboard.parts.components import heading, notice, tile_grid
from dashboard.parts.drawn import drawn
from dashboard.parts.format import NONE
from dashboard.parts.kept import kept
from dashboard.parts.live_plot import live_plot
from dashboard.parts.page import act, failure_notice, page, part
from dashboard.parts.tables import ROW_PX, data_table, plain_table, table_height
from dashboard.parts.window import words

PAGE_SIZE = 50
THRESHOLDS_EVERY_S = 8.0
DETECTOR_EVERY_S = 1.0


def main(state: wire.FleetState) -> None:
    """Acts on top, then what is live, then the thresholds and the history."""
    acting.looking_only()
    acting.told()
    _acts(state)
    live(_live, key="breakers")
    with part("The history"):
        _history()


def _acts(state: wire.FleetState) -> None:
    nodes = [n.id for n in state.nodes]
    out = next((n.id for n in state.nodes if n.breaker.state != "closed"), bm.GLOBAL)
    shut = state.breaker.state != "closed"
    with st.container(horizontal=True, gap="small"):
        if act("Trip …", key="breaker_trip"):
            breaker_dialog(nodes, bm.GLOBAL, "trip")
        if act("Reset …", key="breaker_reset"):
            breaker_dialog(nodes, bm.GLOBAL if shut else out, "reset")
        if act("Hold …", key="breaker_hold"):
            breaker_dialog(nodes, bm.GLOBAL, "hold")


def _live() -> None:
    look = session.look()
    if look.state is None:
        return
    state = look.state
    drawn("tiles", given=(state,), draw=lambda: _tiles(state))
    try:
        found = kept("hotspots", ttl_s=DETECTOR_EVERY_S, read=lambda: acting.control().hotspots())
    except ServiceError as e:
        notice(failure_notice("The detector", e))
    else:
        drawn("detector", given=(found, session.colours()), draw=lambda: _detector(found))
    left, right = st.columns([7, 5], gap="medium")
    with left:
        drawn("nodes", given=(state,), draw=lambda: _nodes(state))
    with right, part("Thresholds"):
        limits = kept(
            "tunables", ttl_s=THRESHOLDS_EVERY_S, read=lambda: acting.control().tunables()
        )
        drawn("thresholds", given=(limits,), draw=lambda: _thresholds(limits))


def _tiles(state: wire.FleetState) -> None:
    tile_grid([bm.breaker_tile(state.breaker), *bm.node_tiles(state)])
    heading("Hotspot detector", "what opens the global breaker")


def _thresholds(found: wire.TunablesView) -> None:
    heading("Thresholds in force", "change them on the Tuning page")
    rows = bm.rule_rows(found.items)
    plain_table(rows, key="thresholds", alt="Thresholds of breakers and detector")


def _nodes(state: wire.FleetState) -> None:
    heading("Node breakers", "those that are not closed first")
    if state.nodes:
        plain_table(bm.node_rows(state.nodes), key="node_breakers", alt="Breaker of every node")
    else:
        st.caption("No node is registered.")


def _detector(found: wire.HotspotView) -> None:
    level, said = bm.detector_words(found)
    notice(Notice(level, said))
    if not found.enabled:
        st.page_link(
            "views/tuning.py", label="Draft a change that switches it on",
            query_params={"draft": "hotspot.enabled:true", "group": "hotspot"},
        )  # fmt: skip
    if not found.groups:
        return
    live_plot(
        bm.group_figure(found, session.colours()), key="groups",
        alt="Share of requests by prefix group against its holders' share of the nodes",
    )  # fmt: skip
    with st.expander("Numbers behind the chart"):
        plain_table(bm.group_rows(found), key="group_rows", alt="Prefix groups")


def _history() -> None:
    heading("Transitions", f"newest first, {session.zone_name()}")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        kind = st.selectbox(
            "Machine", list(bm.MACHINES), key="machine", bind="query-params", width=200
        )
        if st.button("Refresh", key="transitions_refresh"):
            st.rerun()
    shown = session.window()
    events = _events(str(kind), shown.start, shown.end)
    if not events:
        looked_at = f"{words(shown, session.zone())} {session.zone_name()}"
        text = f"Looked at {looked_at}; choose a longer range above."
        notice(Notice("none", "No transition in this range", text))
        return
    frame = pd.DataFrame(bm.transition_rows(events))
    frame["Time"] = pd.to_datetime(frame["Time"], utc=True).dt.tz_convert(session.zone())
    data_table(
        frame, key="transitions", hide_index=True, row_height=ROW_PX, placeholder=NONE,
        height=table_height(len(frame)), alt="Transitions, newest first",
        column_config={
            "Time": st.column_config.DatetimeColumn(
                f"Time ({session.zone_name()})", format="YYYY-MM-DD HH:mm:ss"
            ),
            "Evidence": st.column_config.TextColumn(width="large"),
        },
    )  # fmt: skip


def _events(kind: str, start: datetime, end: datetime) -> list[wire.EventView]:
    """Of one machine, or of all that this page is about."""
    calls = acting.records()
    kinds = [bm.MACHINES[kind]] if bm.MACHINES[kind] else [k for k in bm.MACHINES.values() if k]
    found = [
        e
        for k in kinds
        for e in calls.history(kind=k, since=start, until=end, limit=PAGE_SIZE).events
    ]
    return sorted(found, key=lambda e: e.at, reverse=True)[:PAGE_SIZE]


page(main, key="breaker", empty=None, live=False)

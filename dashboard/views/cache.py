"""Cache: which prefixes the fleet holds, how often, and what moves."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from core import wire
from dashboard import session
from dashboard.cache import figures as cache_figures
from dashboard.cache import models as cm
from dashboard.cache.acts import cancel_dialog
from dashboard.cache.prefix_detail import show_prefix
from dashboard.cache.tree import tree_view
from dashboard.live import live
from dashboard.nodes.acts import fleet
from dashboard.nodes.models import hot_rows
from dashboard.overview.models import Notice
from dashboard.parts import acting
from dashboard.parts.components import heading, notice
from dashboard.parts.drawn import drawn
from dashboard.parts.kept import kept
from dashboard.parts.live_plot import live_plot
from dashboard.parts.page import act, page, part
from dashboard.parts.tables import hot_table, migration_table, time_table

VIEWS = ("Tree", "Hot prefixes", "Replication", "Migrations")
OPEN = "prefix"
"""Query parameter with the key of the open hot prefix."""
HOT_SHOWN = 50
HOT_EVERY_S = 4.0


def main() -> None:
    """The chosen view."""
    view = st.segmented_control(
        "View", list(VIEWS), default=VIEWS[0], required=True, key="view", bind="query-params",
        label_visibility="collapsed",
    )  # fmt: skip
    acting.told()
    body = {
        VIEWS[0]: tree_view,
        VIEWS[1]: _hot,
        VIEWS[2]: _following(_replication, "replication"),
        VIEWS[3]: _migrations,
    }[view or VIEWS[0]]
    page(body, key="cache", live=False)


def _following(draw: Callable[[], None], key: str) -> Callable[[wire.FleetState], None]:
    def run(_: wire.FleetState) -> None:
        live(draw, key=key)

    return run


def _found() -> wire.HotPrefixes:
    return kept("hot", ttl_s=HOT_EVERY_S, read=lambda: fleet().hot(limit=HOT_SHOWN))


# -- hot prefixes ------------------------------------------------------------------------------


def _hot(state: wire.FleetState) -> None:
    live(_hot_list, key="hot")
    opened = cm.key_of(st.query_params.get(OPEN, ""))
    if opened is not None:
        st.divider()
        show_prefix(state, opened)


def _hot_list() -> None:
    with part("Hot prefixes"):
        found = _found()
        heading("Hot prefixes", "most asked for first; select a row to see its replicas")
        if not found.prefixes:
            notice(Notice("none", "No prefix was asked for lately", "Rates fade within minutes."))
            return
        keys = [prefix.key for prefix in found.prefixes]
        before = st.query_params.get(OPEN)
        hot_table(hot_rows(found), key="hot_rows", on_select=lambda: _opened(keys))
        if st.query_params.get(OPEN) != before or st.session_state.pop("hot_opened", False):
            st.rerun()


def _opened(keys: list[str]) -> None:
    rows = st.session_state["hot_rows"]["selection"]["rows"]
    if rows and rows[0] < len(keys):
        st.query_params[OPEN] = keys[rows[0]]
    else:
        st.query_params.pop(OPEN, None)
    st.session_state["hot_opened"] = True


# -- replication -------------------------------------------------------------------------------


def _replication() -> None:
    with part("Replication"):
        found = kept("replication", ttl_s=HOT_EVERY_S, read=lambda: fleet().replication())
        hot = _found()
        given = (found, hot, session.colours(), session.zone())
        drawn("replication", given=given, draw=lambda: _replicas(found, hot))


def _replicas(found: wire.Replication, hot: wire.HotPrefixes) -> None:
    p, zone = session.colours(), session.zone()
    left, right = st.columns([7, 5], gap="medium")
    with left:
        heading("Replication over time", "kept since the service started, a day at most")
        live_plot(
            cache_figures.replication(found, p, zone=zone), key="replicas_over_time",
            alt="Copies of a block and distinct blocks over time",
        )  # fmt: skip
    with right:
        heading("Replicas of the hot prefixes", "now")
        live_plot(
            cache_figures.holders_chart(hot, p), key="replicas_of_hot",
            alt="Hot prefixes by the number of nodes that hold them",
        )  # fmt: skip
    with st.expander("Numbers behind the charts"):
        time_table(
            cache_figures.replication_rows(found), key="replication_rows",
            alt="Replication over time", zone=zone, zone_name=session.zone_name(),
        )  # fmt: skip


# -- migrations --------------------------------------------------------------------------------


def _migrations(_: wire.FleetState) -> None:
    with part("Migrations"):
        found = fleet().migrations()
        level = "ok" if found.mode == "on" else "none"
        totals = found.totals
        notice(
            Notice(
                level,  # type: ignore[arg-type]
                cm.MODE_WORDS[found.mode],
                f"Since the start: {totals.done} done, {totals.failed} failed, "
                f"{totals.cancelled} given up, {totals.moved_tokens:,} tokens moved, "
                f"{totals.computed_tokens:,} computed anew. It is set on the Tuning page.",
            )
        )
        _moves(found)
    if st.button("Refresh", key="moves_again"):
        st.rerun()


def _moves(found: wire.MigrationList) -> None:
    under_way = [*found.running, *found.planned]
    heading("Planned and running", cm.held_back_words(found.held_back))
    if under_way:
        chosen = migration_table(cm.migration_rows(under_way), key="moves", choose=True)
        move = under_way[chosen] if chosen is not None and chosen < len(under_way) else None
        why_not = "Select a row first." if move is None else ""
        if move is not None and not move.id:
            why_not = "A dry run starts nothing that could be given up."
        if act("Give up …", key="move_cancel", why_not=why_not) and move is not None:
            cancel_dialog(move)
    else:
        st.caption("None.")
    heading("Ended", "newest first")
    if found.ended:
        migration_table(cm.migration_rows(found.ended), key="moved")
    else:
        st.caption("None so far.")


main()

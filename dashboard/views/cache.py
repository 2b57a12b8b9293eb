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
from dashboard.nodes.acts import fleet, records
from dashboard.nodes.models import hot_rows
from dashboard.overview.models import Notice, not_used
from dashboard.parts import acting
from dashboard.parts.components import heading, notice
from dashboard.parts.drawn import drawn
from dashboard.parts.kept import kept
from dashboard.parts.live_plot import live_plot
from dashboard.parts.page import act, page, part
from dashboard.parts.tables import SELECT, hot_table, migration_table, time_table
from dashboard.parts.window import words

OPEN = "prefix"
"""Query parameter with the key of the open hot prefix."""
HOT_SHOWN = 50
HOT_EVERY_S = 4.0
MOVES_EVERY_S = 1.0


def main() -> None:
    """The chosen view."""
    view = st.segmented_control(
        "View", list(cm.VIEWS), default=cm.VIEWS[0], required=True, key="view", bind="query-params",
        label_visibility="collapsed",
    )  # fmt: skip
    acting.told()
    body = {
        cm.VIEWS[0]: tree_view,
        cm.VIEWS[1]: _hot,
        cm.VIEWS[2]: _following(_replication, "replication"),
        cm.VIEWS[3]: _following(_migrations, "migrations"),
    }[view or cm.VIEWS[0]]
    page(body, key="cache", live=False, history=_history)


def _following(draw: Callable[[], None], key: str) -> Callable[[wire.FleetState], None]:
    def run(_: wire.FleetState) -> None:
        live(draw, key=key)

    return run


def _found() -> wire.HotPrefixes:
    return kept("hot", ttl_s=HOT_EVERY_S, read=lambda: fleet().hot(limit=HOT_SHOWN))


# -- hot prefixes ------------------------------------------------------------------------------


def _hot(state: wire.FleetState) -> None:
    live(_hot_list, key="hot")
    given = st.query_params.get(OPEN, "")
    opened = cm.key_of(given)
    if opened is not None:
        st.divider()
        show_prefix(state, opened)
    elif given:
        notice(not_used(OPEN, given, cm.KEY_WORDS))


def _hot_list() -> None:
    with part("Hot prefixes"):
        found = _found()
        heading("Hot prefixes", f"most asked for first; {SELECT} to see its replicas")
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
    with part("Replication over time"):
        window = session.window()
        key = window.span or (window.start, window.end)
        found = kept(
            "replication", key, ttl_s=HOT_EVERY_S, read=lambda: records().replication(window)
        )
        hot = _found()
        given = (found, hot, session.colours(), session.zone())
        drawn("replication", given=given, draw=lambda: _replicas(found, hot))


def _replicas(found: wire.Replication, hot: wire.HotPrefixes) -> None:
    left, right = st.columns([7, 5], gap="medium")
    with left:
        _over_time(found)
    with right:
        heading("Replicas of the hot prefixes", "now")
        live_plot(
            cache_figures.holders_chart(hot, session.colours()), key="replicas_of_hot",
            alt="Hot prefixes by the number of nodes that hold them",
        )  # fmt: skip


def _over_time(found: wire.Replication) -> None:
    """Copies and blocks in the shown window."""
    zone = session.zone()
    heading("Replication over time", cm.replication_words(found))
    if not found.points:
        shown = f"{words(session.window(), zone)} {session.zone_name()}"
        notice(Notice("none", f"No sample from {shown}", "Choose a longer range above."))
        return
    live_plot(
        cache_figures.replication(found, session.colours(), zone=zone), key="replicas_over_time",
        alt="Copies of a block and distinct blocks over time",
    )  # fmt: skip
    with st.expander("Numbers behind the chart"):
        time_table(
            cache_figures.replication_rows(found), key="replication_rows",
            alt="Replication over time", zone=zone, zone_name=session.zone_name(),
        )  # fmt: skip


def _history() -> None:
    """What the records tell while the service does not answer, whichever view is chosen."""
    _over_time(records().replication(session.window()))
    st.caption("The tree, hot prefixes and migrations are the running service's alone.")


# -- migrations --------------------------------------------------------------------------------


def _migrations() -> None:
    with part("Migrations"):
        found = kept("migrations", ttl_s=MOVES_EVERY_S, read=lambda: fleet().migrations())
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


def _moves(found: wire.MigrationList) -> None:
    under_way = [*found.running, *found.planned]
    heading("Planned and running", cm.held_back_words(found.held_back))
    if under_way:
        move = _chosen(under_way, "moves")
        why_not = "Select a row first." if move is None else ""
        if move is not None and not move.id:
            why_not = "A dry run starts nothing that could be given up."
        if act("Give up …", key="move_cancel", why_not=why_not) and move is not None:
            cancel_dialog(move)
    else:
        st.caption("None.")
    heading("Ended", f"newest first; times in {session.zone_name()}")
    if not found.ended:
        st.caption("None so far.")
        return
    ended, state = _chosen(found.ended, "moved"), session.look().state
    if ended is None:
        st.caption(f"{SELECT.capitalize()} to see who holds the prefix now.")
    elif state is not None:
        show_prefix(state, ended.prefix)


def _chosen(moves: list[wire.MigrationView], key: str) -> wire.MigrationView | None:
    """The move whose row is selected. A row stands for another move where the list has changed, so
    that nothing is selected then."""
    rows = cm.migration_rows(moves, session.zone())
    same = hash(tuple((m.id, m.prefix, m.target) for m in moves))
    chosen = migration_table(rows, key=f"{key}-{same}", choose=True)
    return moves[chosen] if chosen is not None and chosen < len(moves) else None


main()

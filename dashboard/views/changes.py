"""Changes: revisions, administrative acts and transitions on one time line."""

from __future__ import annotations

import pandas as pd  # type: ignore[import-untyped]
import streamlit as st

from core import wire
from dashboard import session
from dashboard.api.client import ServiceError
from dashboard.changes import models as cm
from dashboard.overview.models import Notice
from dashboard.parts import acting
from dashboard.parts.components import heading, notice
from dashboard.parts.format import NONE
from dashboard.parts.live_plot import live_plot
from dashboard.parts.page import failure_notice, page
from dashboard.parts.tables import ROW_PX, data_table, plain_table, table_height
from dashboard.parts.window import words
from dashboard.tuning.models import change_rows as pair_rows

PAGE_SIZE = 200
EVENT = "event"
"""Query parameter with the id of the open event."""


def main(_state: wire.FleetState | None) -> None:
    """Filters, the time line, the table, and one event in full."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        lane = st.selectbox("Lane", [cm.ALL, *cm.LANES], key="lane", bind="query-params", width=180)
        node = st.text_input("Node", key="change_node", bind="query-params", width=150)
        by = st.text_input("By", key="by", bind="query-params", width=150)
        text = st.text_input("Holds", key="holds", bind="query-params", width=200,
                             placeholder="reason, parameter, cause")  # fmt: skip
        st.button("Refresh", key="changes_refresh")
    try:
        events, more = _read(str(lane), node.strip())
    except ServiceError as e:
        notice(failure_notice("The history", e))
        return
    shown = cm.matching(events, by=by, text=text)
    if not shown:
        window = words(session.window(), session.zone())
        why = f"Looked at {window} {session.zone_name()}; choose a longer range above."
        notice(Notice("none", "Nothing changed that matches", why))
        if wanted := st.query_params.get(EVENT):
            _wanted(wanted, [])
        return
    heading("Time line", "filled: somebody did it; open: it moved by itself")
    figure = cm.timeline(shown, session.colours(), zone=session.zone())
    live_plot(figure, key="timeline", alt="Changes over time by lane")
    _table(shown, more=more)


def _read(lane: str, node: str) -> tuple[list[wire.EventView], bool]:
    """Events of the window, newest first, and whether older ones of it were left out."""
    window, calls = session.window(), acting.records()
    found: list[wire.EventView] = []
    more = False
    for kind in cm.kinds_of(lane) or [""]:
        part = calls.history(
            kind=kind, node=node, since=window.start, until=window.end, limit=PAGE_SIZE
        )
        found += part.events
        more = more or part.more
    return sorted(found, key=lambda e: (e.at, e.id), reverse=True)[:PAGE_SIZE], more


def _table(shown: list[wire.EventView], *, more: bool) -> None:
    frame = pd.DataFrame(cm.change_rows(shown))
    frame["Time"] = pd.to_datetime(frame["Time"], utc=True).dt.tz_convert(session.zone())
    rest = f"the newest {len(shown)}; narrow the range for older ones" if more else str(len(shown))
    heading("Changes", f"{rest}, {session.zone_name()}")
    chosen = data_table(
        frame, key="changes", hide_index=True, row_height=ROW_PX, placeholder=NONE,
        height=table_height(len(frame)), on_select="rerun", selection_mode="single-row",
        alt="Changes, newest first",
        column_config={
            "Time": st.column_config.DatetimeColumn(
                f"Time ({session.zone_name()})", format="YYYY-MM-DD HH:mm:ss"
            ),
            "Reason": st.column_config.TextColumn(width="medium"),
            "Details": st.column_config.TextColumn(width="large"),
        },
    )  # fmt: skip
    rows = chosen["selection"]["rows"]
    wanted = st.query_params.get(EVENT)
    if rows:
        _one(shown[rows[0]])
    elif wanted:
        _wanted(wanted, shown)


def _wanted(id: str, shown: list[wire.EventView]) -> None:
    """The event that the address names, if it is among those that are shown."""
    found = next((e for e in shown if e.id == id), None)
    if found is not None:
        _one(found)
        return
    why = "It is none of those above: the range or the filters leave it out, or it never was."
    notice(Notice("warn", f"Not shown: event={id}", why))


def _one(e: wire.EventView) -> None:
    heading(cm.sentence(e), f"{cm.who(e) or 'by itself'} · {e.kind}")
    reason = str(e.data.get("reason", ""))
    if reason:
        st.write(reason)
    changes = e.data.get("changes")
    if isinstance(changes, dict) and changes:
        pairs = {p: v if isinstance(v, list) and len(v) == 2 else [None, v]
                 for p, v in changes.items()}  # fmt: skip
        plain_table(pair_rows(pairs, "Before", "After"), key="event_changes", alt="What changed")
    revision = e.data.get("revision")
    with st.container(horizontal=True, gap="small"):
        if isinstance(revision, int):
            st.page_link(
                "views/tuning.py", label="Before and after, roll back",
                query_params={"revision": str(revision)},
            )  # fmt: skip
            st.page_link(
                "views/decisions.py", label="Decisions under it",
                query_params={"rev": str(revision)},
            )  # fmt: skip
        if e.node:
            st.page_link(
                "views/decisions.py", label=f"Decisions for {e.node}",
                query_params={"node": e.node},
            )  # fmt: skip
    with st.expander("The event as it is stored"):
        st.json(e.model_dump(mode="json"))


page(main, key="changes", empty=None, history=lambda: main(None), live=False)

"""Revisions on the Tuning page: the list, one of them in full, before and after, roll back."""

from __future__ import annotations

from datetime import timedelta

import pandas as pd  # type: ignore[import-untyped]
import streamlit as st

from core import wire
from dashboard import session
from dashboard.api.client import ServiceError
from dashboard.overview.models import Notice, not_used
from dashboard.parts import acting
from dashboard.parts.components import heading, notice
from dashboard.parts.format import NONE
from dashboard.parts.live_plot import live_plot
from dashboard.parts.page import act, part
from dashboard.parts.tables import ROW_PX, SELECT, data_table, plain_table, table_height
from dashboard.tuning import figures as tuning_figures
from dashboard.tuning import models as tm
from dashboard.tuning.draft import NUMBER_CHARS_MAX, adopted, word
from dashboard.tuning.editor import keep

AROUND = timedelta(minutes=20)
"""How much before and after a change is compared."""
FRESH = timedelta(minutes=4)
"""A younger change is compared in the five-second steps in memory."""


def revisions(found: wire.RevisionList) -> None:
    """The table; a selected row opens below it."""
    frame = pd.DataFrame(tm.revision_rows(found))
    frame["Time"] = pd.to_datetime(frame["Time"], utc=True).dt.tz_convert(session.zone())
    chosen = data_table(
        frame, key="revisions", hide_index=True, row_height=ROW_PX, placeholder=NONE,
        height=table_height(len(frame), most=8), on_select="rerun", selection_mode="single-row",
        alt="Revisions, newest first",
        column_config={
            "Time": st.column_config.DatetimeColumn(
                f"Time ({session.zone_name()})", format="YYYY-MM-DD HH:mm:ss"
            ),
            "Changes": st.column_config.TextColumn(width="large"),
        },
    )  # fmt: skip
    rows = chosen["selection"]["rows"]
    number = st.query_params.get("revision", "")
    if rows:
        _one(found.revisions[rows[0]], found)
    elif number.isdecimal() and len(number) < NUMBER_CHARS_MAX:
        wanted = [r for r in found.revisions if r.revision == int(number)]
        if wanted:
            _one(wanted[0], found)
        else:
            why = "Older ones, and whether it ever was: `conductor revisions`."
            notice(Notice("warn", f"Revision {number} is not among those above", why))
    elif number:
        notice(not_used("revision", number, "a whole number"))
    else:
        st.caption(
            f"{SELECT[0].upper()}{SELECT[1:]} to compare before and after, and to roll back."
        )


def _one(r: wire.FullRevision, found: wire.RevisionList) -> None:
    heading(f"Revision {r.revision}", f"{tm.KIND.get(r.kind, r.kind)}, made from {r.base}")
    left, right = st.columns([5, 6], gap="medium")
    with left:
        if r.changes:
            rows = tm.change_rows(r.changes, "Before", "After")
            plain_table(rows, key="revision_changes", alt="What this revision changed")
        _roll_back(r, found)
    with right, part("The comparison"):
        _around(r, found)


def _roll_back(r: wire.FullRevision, found: wire.RevisionList) -> None:
    if r.revision == found.live:
        st.caption("This revision is live.")
        older = next((o for o in found.revisions if o.revision == r.base), None)
        if older is not None and act("Roll back to the one before", key="back_one"):
            roll_back_dialog(older, found.live)
        return
    if r.kind == "canary":
        st.caption("A canary never was live; review and apply its values as a draft.")
        if act("Put its values into a draft", key="draft_revision"):
            keep(adopted(r.changes, found.live))
            st.rerun()
        return
    if act(f"Roll back to revision {r.revision}", key="back_to"):
        roll_back_dialog(r, found.live)


@st.dialog("Roll back", width="large")
def roll_back_dialog(target: wire.FullRevision, live: int) -> None:
    """Diff against the live revision, a reason, and the act; a roll-back is a new revision."""
    try:
        changes = acting.control().diff(target.revision).changes
    except ServiceError as e:
        notice(Notice("bad", "The difference cannot be read", str(e)))
        return
    st.write(f"The values of revision {target.revision} become live again, as a new revision.")
    rows: list[dict[str, object]] = [
        {"Parameter": p, f"Live ({live})": word(v[1]), "After": word(v[0])}
        for p, v in changes.items()
    ]
    if not rows:
        notice(Notice("none", "Nothing to do", "These values are live already."))
        return
    plain_table(rows, key="rollback_diff", alt="What the roll-back changes")
    form = acting.Form()
    reason = form.reason("rollback_reason")
    if form.go("Roll back", key="rollback_do"):
        asked = wire.RollbackAsk(
            to=target.revision, base=live, reason=reason, author=acting.author()
        )  # fmt: skip
        done = f"The values of revision {target.revision} are live again"
        acting.carry_out(lambda: acting.control().roll_back(asked), done)


def _around(r: wire.FullRevision, found: wire.RevisionList) -> None:
    if r.kind in ("canary", "start"):
        return
    later = [o.at for o in found.revisions if o.at > r.at and o.kind != "canary"]
    now = session.now()
    end = min([*later, r.at + AROUND, now])
    client = session.reader()
    fresh = now - r.at < FRESH
    series = client.live_series() if fresh else client.minutes(r.at - AROUND, end)
    st.caption(
        f"Medians of the {series.step_s:.0f}-second steps before and after the change"
        + (", until the next one" if later and end == min(later) else "")
    )
    rows = tm.comparison_rows(series, r.at)
    plain_table(rows, key="around", alt="Measured before and after the revision")
    figure = tuning_figures.around(series, r.at, session.colours(), zone=session.zone())
    live_plot(figure, key="around_plot", alt=f"Latency around revision {r.revision}")

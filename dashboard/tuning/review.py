"""The dialog before a change: diff, what may go wrong, when, why, and the typed word."""

from __future__ import annotations

from datetime import datetime, timedelta

import streamlit as st

from core import wire
from dashboard import session
from dashboard.api.client import Refused, ServiceError
from dashboard.overview.models import Notice
from dashboard.parts import acting
from dashboard.parts import format as fmt
from dashboard.parts.components import notice
from dashboard.parts.kept import forget
from dashboard.parts.tables import plain_table
from dashboard.tuning import draft as dr
from dashboard.tuning.draft import Draft
from dashboard.tuning.editor import keep

STALE = "tuning_stale"
"""The refusal of a draft made from a revision that is not live any more."""
WAYS = ("Now", "At a time", "Canary", "Shadow")
_SAYS = {
    "Now": "The next decision is made under it.",
    "At a time": "The service applies it by itself, unless one of these values changes before.",
    "Canary": "A share of the sessions is decided under it; compare, then apply or stop.",
    "Shadow": "It scores live traffic and routes nothing.",
}
_LABELS = {
    "Now": "Apply",
    "At a time": "Apply at that time",
    "Canary": "Start the canary",
    "Shadow": "Start the shadow",
}


@st.dialog("Review the change", width="large")
def review(draft: Draft, view: wire.TunablesView) -> None:
    """Show the diff and do what the reader chooses."""
    plain_table(dr.diff_rows(draft, view.items), key="review_diff", alt="Live against draft")
    for text in dr.dangers(draft):
        notice(Notice("warn", "Careful", text))
    way = st.segmented_control("When", WAYS, default="Now", required=True, key="review_way")
    st.caption(_SAYS[str(way)])
    untried = dr.not_tried(draft) if way in ("Canary", "Shadow") else []
    if untried:
        names = ", ".join(f"`{p}`" for p in untried)
        text = f"{names} hold for the whole fleet. Apply them now or at a time."
        notice(Notice("bad", "Cannot be tried beside the live values", text))
    form = acting.Form()
    at, until = _times(str(way), form)
    share = 0.1
    if way == "Canary":
        percent = st.slider("Share of the sessions, percent", 1, 50, 10, key="review_share")
        share = percent / 100
    reason = form.reason("review_reason")
    if dr.dangers(draft) and way != "Shadow":
        form.typed(dr.CONFIRM, "review_word")
    form.need(not untried, "When: choose now or at a time.")
    if form.go(_LABELS[str(way)], key="review_apply"):
        _do(draft, str(way), reason, at=at, until=until, share=share)


def _times(way: str, form: acting.Form) -> tuple[datetime | None, datetime | None]:
    """(when to apply, when to take back); None where not asked or not given."""
    zone, now = session.zone(), session.now()
    local = now.astimezone(zone).replace(tzinfo=None, second=0, microsecond=0)
    at = until = None
    if way == "At a time":
        chosen = st.datetime_input(
            f"Apply at ({session.zone_name()})",
            value=local + timedelta(minutes=30),
            key="review_at",
        )
        at = chosen.replace(tzinfo=zone) if chosen else None
        form.need(at is not None and at > now, "Apply at: a time that is still to come.")
    if way in ("Now", "At a time") and st.toggle("Take it back by itself", key="review_ends"):
        ends = st.datetime_input(
            f"Take back at ({session.zone_name()})", value=local + timedelta(hours=2),
            key="review_until",
        )  # fmt: skip
        until = ends.replace(tzinfo=zone) if ends else None
        first = at or now
        form.need(until is not None and until > first, "Take back at: a time after it is applied.")
    return at, until


def _do(
    draft: Draft,
    way: str,
    reason: str,
    *,
    at: datetime | None,
    until: datetime | None,
    share: float,
) -> None:
    calls, changes, author = acting.control(), dict(draft.changes), acting.author()
    try:
        if way == "Now":
            asked = wire.RevisionAsk(
                changes=changes, base=draft.base, reason=reason, author=author, until=until
            )
            made = calls.apply(asked)
            ends = fmt.moment(until, session.zone())[:16] if until else ""
            text = f"It is taken back at {ends} ({session.zone_name()})." if ends else ""
            acting.tell("ok", f"Revision {made.revision} is live", text)
            keep(Draft(made.revision))
        elif way == "At a time":
            assert at is not None, "checked before the button is enabled"
            planned = calls.schedule(
                wire.ScheduleAsk(changes=changes, at=at, until=until, reason=reason, author=author)
            )
            acting.tell("ok", "Scheduled", f"It waits as `{planned.id}` and can be called off.")
            keep(Draft(draft.base))
        elif way == "Canary":
            run = calls.start_canary(
                wire.CanaryAsk(changes=changes, share=share, reason=reason, author=author)
            )
            acting.tell("ok", f"The canary runs as revision {run.revision}", "The draft is kept.")
        else:
            calls.start_shadow(wire.TrialAsk(changes=changes, reason=reason, author=author))
            acting.tell("ok", "The shadow runs", "The draft is kept.")
    except Refused as e:
        if e.stale is None:
            notice(Notice("bad", acting.refusal_title(e), f"{e}. The draft is kept."))
            return
        st.session_state[STALE] = e.stale  # told on the page, with both diffs
    except ServiceError as e:
        why = f"{e}. Look at the revisions before you try again."
        notice(Notice("bad", "No answer", why))
        return
    forget()
    st.rerun()


def conflict(draft: Draft, view: wire.TunablesView) -> None:
    """Both diffs, where somebody was faster; the draft stays."""
    stale: wire.StaleDetail | None = st.session_state.get(STALE)
    if stale is None and draft and draft.base != view.revision:
        notice(
            Notice(
                "warn",
                f"Revision {view.revision} became live since the draft was begun",
                f"The draft was made from revision {draft.base}. The diff below is against what "
                "is live now; put the draft on it, or discard it.",
            )
        )
    elif stale is not None:
        notice(
            Notice(
                "bad",
                "Somebody was faster: nothing was applied",
                f"Revision {stale.live} is live; your draft, made from {stale.base}, is kept.",
            )
        )
        plain_table(dr.conflict_rows(stale), key="conflict", alt="Both changes side by side")
    else:
        return
    with st.container(horizontal=True):
        st.button(f"Put my draft on revision {view.revision}", key="rebase", type="primary",
                  on_click=_rebase, args=(draft, view))  # fmt: skip
        st.button("Discard my draft", key="conflict_discard", on_click=_drop, args=(view.revision,))


def _rebase(draft: Draft, view: wire.TunablesView) -> None:
    st.session_state.pop(STALE, None)
    keep(dr.rebased(draft, view.revision, view.items))


def _drop(live: int) -> None:
    st.session_state.pop(STALE, None)
    keep(Draft(live))

"""What runs beside the live parameters: guard, canary, shadow, and changes that wait."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from core import wire
from dashboard import session
from dashboard.api.client import ServiceError
from dashboard.parts import acting
from dashboard.parts import format as fmt
from dashboard.parts.components import badge, heading, notice, strip
from dashboard.parts.kept import kept
from dashboard.parts.page import act, failure_notice
from dashboard.parts.tables import plain_table
from dashboard.tuning import models as tm
from dashboard.tuning.draft import adopted
from dashboard.tuning.editor import keep

READ_EVERY_S = 1.5


def trials() -> None:
    """The live part: guard, canary, shadow."""
    calls = acting.control()
    try:
        guard = kept("guard", ttl_s=READ_EVERY_S, read=calls.guard)
        canary = kept("canary", ttl_s=READ_EVERY_S, read=calls.canary)
        shadow = kept("shadow", ttl_s=READ_EVERY_S, read=calls.shadow)
    except ServiceError as e:
        notice(failure_notice("Guard and trials", e))
        return
    level, words = tm.guard_words(guard)
    burn = ", ".join(f"{w} {fmt.digits(v)}" for w, v in guard.burn.items()) or "no traffic"
    strip([badge("guard", words, level), badge("burn rate", burn)])
    if canary.revision is not None:
        _canary(canary)
    if shadow.started_at is not None:
        _shadow(shadow)


def _canary(c: wire.CanaryView) -> None:
    state = "runs" if c.running else f"ended: {c.ended}"
    heading("Canary", f"revision {c.revision} on {fmt.share(c.share)} of the sessions; {state}")
    st.caption(tm.changes_words(c.changes))
    rows = tm.canary_rows(c)
    if rows:
        plain_table(rows, key="canary", alt="Canary against live")
    if c.live is not None and c.candidate is not None:
        st.caption(
            f"{c.candidate.finished} finished under the canary, {c.live.finished} under the live "
            f"revision; {c.candidate.good} and {c.live.good} met their limits."
        )
    _next(c.changes, "canary", acting.control().stop_canary if c.running else None)


def _shadow(s: wire.ShadowView) -> None:
    state = "runs" if s.running else f"ended: {s.ended}"
    agreed = f"; {fmt.share(s.agreement, 1)} placed alike" if s.agreement is not None else ""
    heading("Shadow", f"{fmt.count(s.scored)} scored{agreed}; {state}")
    st.caption(tm.changes_words(s.changes))
    rows = tm.shadow_rows(s)
    if rows:
        plain_table(rows, key="shadow", alt="What live and shadow expect")
    _next(s.changes, "shadow", acting.control().stop_shadow if s.running else None)


def _next(
    changes: dict[str, list[object]], of: str, stop: Callable[[wire.Why], object] | None
) -> None:
    """What may follow on a trial, also for who did not start it: its values as a draft, to review
    and apply, or its end."""
    state = session.look().state
    with st.container(horizontal=True, gap="small"):
        promote = act(f"Put the {of}'s values into a draft", key=f"draft_{of}")
        end = stop is not None and act(f"Stop the {of} …", key=f"stop_{of}")
    if promote and state is not None:
        keep(adopted(changes, state.revision))
        st.rerun()
    if end and stop is not None:
        _end_dialog(f"Stop the {of}", _STOPPED[of], stop, f"The {of} is stopped")


_STOPPED = {
    "canary": "Its sessions follow the live revision from their next request on.",
    "shadow": "Nothing more is scored. It never placed a request.",
}


@st.dialog("End it")
def _end_dialog(label: str, effect: str, end: Callable[[wire.Why], object], done: str) -> None:
    """Say what ending it does, ask why, and end it."""
    st.markdown(f"**{label}.** {effect}")
    form = acting.Form()
    reason = form.reason("end_reason")
    if form.go(label, key="end_do"):
        acting.carry_out(lambda: end(acting.why(reason)), done)


def waiting(items: list[wire.ScheduledView]) -> None:
    """Changes that wait for their time, and how the last ones ended."""
    if not items:
        st.caption("Nothing is scheduled.")
        return
    plain_table(tm.scheduled_rows(items, session.zone()), key="scheduled", alt="Scheduled changes")
    open_ = [s for s in items if s.state == "pending"]
    if not open_:
        return
    zone = session.zone()
    with st.container(horizontal=True, vertical_alignment="bottom"):
        chosen = st.selectbox(
            "Call off", open_, key="call_off", width=420,
            format_func=lambda s: f"{fmt.moment(s.due_at, zone)[:19]}: {s.reason}",
        )  # fmt: skip
        if act("Call off …", key="call_off_do") and chosen is not None:
            due = f"{fmt.moment(chosen.due_at, zone)[:19]} {session.zone_name()}"
            _end_dialog(
                "Call it off", f"The change that is due at {due} is not made.",
                lambda why: acting.control().call_off(chosen.id, why), "The change is called off",
            )  # fmt: skip

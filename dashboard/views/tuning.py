"""Tuning: live parameters, a draft of new ones, what it would do, and the way to make it live."""

from __future__ import annotations

import streamlit as st

from core import wire
from dashboard import session
from dashboard.addresses import also_unheeded
from dashboard.api.client import ServiceError
from dashboard.live import live
from dashboard.overview.models import Notice, not_used
from dashboard.parts import acting
from dashboard.parts import format as fmt
from dashboard.parts.address import one_of
from dashboard.parts.components import heading, notice, tile_grid
from dashboard.parts.live_plot import live_plot
from dashboard.parts.page import act, failure_notice, page, part
from dashboard.parts.tables import plain_table
from dashboard.tuning import draft as dr
from dashboard.tuning import figures as tuning_figures
from dashboard.tuning import models as tm
from dashboard.tuning.draft import Draft
from dashboard.tuning.editor import current, discard, editor
from dashboard.tuning.history import revisions
from dashboard.tuning.review import conflict, review
from dashboard.tuning.trials import trials, waiting


def main(_state: wire.FleetState) -> None:
    """Parameters on the left, the draft on the right; below: preview, trials, revisions."""
    acting.looking_only()
    acting.told()
    calls = acting.control()
    try:
        view, policies = calls.tunables(), calls.policies()
    except ServiceError as e:
        notice(failure_notice("The parameters", e))
        if session.history_url():
            with part("Revisions"):
                past()
        return
    draft, wrong = current(view)
    if wrong:  # said until it is seen: the address has lost those parts by the next run
        title = "A part of the draft in the address cannot be used"
        also_unheeded(Notice("warn", title, "; ".join(wrong)))
    conflict(draft, view)
    left, right = st.columns([7, 5], gap="large")
    with left:
        _parameters(view, policies, draft)
    with right:
        simulate = _draft(view, draft)
    if draft:
        with part("The preview"):
            _preview(_previewed(view.revision, draft, simulate=simulate))
    with part("Trials"):
        heading("Running beside it", "guard, canary, shadow")
        live(trials, key="trials")
    with part("Scheduled changes"):
        heading("Scheduled", f"times in {session.zone_name()}")
        waiting(calls.scheduled().items)
    with part("Revisions"):
        heading("Revisions", "newest first")
        revisions(calls.revisions())


def _parameters(view: wire.TunablesView, policies: wire.PolicyList, draft: Draft) -> None:
    target = str(draft.changes.get("policy", view.policy))
    names = dr.groups(view.items, target)
    _heed_group(names)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        group = st.selectbox(
            "Group", names, key="group", bind="query-params", width=300,
            index=1 if len(names) > 1 and names[1] == target else 0,
            help="Choices are the first part of a parameter's path",
        )  # fmt: skip
        search = st.text_input(
            "Search all", key="tuning_search", width=240, placeholder="name or meaning"
        )
    shown = dr.shown_items(view.items, str(group), search)
    title = "Found" if search else dr.group_title(str(group), target, draft)
    heading(title, f"{fmt.counted(len(shown), 'parameter')}; changes hold from the next decision")
    formula = next((p.formula for p in policies.policies if p.name == group), "")
    if formula and not search:
        st.caption(" ".join(formula.split()))
    if not shown:
        notice(Notice("none", "No parameter of that name", "Clear the search to see the group."))
    editor(shown, policies.policies, disabled=not session.may("operator"))


def _heed_group(names: list[str]) -> None:
    """A group of the address that is none is said; the choice itself drops it without a word."""
    asked = st.query_params.get("group", "")
    if asked and asked not in names:
        also_unheeded(not_used("group", asked, one_of(names)))


def _draft(view: wire.TunablesView, draft: Draft) -> bool:
    """The draft's diff and buttons; whether it is to be simulated as well."""
    heading("Draft", f"from revision {draft.base}" if draft else "")
    if not draft:
        st.caption(
            "Move a slider or set a number: the draft is kept in the address, costs nothing, and "
            "shows at once what it would have done to recorded decisions."
        )
        return False
    plain_table(dr.diff_rows(draft, view.items), key="draft_diff", alt="Live against draft")
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        stale = draft.base != view.revision
        if act(
            "Review and apply", key="review_open", type="primary",
            why_not="Put the draft on the live revision first." if stale else "",
        ):  # fmt: skip
            review(draft, view)
        st.button("Discard", key="discard", on_click=discard)
        simulate = st.toggle(
            "Simulate as well", key="simulate",
            help="Also plays the last requests on a simulated fleet, under both configurations",
        )  # fmt: skip
    return bool(simulate)


def _previewed(revision: int, draft: Draft, *, simulate: bool) -> wire.PreviewView:
    """The preview of this draft; asked once for a draft and a revision."""
    question = (revision, dr.draft_text(draft), simulate)
    held = st.session_state.get("tuning_preview")
    if held is not None and held[0] == question:
        found: wire.PreviewView = held[1]
        return found
    with st.spinner("Making recorded decisions again …"):
        found = acting.control().preview(draft.changes, simulate=simulate)
    st.session_state["tuning_preview"] = (question, found)
    return found


def _again() -> None:
    st.session_state.pop("tuning_preview", None)


def _preview(p: wire.PreviewView) -> None:
    if not p.decisions:
        notice(
            Notice("none", "Nothing to judge by", "No decision with candidates is recorded yet.")
        )
        return
    with st.container(horizontal=True, horizontal_alignment="distribute"):
        heading("What it would do", f"{p.decisions} recorded decisions made again")
        st.button("Again", key="preview_again", on_click=_again, help="With the newest decisions")
    tile_grid(tm.preview_tiles(p))
    effects = tm.effect_rows(p)
    if effects:
        plain_table(effects, key="effects", alt="Which changed parameter matters")
    if p.moves:
        figure = tuning_figures.moves(p, session.colours())
        live_plot(figure, key="moves", alt="Moved decisions")
        with st.expander("Numbers behind the chart, and the decisions that differ most"):
            plain_table(tm.move_rows(p), key="move_rows", alt="Moves")
            plain_table(tm.example_rows(p), key="examples", alt="Decisions that differ most")
    if p.replay is not None:
        _replay(p.replay)
    with st.expander("How far this can be believed"):
        st.caption(tm.fidelity_words(p))
        for text in p.assumptions:
            st.caption(f"· {text}")


def _replay(r: wire.ReplayView) -> None:
    heading("Simulated", f"{r.requests} requests over {r.span_s:.0f} s, both from empty caches")
    plain_table(tm.replay_rows(r), key="replay", alt="Simulated under both configurations")
    for text in r.notes:
        st.caption(f"· {text}")


def past() -> None:
    """What records alone can show: the revisions, without any act."""
    heading("Revisions", "newest first, from stored records")
    revisions(acting.records().revisions())


page(main, key="tuning", empty=None, live=False, history=past)

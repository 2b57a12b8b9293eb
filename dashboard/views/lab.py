"""Lab: policies and parameters tried on recorded requests or traces, and the best one promoted."""

from __future__ import annotations

import pandas as pd  # type: ignore[import-untyped]
import streamlit as st

from core import wire
from dashboard import session
from dashboard.api.client import ServiceError
from dashboard.lab import figures as lab_figures
from dashboard.lab import models as lm
from dashboard.lab.form import lab_form
from dashboard.live import live
from dashboard.overview.models import Notice
from dashboard.parts import acting
from dashboard.parts.components import heading, notice
from dashboard.parts.format import NONE
from dashboard.parts.kept import kept
from dashboard.parts.live_plot import live_plot
from dashboard.parts.page import act, failure_notice, page, part
from dashboard.parts.tables import ROW_PX, data_table, plain_table, select_table, table_height
from dashboard.parts.theme import Level
from dashboard.tuning.draft import draft_text

READ_EVERY_S = 1.0
MARKS_PX = 150
JOB = "job"
"""Query parameter with the id of the open job."""


def main(_state: wire.FleetState) -> None:
    """The form, then the jobs and the open one, which follow the service."""
    acting.looking_only()
    acting.told()
    calls = acting.control()
    with part("The Lab"), st.expander("New experiment", expanded=JOB not in st.query_params):
        lab_form(calls.lab_sources(), calls.tunables(), calls.policies())
    live(_jobs, key="lab_jobs")


def _jobs() -> None:
    heading("Experiments", "newest first; the newest 50 that have run are kept")
    try:
        jobs = kept("lab_jobs", ttl_s=READ_EVERY_S, read=acting.control().lab_jobs).jobs
    except ServiceError as e:
        notice(failure_notice("The experiments", e))
        return
    if not jobs:
        notice(Notice("none", "No experiment yet", "Describe one above and run it."))
        return
    _table(jobs)
    chosen = st.query_params.get(JOB) or jobs[0].id
    try:
        _open(_job(chosen))
    except ServiceError as e:
        notice(failure_notice("The experiment", e))


def _table(jobs: list[wire.LabJob]) -> None:
    frame = pd.DataFrame(lm.job_rows(jobs))
    frame["Asked at"] = pd.to_datetime(frame["Asked at"], utc=True).dt.tz_convert(session.zone())
    ids = [job.id for job in jobs]
    data_table(
        frame, key="lab_table", hide_index=True, row_height=ROW_PX, placeholder=NONE,
        height=table_height(len(frame), most=5), selection_mode="single-row",
        on_select=lambda: _selected(ids), alt="Experiments, newest first",
        column_config={
            "Asked at": st.column_config.DatetimeColumn(
                f"Asked at ({session.zone_name()})", format="HH:mm:ss"
            ),
            "Progress": st.column_config.ProgressColumn(
                format="percent", min_value=0.0, max_value=1.0
            ),
        },
    )  # fmt: skip


def _selected(ids: list[str]) -> None:
    rows = st.session_state["lab_table"]["selection"]["rows"]
    if rows and rows[0] < len(ids):
        st.query_params[JOB] = ids[rows[0]]


def _job(id: str) -> wire.LabJob:
    """The job; one that is over never changes and is kept."""
    held: wire.LabJob | None = st.session_state.get("lab_job")
    if held is not None and held.id == id and held.state in ("done", "failed", "cancelled"):
        return held
    found = kept("lab_job", id, ttl_s=READ_EVERY_S, read=lambda: acting.control().lab_job(id))
    st.session_state["lab_job"] = found
    return found


def _open(job: wire.LabJob) -> None:
    heading(job.reason or job.id, f"{lm.STATES[job.state]} · {job.method} · {job.source}")
    st.caption(lm.job_words(job))
    if job.state in ("waiting", "running"):
        st.progress(job.done / job.total if job.total else 0.0)
        if act("Cancel", key="lab_cancel"):
            done = "The experiment is cancelled"
            acting.attempt(lambda: acting.control().lab_cancel(job.id), done)
            st.rerun()
        return
    if not job.points:
        level: Level = "bad" if job.state == "failed" else "none"
        notice(Notice(level, "No result", lm.job_words(job)))
        return
    _result(job)


def _result(job: wire.LabJob) -> None:
    notice(Notice("ok", "Best point", lm.best_words(job)))
    _promote(job)
    select_table(
        lm.point_rows(job), key="lab_points", alt="All configurations with their figures",
        columns={"Mark": st.column_config.TextColumn(width=MARKS_PX)}, most=20,
    )  # fmt: skip
    st.caption(lm.PARETO_WORDS)
    left, right = st.columns(2, gap="medium")
    with left:
        _pareto(job)
    with right:
        _curves(job)
    for text in job.notes:
        st.caption(f"· {text}")


def _promote(job: wire.LabJob) -> None:
    labels = [p.label for p in job.points if not p.live]
    if not labels:
        return
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        label = st.selectbox(
            "Configuration", labels, key=f"lab_pick_{job.id}", width=360,
            index=labels.index(job.best) if job.best in labels else 0,
        )  # fmt: skip
        point = next(p for p in job.points if p.label == label)
        if act("Promote to a draft", key="lab_promote", type="primary"):
            draft = lm.draft_of(point, job)
            st.switch_page(
                "views/tuning.py",
                query_params={"draft": draft_text(draft), "base": str(draft.base)},
            )
    st.caption(f"Changes {lm.changes_words(point)}.")


def _pareto(job: wire.LabJob) -> None:
    known = [n for n, _ in lm.MEASURES if all(p.figures.get(n) is not None for p in job.points)]
    heading("Points against each other", "by two figures")
    if len(known) < 2:
        st.caption("Fewer than two figures are known of every point.")
        return
    with st.container(horizontal=True, gap="small"):
        x = st.selectbox(
            "Across", known, key="lab_x", format_func=lambda n: lm.NAMES[n], width=200,
            index=known.index("hit") if "hit" in known else 0,
        )  # fmt: skip
        y = st.selectbox("Up", known, key="lab_y", format_func=lambda n: lm.NAMES[n], width=200)
    figure = lab_figures.pareto(job, session.colours(), x=str(x), y=str(y))
    live_plot(figure, key="lab_pareto", alt="Configurations by two figures")


def _curves(job: wire.LabJob) -> None:
    heading("Distribution of TTFT", "share of requests served within a time")
    shown = [p for p in job.points if p.live] + sorted(
        (p for p in job.points if not p.live and p.ttft_curve_s),
        key=lambda p: p.figures.get("ttft_mean_s") or 0.0,
    )
    if not any(p.ttft_curve_s for p in shown):
        st.caption("Re-scoring predicts means, no distribution; simulate to see one.")
        return
    figure = lab_figures.curves(shown, session.colours())
    live_plot(figure, key="lab_curves", alt="Distribution of TTFT by configuration")
    with st.expander("Distribution of TBT, and the numbers"):
        if any(p.tbt_curve_s for p in shown):
            figure = lab_figures.curves(shown, session.colours(), name="TBT")
            live_plot(figure, key="lab_tbt", alt="Distribution of TBT by configuration")
        plain_table(lm.curve_rows(shown), key="lab_curve_rows", alt="Quantiles of TTFT")


page(main, key="lab", empty=None, live=False)

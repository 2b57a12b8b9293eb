"""Storage & health: are records kept, who shares the database, how is the service itself."""

from __future__ import annotations

import streamlit as st

from core import wire
from dashboard import session
from dashboard.alerts import models as am
from dashboard.health import models as sm
from dashboard.overview.models import Notice
from dashboard.parts import acting
from dashboard.parts.components import heading, notice, tile_grid
from dashboard.parts.page import page, part
from dashboard.parts.tables import plain_table


def main(state: wire.FleetState) -> None:
    """Live as a whole: every part says by itself what it cannot read."""
    heading("Service", "the process that decides")
    tile_grid(sm.service_tiles(state.service))
    with part("The record store"):
        _storage()
    with part("Replicas"):
        _replicas()
    with part("Periodic work"):
        heading("Periodic work", f"times in {session.zone_name()}")
        jobs = acting.control().jobs().jobs
        rows = am.job_rows(jobs, now=session.now(), zone=session.zone())
        plain_table(rows, key="jobs", alt="Periodic work and how it went")
    with st.expander("Everything the service counts"):
        rows = sm.counter_rows(state.service)
        if rows:
            plain_table(rows, key="counters", alt="Counters since the start")
        else:
            st.caption("Nothing was counted yet.")


def _storage() -> None:
    heading("Record store", "scheduling never waits for it")
    found = acting.records().storage()
    if found.error:
        text = f"{found.error}. Decisions go on; records wait on this machine and are stored later."
        notice(Notice("bad", "The database cannot be read", text))
    tile_grid(sm.storage_tiles(found))
    d = found.database
    if d is not None:
        st.caption(sm.span_words(d, session.zone()))
        with st.expander("Rows by table"):
            plain_table(sm.row_counts(d), key="row_counts", alt="Rows by table")


def _replicas() -> None:
    heading("Processes on this database", "silent ones are forgotten after a week")
    found = acting.records().replicas().replicas
    if not found:
        st.caption("No process has registered yet.")
        return
    rows = sm.replica_rows(found, now=session.now(), zone=session.zone())
    plain_table(rows, key="replicas", alt="Processes that share the database")


def past() -> None:
    """What the read-only instance knows: the record store and who shares it."""
    _storage()
    _replicas()


page(main, key="storage", empty=None, history=past)

"""Storage & health: are records kept, who shares the database, how is the service itself."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from core import wire
from dashboard import session
from dashboard.alerts import models as am
from dashboard.health import models as sm
from dashboard.overview.models import Notice
from dashboard.parts import acting
from dashboard.parts.components import heading, notice, tile_grid
from dashboard.parts.drawn import drawn
from dashboard.parts.kept import kept
from dashboard.parts.page import page, part
from dashboard.parts.tables import plain_table

READ_EVERY_S = 1.5


def main(state: wire.FleetState) -> None:
    """Live as a whole: every part says by itself what it cannot read."""
    drawn("service", given=(state,), draw=lambda: _service(state))
    with part("The record store"):
        _storage()
    with part("Replicas"):
        _replicas()
    with part("Periodic work"):
        jobs = kept("jobs", ttl_s=READ_EVERY_S, read=lambda: acting.control().jobs())
        drawn("jobs", given=(jobs, state, session.zone()), draw=lambda: _jobs(jobs))
    drawn("counters", given=(state,), draw=lambda: _counters(state))


def _service(state: wire.FleetState) -> None:
    heading("Service", "the process that decides")
    tile_grid(sm.service_tiles(state.service, {a.name for a in state.alerts}))


def _jobs(jobs: wire.JobList) -> None:
    heading("Periodic work", f"times in {session.zone_name()}")
    rows = am.job_rows(jobs.jobs, now=session.now(), zone=session.zone())
    plain_table(rows, key="jobs", alt="Periodic work and how it went")


def _counters(state: wire.FleetState) -> None:
    with st.expander("Everything the service counts"):
        rows = sm.counter_rows(state.service)
        if rows:
            plain_table(rows, key="counters", alt="Counters since the start")
        else:
            st.caption("Nothing was counted yet.")


def _storage() -> None:
    found = kept("storage", ttl_s=READ_EVERY_S, read=lambda: acting.records().storage())
    drawn("storage", given=(found, session.zone()), draw=lambda: _record_store(found))


def _record_store(found: wire.StorageView) -> None:
    heading("Record store", "scheduling never waits for it")
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
    found = kept("replicas", ttl_s=READ_EVERY_S, read=lambda: acting.records().replicas())
    given = (found, session.look(), session.zone())
    drawn("replicas", given=given, draw=lambda: _processes(found.replicas))


def _processes(found: Sequence[wire.ReplicaView]) -> None:
    heading("Processes on this database", "silent ones are forgotten after a week")
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

"""Calls of the admin API behind the control, Lab and history pages. Only I/O: no view of its own.

Acts take the words of their author as the API does; who acts is told by the sign-in.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from core import wire
from dashboard.api.client import AdminClient

PREVIEW_S = 60.0
"""Longest wait for a preview, which may simulate."""
ACT_S = 15.0


class ControlClient:
    """Revisions, trials, breakers, Lab jobs and stored events, over one admin client."""

    def __init__(self, client: AdminClient) -> None:
        self._call = client.call

    # -- live parameters -------------------------------------------------------------------

    def tunables(self) -> wire.TunablesView:
        """Every live parameter."""
        return self._call("GET", "/tunables", wire.TunablesView)

    def policies(self) -> wire.PolicyList:
        """Policies with their formulas."""
        return self._call("GET", "/policies", wire.PolicyList)

    def revisions(self, limit: int = 100) -> wire.RevisionList:
        """Newest first."""
        return self._call("GET", "/revisions", wire.RevisionList, params={"limit": str(limit)})

    def diff(self, number: int) -> wire.RevisionDiff:
        """Of a revision against the live one."""
        return self._call("GET", f"/revisions/{number}/diff", wire.RevisionDiff)

    def preview(self, changes: Mapping[str, Any], *, simulate: bool = False) -> wire.PreviewView:
        """What the changes would have done to recorded decisions."""
        asked = wire.PreviewAsk(changes=dict(changes), simulate=simulate)
        return self._call("POST", "/preview", wire.PreviewView, body=asked, timeout_s=PREVIEW_S)

    def apply(self, asked: wire.RevisionAsk) -> wire.FullRevision:
        """Make changes live now. Refused with `stale` where another was faster."""
        return self._call("POST", "/revisions", wire.FullRevision, body=asked, timeout_s=ACT_S)

    def roll_back(self, asked: wire.RollbackAsk) -> wire.FullRevision:
        """Make an older revision's values live again."""
        path = "/revisions/rollback"
        return self._call("POST", path, wire.FullRevision, body=asked, timeout_s=ACT_S)

    def scheduled(self) -> wire.ScheduledList:
        """Changes that wait, and the newest that are over."""
        return self._call("GET", "/scheduled", wire.ScheduledList, params={"all": "true"})

    def schedule(self, asked: wire.ScheduleAsk) -> wire.ScheduledView:
        """Apply changes at a time."""
        return self._call("POST", "/scheduled", wire.ScheduledView, body=asked, timeout_s=ACT_S)

    def call_off(self, id: str, why: wire.Why) -> wire.ScheduledView:
        """Cancel a waiting change."""
        path = f"/scheduled/{quote(id, safe='')}/cancel"
        return self._call("POST", path, wire.ScheduledView, body=why, timeout_s=ACT_S)

    # -- trials ----------------------------------------------------------------------------

    def shadow(self) -> wire.ShadowView:
        """The shadow that runs, or ran last."""
        return self._call("GET", "/shadow", wire.ShadowView)

    def canary(self) -> wire.CanaryView:
        """The canary that runs, or ran last."""
        return self._call("GET", "/canary", wire.CanaryView)

    def guard(self) -> wire.GuardView:
        """What the guard watches."""
        return self._call("GET", "/guard", wire.GuardView)

    def start_shadow(self, asked: wire.TrialAsk) -> wire.ShadowView:
        """Score live traffic under a second configuration."""
        return self._call("POST", "/shadow/start", wire.ShadowView, body=asked, timeout_s=ACT_S)

    def start_canary(self, asked: wire.CanaryAsk) -> wire.CanaryView:
        """Let a second configuration decide a share of the sessions."""
        return self._call("POST", "/canary/start", wire.CanaryView, body=asked, timeout_s=ACT_S)

    def stop_shadow(self, why: wire.Why) -> wire.ShadowView:
        """End the shadow."""
        return self._call("POST", "/shadow/stop", wire.ShadowView, body=why, timeout_s=ACT_S)

    def stop_canary(self, why: wire.Why) -> wire.CanaryView:
        """End the canary."""
        return self._call("POST", "/canary/stop", wire.CanaryView, body=why, timeout_s=ACT_S)

    # -- breakers and evidence -------------------------------------------------------------

    def switch(self, node: str, act: wire.BreakerAction) -> None:
        """Trip, reset or hold a node's breaker, or the global one (empty name)."""
        if node:
            path = f"/nodes/{quote(node, safe='')}/breaker"
            self._call("POST", path, wire.NodeView, body=act, timeout_s=ACT_S)
        else:
            self._call("POST", "/breaker", wire.BreakerView, body=act, timeout_s=ACT_S)

    def hotspots(self) -> wire.HotspotView:
        """What the detector counts."""
        return self._call("GET", "/hotspots", wire.HotspotView)

    def history(
        self,
        *,
        kind: str = "",
        node: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
    ) -> wire.EventHistory:
        """Stored events, newest first."""
        given = {
            "kind": kind,
            "node": node,
            "since": since.isoformat() if since else "",
            "until": until.isoformat() if until else "",
            "limit": str(limit),
        }
        params = {name: value for name, value in given.items() if value}
        return self._call("GET", "/history", wire.EventHistory, params=params)

    def what_if(self, decision_id: str, asked: wire.WhatIfAsk) -> wire.WhatIfView:
        """One recorded decision under other parameters."""
        path = f"/decisions/{quote(decision_id, safe='')}/what-if"
        return self._call("POST", path, wire.WhatIfView, body=asked, timeout_s=ACT_S)

    def storage(self) -> wire.StorageView:
        """The record store of the service."""
        return self._call("GET", "/storage", wire.StorageView)

    def replicas(self) -> wire.ReplicaList:
        """Processes that share the database."""
        return self._call("GET", "/replicas", wire.ReplicaList)

    def alerts(self) -> wire.AlertList:
        """Every alert rule and how it stands."""
        return self._call("GET", "/alerts", wire.AlertList)

    def acknowledge(self, name: str, asked: wire.AlertNote) -> wire.AlertView:
        """Say that somebody knows of an alert."""
        path = f"/alerts/{quote(name, safe='')}/acknowledge"
        return self._call("POST", path, wire.AlertView, body=asked, timeout_s=ACT_S)

    def monitors(self) -> wire.MonitorList:
        """Every monitor now."""
        return self._call("GET", "/monitors", wire.MonitorList)

    def forecast(self) -> wire.ForecastView:
        """Arrivals and prefill tokens expected shortly, by model and tenant class."""
        return self._call("GET", "/forecast", wire.ForecastView)

    def monitor_series(self, name: str) -> wire.MonitorSeries:
        """The last hour of one monitor."""
        return self._call("GET", "/monitors/series", wire.MonitorSeries, params={"name": name})

    def jobs(self) -> wire.JobList:
        """Periodic work of the service."""
        return self._call("GET", "/jobs", wire.JobList)

    # -- lab -------------------------------------------------------------------------------

    def lab_sources(self) -> wire.LabSources:
        """Requests that a job can use, and the Lab's bounds."""
        return self._call("GET", "/lab/sources", wire.LabSources)

    def lab_jobs(self) -> wire.LabJobList:
        """Newest first, without their points."""
        return self._call("GET", "/lab/jobs", wire.LabJobList)

    def lab_job(self, id: str) -> wire.LabJob:
        """One job with its points."""
        return self._call("GET", f"/lab/jobs/{quote(id, safe='')}", wire.LabJob)

    def lab_submit(self, asked: wire.LabAsk) -> wire.LabJob:
        """Put a job at the end of the line."""
        return self._call("POST", "/lab/jobs", wire.LabJob, body=asked, timeout_s=ACT_S)

    def lab_cancel(self, id: str) -> wire.LabJob:
        """Cancel a job, or forget one that is over."""
        path = f"/lab/jobs/{quote(id, safe='')}"
        return self._call("DELETE", path, wire.LabJob, timeout_s=ACT_S)

"""Jobs, monitors, alerts and the forecast."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from core.wire.base import Answer, Ask


class JobView(Answer):
    """One piece of periodic work."""

    name: str
    what: str
    kind: Literal["job", "loop"]
    """A job is scheduled; a loop comes round by itself, several times a second or for each node."""
    every_s: float
    runs: int
    failures: int
    running: bool = False
    last_at: datetime | None = None
    last_s: float | None = None
    """How long the last run took."""
    last_error: str = ""
    """Of the last run; empty where it went well."""
    next_at: datetime | None = None


class JobList(Answer):
    """GET /jobs."""

    jobs: list[JobView]


class MonitorView(Answer):
    """One watched number."""

    name: str
    unit: str
    doc: str
    value: float | None
    """None where there is nothing to judge by."""
    alert: str = ""
    """The rule that watches it, and its limit."""
    limit: float | None = None


class HitView(Answer):
    """Cache hits of one node or prefix group in the last minute."""

    name: str
    requests: int
    prompt_tokens: int
    match_tokens: int
    hit: float


class MonitorList(Answer):
    """GET /monitors: the newest sample, and what stands behind it."""

    at: datetime
    monitors: list[MonitorView]
    products: dict[str, float] = {}
    """P-token x BS by prefill node."""
    nodes: list[HitView] = []
    groups: list[HitView] = []
    """Prefix groups with most matched tokens."""


class MonitorPoint(Answer):
    """One sample of the asked monitors, in their order."""

    at: datetime
    values: list[float | None]


class MonitorSeries(Answer):
    """GET /monitors/series: oldest first."""

    names: list[str]
    step_s: float
    points: list[MonitorPoint]


class AcknowledgementView(Answer):
    """Who knows of an alert."""

    author: str
    at: datetime
    note: str


class AlertView(Answer):
    """One alert rule and how it stands."""

    name: str
    severity: Literal["page", "ticket"]
    state: Literal["inactive", "pending", "firing", "resolved"]
    summary: str
    monitor: str
    limit: float
    below: bool = False
    """Alerts where the monitor is below the limit, not above."""
    for_s: float
    also: str = ""
    """A second monitor, which has to be above `also_limit` as well; empty where there is none."""
    also_limit: float | None = None
    value: float | None = None
    worst: float | None = None
    since: datetime | None = None
    fired_at: datetime | None = None
    resolved_at: datetime | None = None
    evidence: dict[str, Any] = {}
    acknowledged: AcknowledgementView | None = None


class WebhookView(Answer):
    """How telling alerts to the operator's address fares."""

    on: bool
    sent: int = 0
    failures: int = 0
    given_up: int = 0
    waiting: int = 0
    last_error: str = ""


class AlertList(Answer):
    """GET /alerts: firing ones first."""

    alerts: list[AlertView]
    webhook: WebhookView


class AlertNote(Ask):
    """POST /alerts/{name}/acknowledge."""

    note: str = Field(min_length=1, max_length=500)
    author: str = Field(default="", max_length=128)


class ForecastSeries(Answer):
    """One series; values are per second."""

    model: str
    """Empty: all together."""
    tenant_class: str
    quantity: Literal["arrivals", "prefill_tokens"]
    now_per_s: float
    """In the last complete step."""
    expected_per_s: float
    """At the horizon."""
    error_per_s: float | None
    """Mean absolute error of such forecasts, faded; None before the first could be compared."""
    persistence_error_per_s: float | None
    """The same of expecting what there is."""
    compared: int
    beats_persistence: bool


class ForecastView(Answer):
    """GET /forecast."""

    at: datetime
    enabled: bool
    step_s: float
    horizon_s: float
    growth: float
    """Expected prefill tokens over those of now, as early rejection and migration use it."""
    in_use: bool
    """It beats persistence, so it is used."""
    series: list[ForecastSeries]

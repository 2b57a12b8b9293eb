"""The Lab: policies and parameters tried on recorded requests or on a trace, as jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from core.wire.base import Answer, Ask
from core.wire.control import Why


class LabFleet(Ask):
    """A fleet to simulate instead of the registered one."""

    prefill: int = Field(default=8, ge=0, le=1024)
    decode: int = Field(default=0, ge=0, le=1024)
    both: int = Field(default=0, ge=0, le=1024)
    profile: str = Field(default="llama3-70b-8xa800", max_length=128)
    cache_tokens: int = Field(default=3_000_000, ge=1024, le=10**10)


class LabArm(Ask):
    """One configuration: changes of the live one. ``params`` may use short names."""

    label: str = Field(default="", max_length=120)
    policy: str = Field(min_length=1, max_length=64)
    params: dict[str, Any] = Field(default={}, max_length=50)


class LabAsk(Why):
    """POST /lab/jobs. The live configuration is always a point of its own."""

    method: Literal["rescore", "simulate"] = "simulate"
    """rescore: recorded decisions, each in the state in which it was made. simulate: requests
    played on a simulated fleet from empty caches."""
    source: str = Field(default="shipped", max_length=255)
    """recorded, shipped, or the name of a file of the trace directory."""
    requests: int = Field(default=500, ge=20, le=100_000)
    arms: list[LabArm] = Field(default=[], max_length=50)
    axes: dict[str, list[Any]] = Field(default={}, max_length=4)
    """Swept parameters: path -> values; every combination, on the policy of `policy`."""
    policy: str = Field(default="", max_length=64)
    """Policy of the sweep; empty: the live one."""
    fleet: LabFleet | None = None
    """None: the registered fleet's shape."""
    load: float = Field(default=1.0, gt=0.0, le=100.0)
    """Request rate, times the source's own."""
    seeds: int = Field(default=1, ge=1, le=10)


class LabSource(Answer):
    """Requests that a job can use."""

    name: str
    title: str
    requests: int | None = None
    """None where counting would mean reading it."""
    bytes: int | None = None
    methods: list[str]


class LabSources(Answer):
    """GET /lab/sources."""

    sources: list[LabSource]
    runs_max: int
    requests_max: int
    time_max_s: float
    trace_dir: bool = False
    """Whether a directory of traces is set (``lab.trace_dir``)."""


class LabPoint(Answer):
    """One configuration and what it gave."""

    label: str
    live: bool = False
    policy: str
    params: dict[str, Any] = {}
    """Changes against the live configuration, by path."""
    figures: dict[str, float | None] = {}
    pareto: bool = False
    """No other point is as good in every objective and better in one."""
    ttft_curve_s: list[float] = []
    """Quantiles of TTFT at even steps of probability, 0 to 1."""
    tbt_curve_s: list[float] = []


class LabJob(Answer):
    """A job; `points` come with GET /lab/jobs/{id} only."""

    id: str
    state: Literal["waiting", "running", "done", "cancelled", "failed"]
    method: str
    source: str
    author: str = ""
    reason: str = ""
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    done: int = 0
    total: int = 0
    """Runs."""
    error: str = ""
    base: int = 0
    """Revision that was live when it was asked for."""
    requests: int = 0
    """Requests or decisions that were used."""
    objectives: dict[str, int] = {}
    """Figure -> 1 where less is better, -1 where more is."""
    best: str = ""
    """Label of the point that serves most requests within their limits; among equals (1 %), the
    one with the least mean TTFT."""
    notes: list[str] = []
    points: list[LabPoint] = []


class LabJobList(Answer):
    """GET /lab/jobs, newest first."""

    jobs: list[LabJob]

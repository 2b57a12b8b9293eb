"""Changing the live configuration: revisions, schedule, preview, shadow, canary, guard."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import AwareDatetime, Field

from core.wire.base import Answer, Ask, ErrorDetail

Change = dict[str, Any]
"""Tunable path (or short name under the policy) -> value."""


class Why(Ask):
    """Who acts, and why."""

    reason: str = Field(min_length=3, max_length=500)
    author: str = Field(default="", max_length=128)


class RevisionAsk(Why):
    """POST /revisions: all changes together or none. `base` may come as If-Match instead."""

    changes: Change = Field(min_length=1, max_length=200)
    base: int | None = Field(default=None, ge=0)
    until: AwareDatetime | None = None
    """Take the changes back at this time."""


class RollbackAsk(Why):
    """POST /revisions/rollback: without `to`, the revision that the live one was made from."""

    to: int | None = Field(default=None, ge=1)
    base: int | None = Field(default=None, ge=0)
    """The revision believed live; None rolls back whatever is."""


class ScheduleAsk(Why):
    """POST /scheduled: apply changes at a time."""

    changes: Change = Field(min_length=1, max_length=200)
    at: AwareDatetime
    until: AwareDatetime | None = None


class PreviewAsk(Ask):
    """POST /preview: what changes would do."""

    changes: Change = Field(min_length=1, max_length=200)
    decisions: int = Field(default=500, ge=1, le=5000)
    """Newest recorded decisions to make again."""
    simulate: bool = False
    """Also play the last requests in the simulator, under both configurations."""
    requests: int = Field(default=1000, ge=20, le=2000)
    """Requests to simulate."""


class TrialAsk(Why):
    """POST /shadow/start."""

    changes: Change = Field(min_length=1, max_length=200)


class CanaryAsk(TrialAsk):
    """POST /canary/start."""

    share: float = Field(gt=0.0, le=0.5)
    """Share of sessions that the candidate decides."""


class FullRevision(Answer):
    """One revision with everything about it."""

    revision: int
    base: int
    at: datetime
    author: str = ""
    reason: str = ""
    kind: str = "change"
    """start, change, rollback, scheduled, expiry, guard, or canary (never live)."""
    changes: dict[str, list[Any]] = {}
    values: dict[str, Any] = {}
    detail: dict[str, Any] = {}


class RevisionList(Answer):
    """GET /revisions, newest first."""

    live: int
    revisions: list[FullRevision]


class RevisionDiff(Answer):
    """GET /revisions/{n}/diff: path -> [value in `from`, value in `to`]."""

    from_revision: int
    to_revision: int
    changes: dict[str, list[Any]]


class StaleDetail(ErrorDetail):
    """The error of a change made from a revision that is not live any more."""

    base: int
    live: int
    yours: dict[str, list[Any]]
    theirs: dict[str, list[Any]]


class StaleBody(Answer):
    """Answer with status 409; both diffs are against the base."""

    error: StaleDetail


class ScheduledView(Answer):
    """A change that waits, or how it ended."""

    id: str
    created_at: datetime
    due_at: datetime
    until_at: datetime | None = None
    action: str
    author: str = ""
    reason: str = ""
    changes: dict[str, Any]
    state: str
    note: str = ""
    revision: int | None = None


class ScheduledList(Answer):
    """GET /scheduled."""

    items: list[ScheduledView]


class PreviewFigures(Answer):
    """Expected over the window; None where nothing tells it."""

    ttft_mean_s: float | None = None
    ttft_p90_s: float | None = None
    tbt_mean_s: float | None = None
    hit: float | None = None
    imbalance: float | None = None
    imbalance_requests: float | None = None


class MoveView(Answer):
    """Decisions that would go elsewhere."""

    source: str
    target: str
    count: int


class ExampleView(Answer):
    """One decision that would come out differently: [as recorded, as proposed]."""

    id: str
    source: str
    target: str
    ttft_s: list[float]
    match_tokens: list[int]
    total_gap: float


class EffectView(Answer):
    """Whether one changed parameter matters in the window."""

    path: str
    matters: bool
    changed: int
    constant_inputs: list[str] = []
    text: str


class ReplayView(Answer):
    """The same requests simulated under both; figures as `conductor simulate` gives them."""

    requests: int
    span_s: float
    live: dict[str, Any]
    proposed: dict[str, Any]
    notes: list[str] = []


class PreviewView(Answer):
    """POST /preview."""

    revision: int
    """The live one, which the changes were compared with."""
    decisions: int
    left_out: int
    moved: int
    moves: list[MoveView]
    before: PreviewFigures
    after: PreviewFigures
    examples: list[ExampleView]
    effects: list[EffectView]
    fidelity: float | None = None
    """Share of decisions that the live parameters, re-scored, place as recorded."""
    assumptions: list[str] = []
    replay: ReplayView | None = None


class ExpectedView(Answer):
    """What one side of a shadow expects."""

    placed: int
    refused: int
    ttft_mean_s: float | None = None
    tbt_mean_s: float | None = None
    hit: float | None = None
    imbalance: float | None = None


class ShadowView(Answer):
    """GET /shadow: the running shadow, or the last one."""

    running: bool
    ended: str = ""
    base: int | None = None
    changes: dict[str, list[Any]] = {}
    started_at: datetime | None = None
    author: str = ""
    reason: str = ""
    scored: int = 0
    shed: int = 0
    agreement: float | None = None
    live: ExpectedView | None = None
    candidate: ExpectedView | None = None
    moves: list[MoveView] = []
    cost_share: float = 0.0
    """Time spent over the decision time meanwhile."""
    failures: dict[str, int] = {}


class ComparedView(Answer):
    """One observed measure on both sides; low and high bound the difference at 95 %."""

    name: str
    live: float | None = None
    candidate: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: str


class SideView(Answer):
    """Counts of one side."""

    decisions: int
    refused: int
    finished: int
    failed: int
    good: int


class CanaryView(Answer):
    """GET /canary: the running canary, or the last one."""

    running: bool
    ended: str = ""
    revision: int | None = None
    base: int | None = None
    share: float | None = None
    changes: dict[str, list[Any]] = {}
    started_at: datetime | None = None
    author: str = ""
    reason: str = ""
    live: SideView | None = None
    candidate: SideView | None = None
    measures: list[ComparedView] = []


class GuardView(Answer):
    """GET /guard."""

    enabled: bool
    state: str
    """quiet, watching, condemned or resting."""
    live: int
    good: int
    """What would be restored."""
    ends_in_s: float | None = None
    """Of the guard time, or of the rest."""
    burn: dict[str, float] = {}
    """Burn rate of all traffic by window: 5m, 30m, 1h, 6h."""
    suspects: int = 0
    """Requests decided under the suspected revisions."""
    objective: float
    evidence: dict[str, Any] = {}
    rollbacks: int = 0
    """Since the start."""

"""What the core needs from outside, as protocols, and the flat records that cross them.

A `RecordSink` takes records and never makes the caller wait; a `RecordStore` answers questions
about records that were kept. `core.audit` builds the records, `storage` implements both sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

import msgspec

from core.domain import NodeSpec, Telemetry


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One scheduling call as one row: a placement, or a rejection (`status` is set).

    Times are seconds, `at` is aware UTC. Candidates and exclusions are compact JSON
    texts (see `core.audit_json`); an empty text means there is none.
    """

    id: str
    at: datetime
    request_id: str
    model: str
    policy: str
    revision: int
    prompt_tokens: int
    output_tokens_expected: int = 0
    attempt: int = 0
    """0 for a request's first decision, 1 for its first retry, ..."""
    adapter: str = ""
    tenant: str = ""
    priority: int = 0
    session: str = ""
    """Hash of the session name; empty without a session."""
    signal: str = ""
    """Rung of the degradation ladder; empty for rejections."""
    status: int | None = None
    """HTTP status of a rejection; None where the request was placed."""
    code: str = ""
    message: str = ""
    retry_after_s: float = 0.0
    prefill_node: str | None = None
    decode_node: str | None = None
    match_tokens: int = 0
    reachable_tokens: int = 0
    prefix_tokens: int = 0
    fetch_from: str | None = None
    fetch_tokens: int = 0
    predicted_queue_s: float | None = None
    predicted_transfer_s: float | None = None
    predicted_prefill_s: float | None = None
    predicted_ttft_s: float | None = None
    predicted_tbt_s: float | None = None
    ttft_slo_s: float | None = None
    """The limit in force: the request's own, else the tunables'."""
    tbt_slo_s: float | None = None
    tied: int = 1
    notes: str = ""
    """The decision's notes, one a line."""
    excluded: str = ""
    decode_excluded: str = ""
    candidates: str = ""
    decode_candidates: str = ""

    @property
    def placed(self) -> bool:
        """Whether the request was sent to a node."""
        return self.status is None


class OutcomeRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a placed request ended, as one row; at most one a decision."""

    decision_id: str
    decided_at: datetime
    """When the decision was made (its `at`); aware UTC."""
    finished_at: datetime
    kind: str
    """An `OutcomeKind`."""
    ttft_s: float | None = None
    tbt_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    slo_missed: str = ""
    """Limits the observed times broke: empty, ``ttft``, ``tbt`` or ``ttft+tbt``."""
    status: int | None = None
    error: str = ""
    failed_node: str | None = None
    """Which node failed, where it was told apart from the one that worked last."""
    prefill_node: str | None = None
    """The decision's prefill node, so that latencies are known by node."""


class EventRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A transition worth keeping: breaker, trust, node life cycle. Newest ids sort last."""

    id: str
    at: datetime
    kind: str
    node: str = ""
    data: dict[str, Any] = {}


class RevisionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the live configuration, made from revision `base`."""

    number: int
    base: int
    at: datetime
    author: str
    reason: str
    changes: dict[str, Any]
    """Tunable path -> [old, new]."""
    values: dict[str, Any]
    """Every tunable after the change, by path."""
    kind: str = "change"
    """What made it: start, change, rollback, scheduled, expiry, guard; or canary, which is a
    candidate that never became live."""
    detail: dict[str, Any] = {}
    """Further facts: what was rolled back, the guard's evidence, when it expires."""


class ScheduledRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A change that waits for its time, or the end of one that expires."""

    id: str
    created_at: datetime
    due_at: datetime
    until_at: datetime | None = None
    """When to take it back again; None keeps it."""
    action: str = "apply"
    """``apply`` or ``revert``."""
    author: str
    reason: str
    changes: dict[str, Any]
    """Tunable path -> value to set."""
    expected: dict[str, Any]
    """Tunable path -> value it must still have when the time comes."""
    state: str = "pending"
    """pending, done, cancelled, skipped or failed."""
    note: str = ""
    revision: int | None = None
    """The revision it made, or (revert) the one it takes back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkCounters:
    """What a sink did since it started; `queued` is now."""

    queued: int
    written: int
    """Rows stored, duplicates apart."""
    dropped: int
    """Rows given up because the queue was full or a row could not be stored at all."""
    failures: int
    """Failed attempts to store a batch."""
    last_error: str = ""
    available: bool = True
    """Whether the last attempt succeeded."""
    lag_s: float = 0.0
    """Age of the oldest row in the queue."""
    last_batch_rows: int = 0
    last_batch_s: float = 0.0
    """How long the last stored batch took."""
    spooled: int = 0
    """Rows in the local spool, waiting for the database."""
    spool_bytes: int = 0
    spool_damaged: int = 0
    """Stretches of spool files that could not be read."""
    spool_failures: int = 0
    """Failed attempts to write the spool."""


class RecordSink(Protocol):
    """Takes records. No method blocks or raises; what cannot be taken is dropped and counted."""

    def put_decision(self, record: DecisionRecord) -> None:
        """Keep a decision or rejection."""
        ...

    def put_outcome(self, record: OutcomeRecord) -> None:
        """Keep an outcome; it may come before its decision is stored."""
        ...

    def put_telemetry(self, node: str, at: datetime, reading: Telemetry) -> None:
        """Keep one reading of a node's gauges."""
        ...

    def put_event(self, kind: str, node: str, data: Mapping[str, Any], at: datetime) -> None:
        """Keep a transition; `data` must be JSON-serialisable."""
        ...

    def put_node(self, spec: NodeSpec, state: str, at: datetime) -> None:
        """Keep a node as registered, with its life-cycle state (see `NODE_STATES`)."""
        ...

    def counters(self) -> SinkCounters:
        """Figures for metrics and the console."""
        ...


NODE_STATES = ("active", "draining", "removed")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionQuery:
    """Filters of the decision list; all given ones must hold.

    `start` is inclusive, `end` exclusive, both on the decision's time.
    """

    start: datetime | None = None
    end: datetime | None = None
    node: str | None = None
    """Prefill or decode node."""
    policy: str | None = None
    model: str | None = None
    tenant: str | None = None
    revision: int | None = None
    kind: str | None = None
    """An `OutcomeKind`; ``open`` finds placed requests without an outcome so far."""
    code: str | None = None
    """Rejection code; ``*`` finds every rejection."""
    below_best_match: bool = False
    """Placed where less of the prompt was cached than on the best holder."""
    slo_missed: bool = False
    text: str | None = None
    """Start of a decision id (8 characters or more), or a whole decision or request id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Position in the newest-first order: everything strictly older follows."""

    at: datetime
    id: str


@dataclass(frozen=True, slots=True)
class StoredDecision:
    """A decision with its outcome, None while there is none."""

    decision: DecisionRecord
    outcome: OutcomeRecord | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """One page of decisions, newest first; `next` is None on the last page.

    A page may hold fewer rows than asked for, even none, and still have a `next`: fitting rows
    are rare, and the search stopped there to answer in time.
    """

    rows: tuple[StoredDecision, ...]
    next: Cursor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBucket:
    """Aggregates of the decisions made in [start, start + step).

    Percentiles are None without observations. Token sums: `match_tokens` and
    `reachable_tokens` of `prompt_tokens` (placed requests); `cached_tokens` of
    `reported_prompt_tokens` (requests whose engine reported cached tokens).
    """

    start: datetime
    decisions: int = 0
    rejected: int = 0
    finished: int = 0
    failed: int = 0
    """Outcomes other than ok and client_abort."""
    aborted: int = 0
    """Outcomes client_abort."""
    slo_missed: int = 0
    prompt_tokens: int = 0
    match_tokens: int = 0
    reachable_tokens: int = 0
    reported_prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    per_node: Mapping[str, int] = field(default_factory=dict)
    """Placed requests by prefill node."""
    ttft_p50_s: float | None = None
    ttft_p90_s: float | None = None
    ttft_p99_s: float | None = None
    tbt_p50_s: float | None = None
    tbt_p90_s: float | None = None
    tbt_p99_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShare:
    """What one prefill node received in a time range."""

    node: str
    decisions: int
    prompt_tokens: int
    match_tokens: int
    reachable_tokens: int


@dataclass(frozen=True, slots=True)
class TelemetryPoint:
    """One stored reading."""

    node: str
    at: datetime
    reading: Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredNode:
    """A node as last registered."""

    spec: NodeSpec
    state: str
    first_seen_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRecord:
    """A process that shares the database, as it last said."""

    id: str
    host: str
    pid: int
    version: str
    address: str
    started_at: datetime
    seen_at: datetime
    stopped_at: datetime | None
    alive: bool
    """Not stopped, and heard of lately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCounts:
    """Rows kept; `open` is by how many placed decisions exceed the outcomes."""

    decisions: int
    rejections: int
    outcomes: int
    open: int
    telemetry: int
    events: int
    nodes: int


class ControlStore(Protocol):
    """Keeps administrative acts. Every method may block, and raises StoreError on failure."""

    def revisions(self, *, limit: int = 100) -> Sequence[RevisionRecord]:
        """Newest first, canary candidates included."""
        ...

    def revision(self, number: int) -> RevisionRecord:
        """One of them; NotFound."""
        ...

    def scheduled(self, *, pending_only: bool = True) -> Sequence[ScheduledRecord]:
        """Changes that wait for their time, earliest first; or the newest 200 of all."""
        ...

    def commit_act(
        self,
        *,
        revision: RevisionRecord | None = None,
        scheduled: Sequence[ScheduledRecord] = (),
        events: Sequence[EventRecord] = (),
    ) -> None:
        """Store all of one act in one transaction; Conflict for a stale revision."""
        ...


class RecordStore(ControlStore, Protocol):
    """Answers questions about stored records. Every method may block, and raises StoreError
    where the store cannot be read; call it from a thread, never on the decision path."""

    def decisions(
        self, query: DecisionQuery, *, before: Cursor | None = None, limit: int = 100
    ) -> Page:
        """Newest first, strictly older than `before`; `limit` at most 1000."""
        ...

    def decision(self, id: str) -> StoredDecision:
        """By whole id or a prefix of it that is unique; NotFound, or BadRequest when it is not."""
        ...

    def by_request(self, request_id: str) -> Sequence[StoredDecision]:
        """All decisions of one request, oldest first; empty when there is none."""
        ...

    def series(
        self, start: datetime, end: datetime, *, step_s: int = 60, node: str | None = None
    ) -> Sequence[TimeBucket]:
        """Buckets that hold a decision or an outcome, oldest first; `node` is a prefill node."""
        ...

    def node_shares(self, start: datetime, end: datetime) -> Sequence[NodeShare]:
        """Per prefill node, most decisions first."""
        ...

    def telemetry(
        self, start: datetime, end: datetime, *, node: str | None = None, limit: int = 10_000
    ) -> Sequence[TelemetryPoint]:
        """Readings in time order; the newest `limit` of the range."""
        ...

    def events(
        self,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        kind: str | None = None,
        node: str | None = None,
        limit: int = 200,
    ) -> Sequence[EventRecord]:
        """Newest first; `kind` may end in ``*`` to match a prefix."""
        ...

    def nodes(self) -> Sequence[StoredNode]:
        """Every node ever registered, by id."""
        ...

    def replicas(self) -> Sequence[ReplicaRecord]:
        """Processes that share the database, the newest start first."""
        ...

    def counts(self) -> StoreCounts:
        """Row counts; reads whole indexes, so ask seldom."""
        ...

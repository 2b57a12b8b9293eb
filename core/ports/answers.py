"""What is asked of a record store, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from core.domain import NodeSpec, Telemetry
from core.ports.records import DecisionRecord, OutcomeRecord


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShare:
    """How the requests of one tenant for one model fared on one pair of nodes.

    `decisions` includes rejections; the counts from `finished` on are of outcomes.
    """

    tenant: str
    model: str
    prefill_node: str
    """Empty for rejections."""
    decode_node: str
    decisions: int
    rejected: int
    finished: int
    failed: int
    """Outcomes other than ok and client_abort."""
    aborted: int
    ttft_missed: int
    tbt_missed: int
    slo_missed: int
    """Either limit, or both."""
    prompt_tokens: int
    match_tokens: int
    others: bool = False
    """All that is in no other group of this tenant and model; the nodes are empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShares:
    """Groups, the largest first, `others` last, over `decisions` decisions since `covered_from`."""

    groups: tuple[RequestShare, ...]
    decisions: int
    covered_from: datetime | None
    """Time of the oldest decision that was counted; None without any."""
    complete: bool = True
    """Whether all decisions of the range were counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One request: what was promised, expected, and observed (seconds)."""

    at: datetime
    prefill_node: str | None
    predicted_ttft_s: float | None
    predicted_tbt_s: float | None
    ttft_slo_s: float | None
    tbt_slo_s: float | None
    ttft_s: float | None
    tbt_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Requests newest first, and how far back was looked."""

    requests: tuple[Timing, ...]
    covered_from: datetime | None
    complete: bool = True
    """Whether there were fewer decisions than were to be looked at."""


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
class StandingRecord:
    """What operators last said of a node, or of the whole fleet (see `core.gateway.standing`)."""

    name: str
    data: Mapping[str, Any]
    at: datetime


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
class StoreWork:
    """How one piece of a process's upkeep went since it started."""

    runs: int = 0
    failures: int = 0
    last_error: str = ""
    """Of the last run; empty where it went well."""

    def ended(self, error: str) -> StoreWork:
        """After one more run, with its error or none."""
        failed = self.failures + bool(error)
        return StoreWork(runs=self.runs + 1, failures=failed, last_error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUpkeep:
    """What a process did for its database since it started.

    Times are seconds since 1970 by this machine's clock, 0: never.
    """

    beat_at_s: float = 0.0
    """When this process last said that it is alive."""
    replicas_alive: int = 0
    rolled_at_s: float = 0.0
    rolled_buckets: int = 0
    rollup_lag_s: float = 0.0
    """Age of the oldest rows that are not rolled up, whoever should have done it."""
    cleaned_at_s: float = 0.0
    deleted_rows: int = 0
    refused: str = ""
    """Why retention last refused a table; empty where it did not."""
    failures: int = 0
    last_error: str = ""
    """Of what failed when it was last tried; empty where all went well."""
    work: Mapping[str, StoreWork] = field(default_factory=dict)
    """By name: alive, slots, roll_up, retention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatus:
    """The database in figures."""

    database: str
    """Its URL without the password."""
    kind: str
    """``sqlite`` or ``postgresql``."""
    schema: str
    """Version of the schema; empty before the first migration."""
    newest_schema: str
    size_bytes: int
    rows: Mapping[str, int]
    """Rows by table."""
    oldest_at: datetime | None
    newest_at: datetime | None
    """Times of the first and the last decision."""
    partitions: int
    rollups_behind: int


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

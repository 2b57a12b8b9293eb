"""Who keeps the records: a `RecordStore` answers questions about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Protocol

from core.ports.answers import (
    Cursor,
    DecisionQuery,
    NodeShare,
    Page,
    ReplicaRecord,
    RequestShares,
    StandingRecord,
    StoreCounts,
    StoredDecision,
    StoredNode,
    StoreStatus,
    TelemetryPoint,
    TimeBucket,
    Timings,
)
from core.ports.documents import DocumentStore
from core.ports.identity import AuditDraft, IdentityStore
from core.ports.records import EventRecord, KeptPrompt, NodeWord, RevisionRecord, ScheduledRecord


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
        word: NodeWord | None = None,
        audit: AuditDraft | None = None,
    ) -> None:
        """Store all of one act, its audit entry too, in one transaction; Conflict for a stale
        revision, or a word that knew less of its node than is stored."""
        ...


class RecordStore(ControlStore, IdentityStore, DocumentStore, Protocol):
    """Answers questions about stored records. Every method may block, and raises StoreError
    where the store cannot be read; call it from a thread, never on the decision path."""

    def decisions(
        self,
        query: DecisionQuery,
        *,
        before: Cursor | None = None,
        limit: int = 100,
        whole: bool = True,
    ) -> Page:
        """Newest first, strictly older than `before`; `limit` at most 1000.

        Not `whole`: candidates and exclusions are left out, empty in every row.
        """
        ...

    def decision(self, id: str) -> StoredDecision:
        """By whole id or a prefix of it that is unique; NotFound, or BadRequest when it is not."""
        ...

    def prompt(self, id: str) -> KeptPrompt:
        """What is kept of a decision's prompt, by its whole id; NotFound where nothing is."""
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

    def shares(
        self, start: datetime, end: datetime, *, limit: int | None = None, by_node: bool = True
    ) -> RequestShares:
        """All decisions of the range, or the newest `limit`, by tenant, model and, `by_node`,
        nodes."""
        ...

    def timings(self, start: datetime, end: datetime, *, limit: int = 5_000) -> Timings:
        """Requests with an outcome among the newest `limit` decisions of the range."""
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

    def standings(self) -> Sequence[StandingRecord]:
        """What operators last said of nodes and of the fleet, by name."""
        ...

    def replicas(self) -> Sequence[ReplicaRecord]:
        """Processes that share the database, the newest start first."""
        ...

    def ping(self) -> None:
        """Ask for nothing: StoreError where the store cannot be read."""
        ...

    def status(self) -> StoreStatus:
        """The database in figures; reads whole indexes, so ask seldom."""
        ...

    def export(self, query: DecisionQuery, format: str, *, limit: int) -> Iterator[bytes]:
        """Decisions beside their outcomes as the pieces of a file, newest first, at most `limit`.

        `format`: ``csv`` or ``parquet``. The pieces are read as they are asked for.
        """
        ...

    def counts(self) -> StoreCounts:
        """Row counts; reads whole indexes, so ask seldom."""
        ...

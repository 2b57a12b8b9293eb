"""The store as the rest of the product sees it: `open_storage(url)` gives a sink and answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, FromClause, func, select

from core.errors import StoreError
from core.ports import (
    AuditDraft,
    Cursor,
    DecisionQuery,
    EventRecord,
    KeptPrompt,
    NodeShare,
    NodeWord,
    Page,
    ReplicaRecord,
    RequestShares,
    RevisionRecord,
    ScheduledRecord,
    StandingRecord,
    StoreCounts,
    StoredDecision,
    StoredNode,
    StoreStatus,
    StoreUpkeep,
    TelemetryPoint,
    TimeBucket,
    Timings,
)
from storage import (
    audit_log,
    download,
    migrate,
    prompts,
    replicas,
    revisions,
    shares,
    standings,
    status,
    telemetry,
    timings,
)
from storage import decisions as decision_reads
from storage import series as series_reads
from storage.changes import ChangeWatch
from storage.database import (
    FAILURES,
    failures_told,
    first_line,
    parse_url,
    reader_engine,
    writer_engine,
)
from storage.identity_store import IdentityReads, logged
from storage.maintenance import Maintenance
from storage.models import decisions, events, node_telemetry, nodes, outcomes
from storage.retention import Rules
from storage.spool import MIB, Spool
from storage.writer import Writer


class Store(IdentityReads):
    """A `RecordStore`. Reads on connections that cannot write; every failure is a StoreError."""

    def __init__(self, database_url: str) -> None:
        self._reader = reader_engine(database_url)
        self._url = database_url

    def close(self) -> None:
        """Give the connections back."""
        self._reader.dispose()

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
        with self._reading() as connection:
            return decision_reads.page(connection, query, before, limit, whole=whole)

    def decision(self, id: str) -> StoredDecision:
        """By whole id or a prefix of it that is unique; NotFound, or BadRequest when it is not."""
        with self._reading() as connection:
            return decision_reads.by_id(connection, id)

    def prompt(self, id: str) -> KeptPrompt:
        """What is kept of a decision's prompt, by its whole id; NotFound where nothing is."""
        with self._reading() as connection:
            return prompts.of_decision(connection, id)

    def by_request(self, request_id: str) -> Sequence[StoredDecision]:
        """All decisions of one request, oldest first; empty when there is none."""
        with self._reading() as connection:
            return decision_reads.by_request(connection, request_id)

    def series(
        self, start: datetime, end: datetime, *, step_s: int = 60, node: str | None = None
    ) -> Sequence[TimeBucket]:
        """Buckets that hold a decision or an outcome, oldest first; `node` is a prefill node."""
        with self._reading() as connection:
            return series_reads.series(connection, start, end, step_s, node)

    def node_shares(self, start: datetime, end: datetime) -> Sequence[NodeShare]:
        """Per prefill node, most decisions first."""
        with self._reading() as connection:
            return series_reads.node_shares(connection, start, end)

    def shares(
        self, start: datetime, end: datetime, *, limit: int | None = None, by_node: bool = True
    ) -> RequestShares:
        """All decisions of the range, or the newest `limit`, by tenant, model and, `by_node`,
        nodes."""
        with self._reading() as connection:
            return shares.shares(connection, start, end, limit, by_node=by_node)

    def timings(self, start: datetime, end: datetime, *, limit: int = 5_000) -> Timings:
        """Requests with an outcome among the newest `limit` decisions of the range."""
        with self._reading() as connection:
            return timings.timings(connection, start, end, limit)

    def telemetry(
        self, start: datetime, end: datetime, *, node: str | None = None, limit: int = 10_000
    ) -> Sequence[TelemetryPoint]:
        """Readings in time order; the newest `limit` of the range."""
        with self._reading() as connection:
            return telemetry.telemetry(connection, start, end, node, limit)

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
        with self._reading() as connection:
            return telemetry.recent_events(connection, start, end, kind, node, limit)

    def nodes(self) -> Sequence[StoredNode]:
        """Every node ever registered, by id."""
        with self._reading() as connection:
            return telemetry.registered_nodes(connection)

    def standings(self) -> Sequence[StandingRecord]:
        """What operators last said of nodes and of the fleet, by name."""
        with self._reading() as connection:
            return telemetry.standings_by_name(connection)

    def revisions(self, *, limit: int = 100) -> Sequence[RevisionRecord]:
        """Configuration revisions, newest first."""
        with self._reading() as connection:
            return revisions.newest_first(connection, limit)

    def revision(self, number: int) -> RevisionRecord:
        """One revision; NotFound."""
        with self._reading() as connection:
            return revisions.one(connection, number)

    def scheduled(self, *, pending_only: bool = True) -> Sequence[ScheduledRecord]:
        """Changes that wait for their time, earliest first; or the newest of all."""
        with self._reading() as connection:
            return revisions.scheduled(connection, pending_only=pending_only)

    def add_revision(self, record: RevisionRecord) -> None:
        """Store a revision at once; Conflict when it was not made from the newest one."""
        self.commit_act(revision=record)

    def commit_act(
        self,
        *,
        revision: RevisionRecord | None = None,
        scheduled: Sequence[ScheduledRecord] = (),
        events: Sequence[EventRecord] = (),
        word: NodeWord | None = None,
        audit: AuditDraft | None = None,
    ) -> None:
        """Store all of one administrative act in one transaction; Conflict for a stale base."""
        entry = None
        with self._writing() as connection:
            revisions.commit_act(connection, revision, scheduled, events)
            if word is not None:
                standings.say(connection, word)
            if audit is not None:
                entry = audit_log.append(connection, audit)
        if entry is not None:
            logged(entry)

    def replicas(self) -> Sequence[ReplicaRecord]:
        """Processes that share the database, the newest start first."""
        with self._reading() as connection:
            return replicas.known(connection)

    def ping(self) -> None:
        """Ask for nothing: StoreError where the database cannot be read."""
        with self._reading() as connection:
            connection.execute(select(1))

    def status(self) -> StoreStatus:
        """The database in figures; reads whole indexes, so ask seldom."""
        with failures_told():
            return status.read(self._reader, self._url)

    def export(self, query: DecisionQuery, format: str, *, limit: int) -> Iterator[bytes]:
        """The decisions of `query` beside their outcomes as the pieces of a CSV or Parquet file.

        Newest first, at most `limit`. Each page is read in a transaction of its own.
        """
        return download.pieces(self.decisions, query, format, limit)

    def counts(self) -> StoreCounts:
        """Row counts; reads whole indexes, so ask seldom."""
        with self._reading() as connection:
            return _counts(connection)

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        try:
            with self._reader.connect() as connection:
                yield connection
        except FAILURES as error:
            raise StoreError(f"the record store cannot be read: {first_line(error)}") from error


class ReadingStore(Store):
    """A store through which nothing can be written: every act is a StoreError."""

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        raise StoreError("this instance only reads stored records")
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """What a long-running process does for the database it shares; see `Maintenance`.

    `on_change` is called from a thread with the topics that changed (`storage.changes`), also by
    other processes. Empty `replica`: a name is made up.
    """

    replica: str = ""
    version: str = ""
    address: str = ""
    rules: Rules = field(default_factory=Rules)
    on_change: Callable[[frozenset[str]], None] | None = None


class Storage:
    """A writer and a store over one database, and its upkeep; close it to flush."""

    def __init__(
        self,
        sink: Writer,
        store: Store,
        *,
        maintenance: Maintenance | None = None,
        watch: ChangeWatch | None = None,
    ) -> None:
        self.sink = sink
        self.store = store
        self.maintenance = maintenance
        self.watch = watch

    def __enter__(self) -> Storage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def upkeep(self) -> StoreUpkeep:
        """What this process did for its database; nothing where it does nothing."""
        return StoreUpkeep() if self.maintenance is None else self.maintenance.upkeep()

    def close(self, timeout_s: float = 10.0) -> None:
        """Store what is queued, for at most `timeout_s`, and give everything back."""
        for helper in (self.watch, self.maintenance):
            if helper is not None:
                helper.close()
        self.sink.close(timeout_s)
        self.store.close()


def open_storage(
    database_url: str,
    *,
    spool_dir: Path | None = None,
    spool_bytes_max: int = 256 * MIB,
    keeping: Keeping | None = None,
    capacity: int = 100_000,
    batch_max: int = 1_000,
) -> Storage:
    """Open the database, bring its schema up to date, and start the writer.

    `spool_dir`: where rows wait on disk while the database is away or slow; None keeps them in
    memory. `keeping` starts the upkeep. A database that is away is no error here: the writer
    migrates and stores once it is back. SchemaMismatch when a newer release made the schema,
    BadRequest for a URL that makes no sense.
    """
    parse_url(database_url)
    migrated = migrate.try_upgrade(database_url)
    writer = Writer(
        writer_engine(database_url),
        spool=Spool(spool_dir, bytes_max=spool_bytes_max),
        prepare=None if migrated else lambda: migrate.upgrade(database_url),
        capacity=capacity,
        batch_max=batch_max,
    )
    writer.start()
    store = Store(database_url)
    if keeping is None:
        return Storage(writer, store)
    return Storage(writer, store, **_upkeep(database_url, keeping))


def _upkeep(database_url: str, keeping: Keeping) -> dict[str, Any]:
    """The helpers of a long-running process, started."""
    maintenance = Maintenance(
        database_url,
        replica=keeping.replica,
        version=keeping.version,
        address=keeping.address,
        rules=keeping.rules,
    )
    maintenance.start()
    watch = None
    if keeping.on_change is not None:
        watch = ChangeWatch(database_url, keeping.on_change)
        watch.start()
    return {"maintenance": maintenance, "watch": watch}


def _counts(connection: Connection) -> StoreCounts:
    def rows(table: FromClause, *conditions: ColumnElement[bool]) -> int:
        statement = select(func.count()).select_from(table).where(*conditions)
        return int(connection.execute(statement).scalar_one())

    every = rows(decisions)
    rejected = rows(decisions, decisions.c.status.is_not(None))
    ended = rows(outcomes)
    return StoreCounts(
        decisions=every,
        rejections=rejected,
        outcomes=ended,
        open=max(every - rejected - ended, 0),
        telemetry=rows(node_telemetry),
        events=rows(events),
        nodes=rows(nodes),
    )

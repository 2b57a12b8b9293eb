"""The record store as operators see it: database, writer, spool, upkeep, replicas."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from core.wire.base import Answer
from core.wire.decisions import DecisionQuery


class DatabaseView(Answer):
    """The database in figures; `read_at` says how fresh they are."""

    url: str
    """Without the password."""
    kind: str
    """sqlite or postgresql."""
    schema_version: str
    newest_schema: str
    """The newest version this release knows; the same where the database is up to date."""
    size_bytes: int
    rows: dict[str, int]
    """Rows by table."""
    oldest_at: datetime | None = None
    newest_at: datetime | None = None
    """Times of the first and the last decision."""
    partitions: int = 0
    rollups_behind: int = 0
    """Stretches of ten seconds that wait to be rolled up."""
    read_at: datetime


class WriterView(Answer):
    """What became of this process's records since it started."""

    available: bool
    """Whether the last attempt to store succeeded."""
    queued: int
    written: int
    dropped: int
    failures: int
    lag_s: float
    """Age of the oldest record that is not stored."""
    last_error: str = ""
    last_batch_rows: int = 0
    last_batch_s: float = 0.0


class SpoolView(Answer):
    """What waits on this machine's disk for the database."""

    rows: int
    size_bytes: int
    damaged: int
    """Stretches that could not be read; their records are lost."""
    failures: int
    """Failed attempts to write it: the disk is full, or gone."""


class UpkeepView(Answer):
    """Roll-ups and retention, as far as this process did them; None: not yet."""

    rolled_at: datetime | None = None
    rolled_buckets: int = 0
    rollup_lag_s: float = 0.0
    """Age of the oldest rows not rolled up, whichever process should have done it."""
    cleaned_at: datetime | None = None
    deleted_rows: int = 0
    refused: str = ""
    """Why retention last refused to delete; empty where it did not."""
    failures: int = 0
    last_error: str = ""
    replicas_alive: int = 0


class StorageView(Answer):
    """GET /storage. `database` is None while it cannot be read; `error` says why."""

    database: DatabaseView | None = None
    error: str = ""
    writer: WriterView | None = None
    """None where this process writes nothing."""
    spool: SpoolView | None = None
    upkeep: UpkeepView | None = None
    export_rows_max: int
    """Longest export of decisions."""


class ReplicaView(Answer):
    """A process that shares the database."""

    id: str
    host: str
    pid: int
    version: str = ""
    address: str = ""
    started_at: datetime
    seen_at: datetime
    stopped_at: datetime | None = None
    alive: bool
    """Not stopped, and heard of in the last 15 s."""


class ReplicaList(Answer):
    """GET /replicas: the newest start first; silent ones are forgotten after a week."""

    replicas: list[ReplicaView]


class ExportQuery(DecisionQuery):
    """Filters of GET /decisions/export: those of GET /decisions, without pages."""

    format: Literal["csv", "parquet"] = "csv"
    limit: int = Field(default=100_000, ge=1)
    """Most rows; at most the service's `records.export_rows_max`."""

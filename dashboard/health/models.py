"""The record store, replicas and the service's own health as tiles and rows. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, tzinfo

from core import wire
from dashboard.overview.models import Tile
from dashboard.parts import format as fmt
from dashboard.parts.theme import Level

LAG_WARN_S, LAG_BAD_S = 5.0, 60.0
SLOW_ALERT = "decisions_slow"
LOOP_WARN_MS, LOOP_BAD_MS = 50.0, 250.0


def size(value: float | None) -> str:
    """A size in bytes."""
    if value is None:
        return fmt.NONE
    for limit, divisor, unit in ((1e3, 1, "B"), (1e6, 1e3, "kB"), (1e9, 1e6, "MB")):
        if value < limit:
            return f"{fmt.digits(value / divisor)} {unit}"
    return f"{fmt.digits(value / 1e9)} GB"


def _level(value: float, warn: float, bad: float) -> Level:
    return "bad" if value >= bad else "warn" if value >= warn else "ok"


def storage_tiles(s: wire.StorageView) -> list[Tile]:
    """Database, writer, spool, upkeep."""
    return [_database(s), *_writer(s), *_upkeep(s)]


def _database(s: wire.StorageView) -> Tile:
    about = "Decisions, outcomes, telemetry and acts are kept there; scheduling goes on without it."
    d = s.database
    if d is None:
        return Tile("Database", "away", "bad", s.error or "not readable", "", about)
    behind = d.schema_version != d.newest_schema
    word = f"schema {d.schema_version}, newest {d.newest_schema}" if behind else "schema up to date"
    return Tile("Database", size(d.size_bytes), "warn" if behind else "ok", word,
                d.kind, about)  # fmt: skip


def _writer(s: wire.StorageView) -> list[Tile]:
    w, spool = s.writer, s.spool
    if w is None:
        return [Tile("Writer", fmt.NONE, "none", "this process writes nothing", "", "")]
    level = _level(w.lag_s, LAG_WARN_S, LAG_BAD_S)
    tiles = [
        Tile(
            "Waiting to be stored", fmt.count(w.queued), "ok" if w.available else "bad",
            "stores" if w.available else f"does not store: {w.last_error}",
            f"last batch {w.last_batch_rows} rows in {fmt.seconds(w.last_batch_s)}",
            "Records in the queue of this process.",
        ),
        Tile(
            "Oldest not stored", fmt.seconds(w.lag_s), level, "keeps up" if level == "ok" else
            "falls behind", f"{fmt.count(w.written)} written since the start",
            "Age of the oldest record that is not in the database.",
        ),
        Tile(
            "Lost records", fmt.count(w.dropped), "bad" if w.dropped else "ok",
            "since the start" if w.dropped else "none", f"{w.failures} failed attempts",
            "Records that neither the database nor the spool took.",
        ),
    ]  # fmt: skip
    if spool is not None:
        tiles.append(
            Tile(
                "Spooled on disk", fmt.count(spool.rows), "warn" if spool.rows else "ok",
                "waits for the database" if spool.rows else "empty",
                f"{size(spool.size_bytes)}; {spool.damaged} damaged, {spool.failures} failures",
                "What is kept on this machine until the database takes it.",
            )
        )  # fmt: skip
    return tiles


def _upkeep(s: wire.StorageView) -> list[Tile]:
    u = s.upkeep
    if u is None:
        return []
    level = _level(u.rollup_lag_s, 120, 1800)
    return [
        Tile(
            "Roll-ups behind by", fmt.seconds(u.rollup_lag_s), level,
            "keep up" if level == "ok" else "fall behind",
            f"{fmt.count(u.rolled_buckets)} stretches rolled up by this process",
            "Age of the oldest rows that are not rolled up.",
        ),
        Tile(
            "Retention", fmt.count(u.deleted_rows), "warn" if u.refused else "ok",
            u.refused or "rows deleted by this process", u.last_error,
            "Old rows are deleted in small pieces; roll-ups stay.",
        ),
    ]  # fmt: skip


def service_tiles(s: wire.ServiceView, firing: Collection[str] = ()) -> list[Tile]:
    """The scheduler process itself; `firing` names the alerts that fire."""
    slow = SLOW_ALERT in firing
    lag = _level(s.loop_lag_max_ms, LOOP_WARN_MS, LOOP_BAD_MS)
    p99 = None if s.decision_p99_us is None else s.decision_p99_us / 1e6
    p50 = None if s.decision_p50_us is None else s.decision_p50_us / 1e6
    return [
        Tile("Version", s.version or "unknown", "none", f"up for {fmt.seconds(s.uptime_s)}",
             "of the scheduler process", ""),
        Tile(
            "Decision time, p99", fmt.seconds(p99),
            "none" if p99 is None else "warn" if slow else "ok",
            "slow: an alert fires" if slow else f"p50 {fmt.seconds(p50)}",
            f"p50 {fmt.seconds(p50)}" if slow else "", "Time of one scheduling call.",
        ),
        Tile(
            "Event loop late by", f"{fmt.digits(s.loop_lag_ms)} ms", lag,
            f"worst of the last minute {fmt.digits(s.loop_lag_max_ms)} ms", "",
            "How late the loop that decides ran its last heartbeat.",
        ),
    ]  # fmt: skip


def row_counts(d: wire.DatabaseView) -> list[dict[str, object]]:
    """Rows by table, most first."""
    return [
        {"Table": name, "Rows": rows} for name, rows in sorted(d.rows.items(), key=lambda i: -i[1])
    ]


def span_words(d: wire.DatabaseView, zone: tzinfo) -> str:
    """From when to when there are decisions."""
    if d.oldest_at is None or d.newest_at is None:
        return f"No decision is stored yet. Kept in `{d.url}`."
    first, last = (fmt.moment(at, zone)[:19] for at in (d.oldest_at, d.newest_at))
    read = fmt.clock(d.read_at, zone)
    return f"Decisions from {first} to {last}; figures of {read}. Kept in `{d.url}`."


def replica_rows(
    replicas: Sequence[wire.ReplicaView], *, now: datetime, zone: tzinfo
) -> list[dict[str, object]]:
    """Processes that share the database, those that live first."""
    ordered = sorted(replicas, key=lambda r: (not r.alive, -r.started_at.timestamp()))
    return [
        {
            "State": _replica_state(r),
            "Address": r.address,
            "Host": r.host,
            "Process": r.pid,
            "Version": r.version,
            "Started": fmt.moment(r.started_at, zone)[:19],
            "Heard of": fmt.ago((now - r.seen_at).total_seconds()),
        }
        for r in ordered
    ]


def _replica_state(r: wire.ReplicaView) -> str:
    if r.alive:
        return "✓ alive"
    return "○ stopped" if r.stopped_at else "✕ silent"


def counter_rows(s: wire.ServiceView) -> list[dict[str, object]]:
    """Everything the service counts, by name."""
    return [
        {"Counter": name, "Since the start": value} for name, value in sorted(s.counters.items())
    ]

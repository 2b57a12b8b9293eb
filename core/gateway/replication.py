"""How often the fleet's caches repeat themselves, over a week.

Samples of a day are held in memory; a job puts them into the record store, a document an hour. A
document is written as what it holds already joined with what this process has seen, a sample a
step: so a start within the hour loses nothing, and schedulers that share a database add to each
other's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from core import wire
from core.errors import NotFound, StoreError
from core.index.types import IndexStats
from core.ports import DocumentRecord, RecordStore

if TYPE_CHECKING:
    from core.gateway.service import Service

STEP_S = 30.0
POINTS_MAX = 2_880
"""In memory: a day."""
KEEP_EVERY_S = 60.0
HOURS_MAX = 8 * 24
"""Stored documents: as far back as the API answers, and a day."""
KIND = "replication"
_HOUR = timedelta(hours=1)


class ReplicationHistory:
    """A bounded row of samples of the index. Pure, with the time given."""

    def __init__(self) -> None:
        self._points: deque[wire.ReplicationPoint] = deque(maxlen=POINTS_MAX)
        self._due_s = 0.0

    def due(self, now: float) -> bool:
        """Whether a step has passed since the last sample; says so once."""
        if now < self._due_s:
            return False
        self._due_s = now + STEP_S
        return True

    def sample(self, stats: IndexStats, at: datetime) -> None:
        """Note one moment."""
        self._points.append(
            wire.ReplicationPoint(
                at=at,
                blocks=stats.entries,
                copies=sum(stats.blocks.values()),
                evicted=stats.evicted,
            )
        )

    def points(self) -> list[wire.ReplicationPoint]:
        """All, oldest first."""
        return list(self._points)


class KeptReplication:
    """The samples in memory and those in the store, as one row."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._kept_to: datetime | None = None
        """Time of the newest sample that is stored; a failed write is made up by the next."""
        what = "store how often caches repeat themselves"
        if service.store is not None:
            service.jobs.add("replication", self.keep, every_s=KEEP_EVERY_S, what=what)

    async def keep(self) -> None:
        """Store what was sampled since the last time. StoreError."""
        store, points = self._service.store, self._service.upkeep.replication.points()
        fresh = [p for p in points if self._kept_to is None or p.at > self._kept_to]
        if store is None or not fresh:
            return
        for hour in sorted({_hour(p.at) for p in fresh}):
            mine = [p for p in points if _hour(p.at) == hour]
            await asyncio.to_thread(_put, store, hour, mine)
        self._kept_to = fresh[-1].at

    async def between(self, start: datetime, end: datetime, most: int) -> wire.Replication:
        """Samples in [start, end), thinned to about `most`. Where the store cannot be read,
        what is in memory, marked as incomplete; StoreError where that is nothing."""
        service = self._service
        points, complete = service.upkeep.replication.points(), True
        if not points or points[0].at > start:
            try:
                if service.store is None:
                    raise StoreError("this service keeps no records")
                now = service.clock.wall()
                stored = await asyncio.to_thread(_stored, service.store, start, now)
                points = joined(stored, points)
            except StoreError:
                if not points:
                    raise
                complete = False
        shown = thinned([p for p in points if start <= p.at < end], most)
        return wire.Replication(step_s=STEP_S, points=shown, complete=complete)


def joined(*rows: Iterable[wire.ReplicationPoint]) -> list[wire.ReplicationPoint]:
    """Samples in order of time, one a step; of several that of the last row."""
    by_step = {int(p.at.timestamp() // STEP_S): p for row in rows for p in row}
    return [by_step[step] for step in sorted(by_step)]


def thinned(points: Sequence[wire.ReplicationPoint], most: int) -> list[wire.ReplicationPoint]:
    """Evenly thinned to about `most`, the newest one always there."""
    every = max(1, -(-len(points) // most))
    return list(points)[::-1][::every][::-1]


def _hour(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def _put(store: RecordStore, hour: datetime, points: list[wire.ReplicationPoint]) -> None:
    name = hour.isoformat()
    try:
        before = _points(store.document(KIND, name))
    except NotFound:
        before = []
    rows = [p.model_dump(mode="json") for p in joined(before, points)]
    record = DocumentRecord(kind=KIND, id=name, owner="", at=hour, data={"points": rows})
    store.put_document(record, keep=HOURS_MAX)


def _stored(store: RecordStore, start: datetime, now: datetime) -> list[wire.ReplicationPoint]:
    """Stored samples from the hour of `start` on. Documents are read the newest first."""
    hours = min(max((now - start) // _HOUR, 0) + 2, HOURS_MAX)
    found = store.documents(KIND, limit=hours)
    return [p for record in reversed(found) for p in _points(record)]


def _points(record: DocumentRecord) -> list[wire.ReplicationPoint]:
    return [wire.ReplicationPoint.model_validate(row) for row in record.data["points"]]

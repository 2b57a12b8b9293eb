"""What the Lab found, kept in the database: its results outlive the process that found them.

A job that has run is stored twice: without its points for the list, and the points alone, which
are many times as large. The newest `KEPT_MAX` stay. The audit's entry of a job's end, or of its
being forgotten, is in one transaction with that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Set
from datetime import datetime
from typing import TYPE_CHECKING

from pydantic import ValidationError

from core import wire
from core.control.lab import Job
from core.control.lab_run import OBJECTIVES
from core.errors import NotFound, StoreError
from core.identity.audit import entry
from core.ports import AuditDraft, DocumentRecord

if TYPE_CHECKING:
    from core.gateway.service import Service

KEPT_MAX = 50
_JOB, _POINTS = "lab_job", "lab_points"


class KeptLab:
    """Ended jobs in the store. Every method blocks; without a store nothing is kept."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def keep(self, job: Job) -> None:
        """Store a job that has run; where that fails it stays in memory alone, and is counted."""
        service, whole = self._service, job_view(job, points=True)
        if service.store is None or job.state == "cancelled":
            return
        head = whole.model_copy(update={"points": []})
        points = {"points": [p.model_dump(mode="json") for p in whole.points]}
        at = job.ended_at or service.clock.wall()
        try:
            for kind, data in ((_POINTS, points), (_JOB, head.model_dump(mode="json"))):
                record = DocumentRecord(kind=kind, id=job.id, owner=job.author, at=at, data=data)
                audit = _ended(job, at) if kind == _JOB else None
                service.store.put_document(record, keep=KEPT_MAX, audit=audit)
        except StoreError:
            service.counters["lab.unkept"] += 1
        else:
            service.counters["lab.kept"] += 1

    def jobs(self, known: Set[str]) -> list[wire.LabJob]:
        """Kept jobs but the `known` ones, newest first; none while the store is away."""
        store = self._service.store
        if store is None:
            return []
        try:
            found = store.documents(_JOB, limit=KEPT_MAX)
        except StoreError:
            return []
        read = [_read(record) for record in found if record.id not in known]
        return [job for job in read if job is not None]

    def job(self, id: str) -> wire.LabJob:
        """A kept job with its points; NotFound."""
        store = self._service.store
        if store is None:
            raise NotFound(f"no Lab job {id!r}: it never was, or was forgotten", field="id")
        head = _read(store.document(_JOB, id))
        points = store.document(_POINTS, id).data["points"]
        if head is None:
            raise NotFound(f"no Lab job {id!r} that this release can read", field="id")
        return head.model_copy(update={"points": [wire.LabPoint(**p) for p in points]})

    def forgotten(self, id: str) -> wire.LabJob | None:
        """Delete a kept job, entered in the audit; None where there was none."""
        store = self._service.store
        if store is None:
            return None
        try:
            head = _read(store.document(_JOB, id))
        except NotFound:
            return None
        store.remove_document(_POINTS, id)
        audit = entry("lab.forget", self._service.clock.wall(), target=id)
        store.remove_document(_JOB, id, audit=audit)
        return head


def _ended(job: Job, at: datetime) -> AuditDraft:
    """What the audit says at a job's end: its start was only asked for."""
    facts = {"author": job.author, "runs": job.done, "of": job.total, "error": job.error}
    return entry(f"lab.{job.state}", at, target=job.id, reason=job.reason, after=facts)


def _read(record: DocumentRecord) -> wire.LabJob | None:
    """None for what another release wrote and this one cannot read."""
    try:
        return wire.LabJob(**record.data)
    except ValidationError:
        return None


def job_view(job: Job, *, points: bool) -> wire.LabJob:
    """A job as the API shows it."""
    result = job.result
    return wire.LabJob(
        id=job.id,
        state=job.state,
        method=job.method,
        source=job.source,
        author=job.author,
        reason=job.reason,
        created_at=job.created_at,
        started_at=job.started_at,
        ended_at=job.ended_at,
        done=job.done,
        total=job.total,
        error=job.error,
        base=job.base,
        requests=result.requests if result else 0,
        objectives=OBJECTIVES.get(job.method, {}),
        best=result.best if result else "",
        notes=result.notes if result else [],
        points=[wire.LabPoint(**dataclasses.asdict(p)) for p in result.points]
        if result and points
        else [],
    )

"""Administrative acts: checked, stored with their entry in the audit, and then made live.

One lock orders them; each is one transaction. Without a database there is no change.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import Any, TypeVar

from core.clock import Clock
from core.conductor import Conductor
from core.control import schedule
from core.control.guard import SIX_HOURS_S, STEP_S, Guard
from core.control.resume import follow, resumed, steps
from core.control.revisions import KEPT_MAX, Book, Kind, Revision, from_record
from core.errors import ConductorError, Conflict, StoreError
from core.identity.audit import entry as audit_entry
from core.ports import AuditDraft, EventRecord, RecordStore, RevisionRecord, ScheduledRecord
from core.tunables import diff

T = TypeVar("T")
_KIND_EVENTS = {
    Kind.ROLLBACK: "tunables.rolled_back",
    Kind.GUARD: "guard.rolled_back",
    Kind.CANARY: "canary.started",
}
STANDS_IN = "stands_in"
"""In the detail of a revision whose stored values could not be used."""
AUTHOR = "conductor"
"""Author of what the control plane does by itself."""
log = logging.getLogger("conductor.control")


class Acts:
    """The book of revisions over a store, the changes that wait, and the guard they inform."""

    def __init__(
        self, conductor: Conductor, clock: Clock, *, store: RecordStore | None, rng: Random
    ) -> None:
        self.conductor = conductor
        self.pending: dict[str, ScheduledRecord] = {}
        self.loaded = False
        """Whether the stored revisions were read; until then there is no change."""
        self.on_act: Callable[[str, Mapping[str, Any]], None] = lambda _kind, _data: None
        """Told of every act once it is stored and live."""
        self._clock, self._store, self._rng = clock, store, rng
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._acts = 0
        self.book = Book(self._start_revision())
        self.guard = Guard(self.book.live.number)

    def _end_trials(self, why: str) -> None:
        """A new revision is live: what was compared with the old one is over."""
        raise NotImplementedError

    # -- storing ---------------------------------------------------------------------------

    async def _act(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run an act alone and to its end, even if whoever asked for it goes away."""

        async def alone() -> T:
            async with self._lock:
                if not self.loaded:
                    await self._load()
                return await work()

        task = asyncio.ensure_future(alone())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        finally:
            if task.done() and not task.cancelled():
                task.exception()

    async def _commit(
        self,
        event: str,
        *,
        revision: Revision | None = None,
        scheduled: Sequence[ScheduledRecord] = (),
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Store an act with its event in one transaction, then make it live."""
        store, at = self._require(), self._clock.wall()
        data = dict(facts or {}) or _event_data(revision, scheduled)
        entry = EventRecord(id=self._new_id(at), at=at, kind=event, data=data)
        record = None if revision is None else revision.record()
        audit = _audit(event, at, data, revision, scheduled)
        try:
            await asyncio.to_thread(
                lambda: store.commit_act(
                    revision=record, scheduled=scheduled, events=(entry,), audit=audit
                )
            )
        except Conflict:
            await self._catch_up()
            if revision is not None:
                changes = {path: new for path, (_, new) in revision.changes.items()}
                self.book.check_base(revision.base, changes)
            raise
        for change in scheduled:
            self.pending.pop(change.id, None)
            if change.state == "pending":
                self.pending[change.id] = change
        if revision is not None:
            self._adopt(revision)
        self.on_act(event, data)

    def _adopt(self, revision: Revision) -> None:
        self.book.adopt(revision)
        if revision.kind is Kind.CANARY:
            return
        now = self._clock.now()
        self.conductor.apply(revision.tunables, revision.number)
        follow(self.guard, revision, self.book.get(self.guard.good), now)
        why = f"revision {revision.number} became live"
        self._end_trials(why)

    def _require(self) -> RecordStore:
        if self._store is None:
            raise StoreError("this service keeps no records, so nothing can be changed")
        return self._store

    # -- what other processes did ----------------------------------------------------------

    async def catch_up(self) -> None:
        """Make live what another process stored; StoreError where the store is away."""
        async with self._lock:
            if self.loaded:
                await self._catch_up()

    async def _catch_up(self) -> None:
        store = self._require()
        records, waiting = await asyncio.to_thread(
            lambda: (store.revisions(limit=KEPT_MAX), store.scheduled())
        )
        self.pending = {change.id: change for change in waiting}
        missed = [record for record in reversed(records) if record.number > self.book.newest]
        for record in missed:
            revision = _readable(record) or _stand_in(record, self.book.live)
            self._adopt(revision)
            self.on_act(
                _KIND_EVENTS.get(revision.kind, "tunables.changed"), _event_data(revision, ())
            )

    # -- starting --------------------------------------------------------------------------

    def _start_revision(self) -> Revision:
        live = self.conductor
        return Revision(
            number=live.revision,
            base=live.revision - 1,
            at=self._clock.wall(),
            author=AUTHOR,
            reason="settings at the first start",
            kind=Kind.START,
            tunables=live.tunables,
            changes={},
        )

    async def _load(self) -> None:
        """Take up what is stored; StoreError where the store is away."""
        await asyncio.to_thread(self._read_all)
        self.loaded = True
        live = self.book.live
        if live.number != self.conductor.revision or diff(live.tunables, self.conductor.tunables):
            self.conductor.apply(live.tunables, live.number)

    def _read_all(self) -> None:
        """The stored revisions into the book; the first start is stored itself."""
        store = self._require()
        records = store.revisions(limit=KEPT_MAX)
        if not records:
            with contextlib.suppress(Conflict):  # another process started first
                store.commit_act(revision=self._start_revision().record())
            records = store.revisions(limit=KEPT_MAX)
        known = [r for r in map(_readable, records) if r is not None]
        history = [r for r in reversed(known) if r.kind is not Kind.CANARY]
        history = history or [self._start_revision()]
        last = next((r for r in records if r.kind != Kind.CANARY), None)
        if last is not None and last.number > history[-1].number:
            history.append(_stand_in(last, history[-1]))
        newest = max((r.number for r in records), default=0)
        self.book = Book(history[-1], newest=newest, older=known)
        self.guard = self._resumed(store, history)
        self.pending = {s.id: s for s in store.scheduled()}

    def _resumed(self, store: RecordStore, history: Sequence[Revision]) -> Guard:
        now, wall = self._clock.now(), self._clock.wall()
        guard = resumed(history, now=now, wall=wall)
        since = wall - timedelta(seconds=SIX_HOURS_S)
        stored = store.series(since, wall, step_s=int(STEP_S))
        guard.recall(steps(stored, now=now, wall=wall))
        return guard

    def _expiry(self, revision: Revision, until: datetime) -> ScheduledRecord:
        return schedule.expiry_of(revision, until, id=self._new_id(revision.at))

    def _new_id(self, at: datetime) -> str:
        """Ids that sort by time among those of other events."""
        self._acts += 1
        micros = int(at.timestamp() * 1e6)
        return f"{micros:014x}-{self._rng.getrandbits(24):06x}-{self._acts & 0xFFFFFF:06x}"


def _audit(
    event: str,
    at: datetime,
    data: Mapping[str, Any],
    revision: Revision | None,
    scheduled: Sequence[ScheduledRecord],
) -> AuditDraft:
    """The act's entry in the administrative audit: old and new values where values changed."""
    changes = {} if revision is None else revision.changes
    planned = scheduled[0] if scheduled else None
    reason, target = str(data.get("reason", "")), ""
    if revision is not None:
        reason, target = revision.reason, f"revision {revision.number}"
    elif planned is not None:
        reason, target = planned.note or planned.reason, planned.id
    return audit_entry(
        event,
        at,
        target=target,
        reason=reason,
        before={path: old for path, (old, _) in changes.items()} if changes else None,
        after={path: new for path, (_, new) in changes.items()} if changes else data,
    )


def _readable(record: RevisionRecord) -> Revision | None:
    try:
        return from_record(record)
    except (ConductorError, ValueError) as error:
        log.warning("stored revision %d cannot be used: %s", record.number, error)
        return None


def _stand_in(record: RevisionRecord, before: Revision) -> Revision:
    """In place of a stored revision that this release cannot use: its number, for changes are made
    from the newest one, with the values of the one before."""
    reason = f"revision {record.number} cannot be used by this release; {before.number}'s values"
    return replace(
        before,
        number=record.number,
        base=record.base,
        at=record.at,
        author=AUTHOR,
        reason=reason,
        kind=Kind.CANARY if record.kind == Kind.CANARY else Kind.CHANGE,
        changes={},
        detail={STANDS_IN: True},
    )


def facts_of(changes: Mapping[str, tuple[Any, Any]], author: str, reason: str) -> dict[str, Any]:
    """Data of an event: who, why, and path -> [old, new]."""
    shown = {path: list(pair) for path, pair in changes.items()}
    return {"author": author, "reason": reason, **({"changes": shown} if shown else {})}


def _event_data(revision: Revision | None, scheduled: Sequence[ScheduledRecord]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if revision is not None:
        data = {
            "revision": revision.number,
            "base": revision.base,
            "kind": revision.kind.value,
            **facts_of(revision.changes, revision.author, revision.reason),
            **revision.detail,
        }
    if scheduled:
        data["scheduled"] = [
            {"id": s.id, "action": s.action, "due_at": s.due_at.isoformat(), "state": s.state,
             "changes": s.changes, "note": s.note, "author": s.author, "reason": s.reason}
            for s in scheduled
        ]  # fmt: skip
    return data

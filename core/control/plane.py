"""The control plane of one scheduler: acts of operators, what happens by itself, trials.

Reads and the hooks of the request path never wait for the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from random import Random
from time import perf_counter
from typing import Any

from core.clock import Clock
from core.conductor import Conductor
from core.control import schedule
from core.control.acts import AUTHOR, STANDS_IN
from core.control.guard import Evidence
from core.control.preview import Report, preview
from core.control.replay import Replayed, fleet_shape, replay
from core.control.revisions import Kind, Revision, from_record, with_changes
from core.control.trial_acts import TrialActs
from core.domain import OutcomeKind
from core.errors import Conflict, Invalid, NotFound, StoreError
from core.ports import (
    Cursor,
    DecisionQuery,
    RecordStore,
    RevisionRecord,
    ScheduledRecord,
    StoredDecision,
)
from core.tunables import diff

PERIOD_S = 1.0
RELOAD_S = 5.0
_PAGE = 1_000
_NO_FAULT = frozenset({OutcomeKind.CLIENT_ABORT, OutcomeKind.REFUSED})
log = logging.getLogger("conductor.control")


class ControlPlane(TrialActs):
    """Owns the revisions, the guard and the trials of a conductor.

    store: keeps acts and records; None refuses every act with StoreError. record_event: takes
    events that belong to no act. lag_s: how late the event loop runs. timer: seconds, for costs.
    """

    def __init__(
        self,
        conductor: Conductor,
        clock: Clock,
        *,
        store: RecordStore | None,
        record_event: Callable[[str, Mapping[str, Any]], None],
        lag_s: Callable[[], float],
        rng: Random | None = None,
        timer: Callable[[], float] = perf_counter,
    ) -> None:
        super().__init__(
            conductor,
            clock,
            store=store,
            rng=rng or Random(),
            record_event=record_event,
            lag_s=lag_s,
            timer=timer,
        )
        self.last_error = ""
        self.rollbacks = 0
        self._reload_at_s = 0.0

    # -- life ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take up the newest stored revision; whoever starts it calls `tick` every `PERIOD_S`."""
        await self._try_load(self._clock.now())

    async def stop(self) -> None:
        """End; acts under way are finished, trials end with the process."""
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._end_trials("the service was stopped")

    async def tick(self, now: float) -> None:
        """One round: what is due, what the guard says."""
        if not self.loaded and not await self._try_load(now):
            return
        rules = self.conductor.tunables.guard
        if self.canary is not None and not self.canary.ended and rules.enabled:
            why = self.canary.condemned(rules)  # needs no store, so nothing that does goes first
            if why:
                self._end_canary(f"guard: {why}")
        for change in schedule.due(self.pending.values(), self._clock.wall()):
            with contextlib.suppress(Conflict):  # another process did it; we have caught up
                await self._act(partial(self._carry_out, change))
        rules = self.conductor.tunables.guard
        evidence = self.guard.tick(now, rules, live=self.book.live.number)
        if evidence is not None:
            with contextlib.suppress(Conflict):
                await self._act(partial(self._guard_rollback, evidence))

    async def _try_load(self, now: float) -> bool:
        """Read what is stored; tries again later where the store is away."""
        if self._store is None or now < self._reload_at_s:
            return False
        self._reload_at_s = now + RELOAD_S
        try:
            async with self._lock:
                if not self.loaded:
                    await self._load()
        except StoreError as error:
            self.last_error = error.message
            log.warning("revisions cannot be read yet: %s", error.message)
        return self.loaded

    async def follow(self, now: float) -> None:
        """Look for revisions of others, without acting: for who only shows them."""
        if self.loaded:
            await self.heard(frozenset({"revisions"}))
        else:
            await self._try_load(now)

    async def heard(self, topics: frozenset[str]) -> None:
        """Somebody changed what is stored under these topics: follow."""
        if "revisions" not in topics:
            return
        try:
            await self.catch_up()
        except StoreError as error:
            # The store's watch calls again once it is back.
            self.last_error = error.message
            log.warning("revisions of other processes cannot be read: %s", error.message)

    # -- acts ------------------------------------------------------------------------------

    async def change(
        self,
        changes: Mapping[str, Any],
        *,
        base: int,
        author: str,
        reason: str,
        until: datetime | None = None,
    ) -> Revision:
        """Apply changes together, for the next decision on; taken back at `until`.

        StaleBase, Invalid (nothing happened), or StoreError (nothing happened).
        """

        async def act() -> Revision:
            at = self._clock.wall()
            schedule.check_until(until, after=at, field="until")
            detail = {} if until is None else {"until": until.isoformat()}
            made = self.book.change(
                changes, base=base, at=at, author=author, reason=reason, detail=detail
            )
            ends = () if until is None else (self._expiry(made, until),)
            await self._commit("tunables.changed", revision=made, scheduled=ends)
            return made

        return await self._act(act)

    async def rollback(
        self, to: int | None, *, base: int | None, author: str, reason: str
    ) -> Revision:
        """Restore revision `to`, by default the one before the live one, as a new revision."""

        async def act() -> Revision:
            if base is not None:
                self.book.check_base(base, {})
            target = await self.revision(self.book.live.base if to is None else to)
            made = self.book.restore(target, at=self._clock.wall(), author=author, reason=reason)
            await self._commit("tunables.rolled_back", revision=made)
            return made

        return await self._act(act)

    async def schedule(
        self,
        changes: Mapping[str, Any],
        *,
        due: datetime,
        until: datetime | None,
        author: str,
        reason: str,
    ) -> ScheduledRecord:
        """Apply changes at `due`, take them back at `until`."""

        async def act() -> ScheduledRecord:
            planned = schedule.planned(
                self.book.live.tunables,
                changes,
                id=self._new_id(self._clock.wall()),
                now=self._clock.wall(),
                due=due,
                until=until,
                author=author,
                reason=reason,
            )
            await self._commit("tunables.scheduled", scheduled=(planned,))
            return planned

        return await self._act(act)

    async def cancel(self, id: str, *, author: str, reason: str) -> ScheduledRecord:
        """Call a waiting change off."""

        async def act() -> ScheduledRecord:
            if id not in self.pending:
                raise NotFound(f"no scheduled change {id!r} is waiting", field="id")
            ended = schedule.ended(self.pending[id], "cancelled", note=f"{author}: {reason}")
            await self._commit("tunables.schedule_cancelled", scheduled=(ended,))
            return ended

        return await self._act(act)

    # -- reads -----------------------------------------------------------------------------

    async def revision(self, number: int) -> Revision:
        """A revision by number; NotFound."""
        kept = self.book.get(number)
        if kept is not None and STANDS_IN not in kept.detail:
            return kept
        return from_record(await self._read_revision(number))

    async def _read_revision(self, number: int) -> RevisionRecord:
        store = self._require()
        return await asyncio.to_thread(store.revision, number)

    async def preview(
        self, changes: Mapping[str, Any], *, decisions: int, simulate: bool, requests: int
    ) -> tuple[Report, Replayed | None]:
        """What these changes would do to the newest recorded decisions, and simulated requests."""
        live = self.book.live.tunables
        proposed = with_changes(live, changes)
        if not diff(live, proposed):
            raise Invalid("changes: every value is what it is already", field="changes")
        store = self._require()
        seed = self._rng.getrandbits(32)

        def rescored() -> Report:
            return preview(newest_first(store, decisions)[::-1], live, proposed, seed=seed)

        report = await asyncio.to_thread(rescored)
        if not simulate:
            return report, None
        seen, shape = self.window.requests(requests), fleet_shape(self.conductor.fleet)
        return report, await asyncio.to_thread(replay, seen, shape, live, proposed)

    async def scheduled(self, *, pending_only: bool) -> Sequence[ScheduledRecord]:
        """Waiting changes, or the newest of all."""
        if pending_only:
            return sorted(self.pending.values(), key=lambda s: (s.due_at, s.id))
        store = self._require()
        return await asyncio.to_thread(lambda: store.scheduled(pending_only=False))

    # -- by itself -------------------------------------------------------------------------

    async def _carry_out(self, change: ScheduledRecord) -> None:
        """Do what is due now, or say why not."""
        at = self._clock.wall()
        if change.until_at is not None and change.until_at <= at:
            over = schedule.ended(change, "skipped", note="its time was over already")
            await self._commit("tunables.schedule_skipped", scheduled=(over,))
            return
        changes, note = schedule.still_meant(change, self.book.live.tunables)
        apply = change.action == "apply"
        try:
            if not changes:
                raise Invalid(note, field="changes")
            made = self.book.change(
                changes,
                base=self.book.live.number,
                at=at,
                author=change.author if apply else AUTHOR,
                reason=change.reason,
                kind=Kind.SCHEDULED if apply else Kind.EXPIRY,
                detail={"scheduled": change.id, **({"note": note} if note else {})},
            )
        except Invalid as error:
            state = "skipped" if error.field == "changes" else "failed"
            ended = schedule.ended(change, state, note=error.message)
            await self._commit(f"tunables.schedule_{state}", scheduled=(ended,))
            return
        ended = schedule.ended(change, "done", note=note, revision=made.number)
        more = () if change.until_at is None else (self._expiry(made, change.until_at),)
        await self._commit("tunables.changed", revision=made, scheduled=(ended, *more))

    async def _guard_rollback(self, evidence: Evidence) -> None:
        """Restore the last good revision, with the evidence."""
        bad, good = self.book.live, self.guard.good
        try:
            made = self.book.restore(
                await self.revision(good),
                at=self._clock.wall(),
                author=AUTHOR,
                reason=f"guard: {evidence.sentence()}"[:500],
                kind=Kind.GUARD,
                detail={"rolled_back": bad.number, "evidence": evidence.facts()},
            )
        except (Invalid, NotFound):  # the good values are live already, or gone for good
            self.guard.settled(bad.number)
            return
        await self._commit("guard.rolled_back", revision=made)
        self.rollbacks += 1
        log.warning(
            "revision %d rolled back to the values of %d: %s", bad.number, good, made.reason
        )


def newest_first(store: RecordStore, count: int) -> list[StoredDecision]:
    """The newest `count` decisions."""
    found: list[StoredDecision] = []
    before: Cursor | None = None
    while len(found) < count:
        page = store.decisions(DecisionQuery(), before=before, limit=min(_PAGE, count - len(found)))
        found.extend(page.rows)
        before = page.next
        if before is None:
            break
    return found

"""Shadow and canary: their acts, and the hooks by which requests reach them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from core.clock import Clock
from core.conductor import Conductor
from core.control.acts import Acts, facts_of
from core.control.canary import Canary
from core.control.revisions import Kind
from core.control.trials import CanaryRun, ShadowRun, lent, tried
from core.control.window import Window
from core.domain import Decision, Outcome, OutcomeKind, Rejection, Request
from core.errors import Conflict, NotFound
from core.ports import RecordStore
from core.tunables import diff

_NO_FAULT = frozenset({OutcomeKind.CLIENT_ABORT, OutcomeKind.REFUSED})
_OURS = frozenset({429, 503})
"""Statuses of refusals that a configuration can cause."""


class TrialActs(Acts):
    """Acts, with a second configuration that may score or decide beside the live one."""

    def __init__(
        self,
        conductor: Conductor,
        clock: Clock,
        *,
        store: RecordStore | None,
        rng: Random,
        record_event: Callable[[str, Mapping[str, Any]], None],
        lag_s: Callable[[], float],
        timer: Callable[[], float],
    ) -> None:
        super().__init__(conductor, clock, store=store, rng=rng)
        self.window = Window()
        self.canary: CanaryRun | None = None
        self.shadow: ShadowRun | None = None
        self._timer, self._record_event, self._lag_s = timer, record_event, lag_s
        self.on_judged: Callable[[float, bool, bool], None] = lambda _now, _bad, _error: None
        """Told (now, bad, error) of every request that speaks for or against the service."""

    # -- the request path ------------------------------------------------------------------

    def decide(self, request: Request, now: float) -> Decision | Rejection:
        """Decide under the live revision, or the canary's for its share."""
        run = self.canary
        if run is not None and not run.ended and run.tally.takes(request):
            with lent(self.conductor, run.revision.tunables, run.revision.number):
                return self.conductor.decide(request, now)
        return self.conductor.decide(request, now)

    def decided(self, decision: Decision | Rejection, took_s: float, now: float) -> None:
        """A real decision was made and its load is not counted yet."""
        placed = None if isinstance(decision, Rejection) else decision
        if isinstance(decision, Rejection):
            if decision.status not in _OURS:
                return
            self._judge(decision.revision, now, bad=True, error=decision.status == 503)
        run = self.canary
        if run is not None and not run.ended:
            run.tally.decided(decision.request, decision.revision, placed)
        shadow = self.shadow
        if shadow is None or shadow.ended or decision.revision != self.conductor.revision:
            return
        shadow.score(
            self.conductor,
            decision.request,
            decision,
            took_s=took_s,
            lag_s=self._lag_s(),
            timer=self._timer,
        )

    def turned_away(self, rejection: Rejection, now: float) -> None:
        """A request that waited, or found no place to wait, was refused without a decision."""
        self._judge(rejection.revision, now, bad=True, error=False)

    def finished(self, decision: Decision, outcome: Outcome, now: float, *, good: bool) -> None:
        """A placed request has ended."""
        self.window.add(decision, outcome)
        if self.canary is not None and not self.canary.ended:
            self.canary.tally.finished(decision, outcome, good=good)
        if outcome.kind not in _NO_FAULT:
            error = outcome.kind is not OutcomeKind.OK
            self._judge(decision.revision, now, bad=not good, error=error)

    def _judge(self, revision: int, now: float, *, bad: bool, error: bool) -> None:
        """Candidates are judged by their own tally."""
        self.on_judged(now, bad, error)
        known = self.book.get(revision)
        if known is None or known.kind is not Kind.CANARY:
            self.guard.observe(revision, now, bad=bad, error=error)

    # -- acts ------------------------------------------------------------------------------

    async def start_shadow(
        self, changes: Mapping[str, Any], *, author: str, reason: str
    ) -> ShadowRun:
        """Score live traffic under a second configuration as well."""

        async def act() -> ShadowRun:
            if self.shadow is not None and not self.shadow.ended:
                raise Conflict("a shadow is running; stop it first", field="shadow")
            live = self.book.live
            new = tried(live.tunables, changes)
            run = ShadowRun(
                tunables=new,
                changes=diff(live.tunables, new),
                base=live.number,
                started_at=self._clock.wall(),
                author=author,
                reason=reason,
                rng=Random(self._rng.getrandbits(64)),
            )
            await self._commit("shadow.started", facts=facts_of(run.changes, author, reason))
            self.shadow = run
            return run

        return await self._act(act)

    async def stop_shadow(self, *, author: str, reason: str) -> ShadowRun:
        """End the shadow; its report stays readable until the next one."""

        async def act() -> ShadowRun:
            if self.shadow is None or self.shadow.ended:
                raise NotFound("no shadow is running", field="shadow")
            await self._commit("shadow.stopped", facts=facts_of({}, author, reason))
            self.shadow.ended = f"{author}: {reason}"
            return self.shadow

        return await self._act(act)

    async def start_canary(
        self, changes: Mapping[str, Any], *, share: float, author: str, reason: str
    ) -> CanaryRun:
        """Let a second configuration decide `share` of the sessions."""

        async def act() -> CanaryRun:
            if self.canary is not None and not self.canary.ended:
                raise Conflict("a canary is running; stop it first", field="canary")
            tried(self.book.live.tunables, changes)
            made = self.book.change(
                changes,
                base=self.book.live.number,
                at=self._clock.wall(),
                author=author,
                reason=reason,
                kind=Kind.CANARY,
                detail={"share": share},
            )
            await self._commit("canary.started", revision=made)
            self.canary = CanaryRun(
                made, Canary(number=made.number, share=share), made.at, author, reason
            )
            return self.canary

        return await self._act(act)

    async def stop_canary(self, *, author: str, reason: str) -> CanaryRun:
        """End the canary; its report stays readable until the next one."""

        async def act() -> CanaryRun:
            if self.canary is None or self.canary.ended:
                raise NotFound("no canary is running", field="canary")
            facts = facts_of({}, author, reason) | {"revision": self.canary.revision.number}
            await self._commit("canary.stopped", facts=facts)
            self.canary.ended = f"{author}: {reason}"
            return self.canary

        return await self._act(act)

    # -- ending ----------------------------------------------------------------------------

    def _end_trials(self, why: str) -> None:
        self._end_canary(why)
        if self.shadow is not None and not self.shadow.ended:
            self.shadow.ended = why
            self._record_event("shadow.stopped", {"reason": why})

    def _end_canary(self, why: str) -> None:
        run = self.canary
        if run is not None and not run.ended:
            run.ended = why
            self._record_event("canary.stopped", {"reason": why, "revision": run.revision.number})

"""The guard across a restart: what it watched, from stored revisions and stored requests. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import pairwise

from core.control.guard import Counts, Guard
from core.control.revisions import Kind, Revision
from core.ports import TimeBucket
from core.tunables import diff


def follow(guard: Guard, revision: Revision, good: Revision | None, now: float) -> None:
    """Tell the guard of a revision that became live at `now`; `good`: the last good one."""
    rules = revision.tunables.guard
    if revision.kind is Kind.GUARD:
        guard.rolled_back(now, revision.number, rules)
    elif good is not None and not diff(good.tunables, revision.tunables):
        guard.settled(revision.number)
    else:
        guard.changed(now, rules)


def resumed(history: Sequence[Revision], *, now: float, wall: datetime) -> Guard:
    """The guard as it would be had it lived through the revisions, oldest first, the live one
    last; the first one counts as good. `now` and `wall` are the same moment on both clocks."""
    guard = Guard(history[0].number)
    known = {r.number: r for r in history}
    for before, revision in pairwise(history):
        at_s = min(now - (wall - revision.at).total_seconds(), now)
        guard.tick(at_s, before.tunables.guard, live=before.number)
        follow(guard, revision, known.get(guard.good), at_s)
    live = history[-1]
    guard.tick(now, live.tunables.guard, live=live.number)
    return guard


def steps(
    stored: Iterable[TimeBucket], *, now: float, wall: datetime
) -> list[tuple[float, Counts]]:
    """Stored requests as the guard counts them, with their times on its clock."""
    return [(now - (wall - b.start).total_seconds(), _counts(b)) for b in stored]


def _counts(b: TimeBucket) -> Counts:
    """Requests that were answered, and those that missed their limits. Stored sums do not tell
    whose fault a refusal or a failure was, so these count from the start on only."""
    answered = max(b.finished - b.aborted - b.failed, 0)
    return Counts(answered, min(b.slo_missed, answered), 0)

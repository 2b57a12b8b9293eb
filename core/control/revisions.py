"""Revisions of the live configuration: proposed, stored, then adopted. Pure.

How it works. A `Book` knows the live revision and the ones before it. `change`, `rollback` and
`candidate` only propose: they check everything and return the revision as it would be. The caller
stores it, and what could be stored is `adopt`ed. Nothing becomes live that is not stored, and
nothing is stored that was not checked. Numbers are never used twice, not even by candidates that
are tried on a share of traffic and never become live.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from core.errors import ConductorError, Conflict, Invalid, NotFound
from core.policy import get_policy
from core.ports import RevisionRecord
from core.tunables import Tunables, diff, leaves, resolve

KEPT_MAX = 200
"""Revisions kept in memory."""
Changes = Mapping[str, tuple[Any, Any]]


class Kind(enum.StrEnum):
    """What made a revision."""

    START = "start"
    CHANGE = "change"
    ROLLBACK = "rollback"
    SCHEDULED = "scheduled"
    EXPIRY = "expiry"
    GUARD = "guard"
    CANARY = "canary"
    """A candidate on a share of traffic; never the live one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """One configuration with its history: `changes` maps path to (old, new)."""

    number: int
    base: int
    at: datetime
    author: str
    reason: str
    kind: Kind
    tunables: Tunables
    changes: Changes
    detail: Mapping[str, Any] = field(default_factory=dict)

    def record(self) -> RevisionRecord:
        """The row that keeps it."""
        return RevisionRecord(
            number=self.number,
            base=self.base,
            at=self.at,
            author=self.author,
            reason=self.reason,
            kind=self.kind.value,
            changes={path: list(pair) for path, pair in self.changes.items()},
            values=values(self.tunables),
            detail=dict(self.detail),
        )


class StaleBase(Conflict):
    """Made from a revision that is not live any more; carries both diffs against that base."""

    def __init__(self, *, base: int, live: int, yours: Changes, theirs: Changes) -> None:
        both = sorted(set(yours) & set(theirs))
        clash = f"; both change {', '.join(both)}" if both else ""
        super().__init__(
            f"base: the live revision is {live}, the change was made from {base}{clash}",
            field="base",
        )
        self.base, self.live, self.yours, self.theirs = base, live, yours, theirs


def values(tunables: Tunables) -> dict[str, Any]:
    """Path -> value of every tunable."""
    return {leaf.path: leaf.value for leaf in leaves(tunables)}


def from_record(record: RevisionRecord) -> Revision:
    """Read a stored revision.

    Values that this release does not know are dropped, those it lacks take their defaults;
    Invalid where a stored value is out of today's bounds.
    """
    known = {leaf.path for leaf in leaves(Tunables())}
    kept = {path: value for path, value in record.values.items() if path in known}
    return Revision(
        number=record.number,
        base=record.base,
        at=record.at,
        author=record.author,
        reason=record.reason,
        kind=Kind(record.kind),
        tunables=Tunables().changed(kept),
        changes={path: (pair[0], pair[1]) for path, pair in record.changes.items()},
        detail=record.detail,
    )


def with_changes(old: Tunables, changes: Mapping[str, Any]) -> Tunables:
    """`old` with the changes, checked as a whole; short names belong to the policy then live.

    Invalid names the field: unknown, out of bounds, or no policy of that name.
    """
    policy = changes.get("policy", old.policy)
    owner = policy if isinstance(policy, str) else old.policy
    new = old.changed({resolve(name, owner): value for name, value in changes.items()})
    try:
        get_policy(new.policy)
    except NotFound as error:
        raise Invalid(error.message, field="policy") from None
    return new


class Book:
    """The live revision, those before it, and the numbers in use."""

    def __init__(self, live: Revision, *, newest: int = 0, older: Iterable[Revision] = ()) -> None:
        self.live = live
        self._kept = {r.number: r for r in older}
        self._kept[live.number] = live
        self._newest = max(newest, *self._kept)

    @property
    def newest(self) -> int:
        """The highest number in use, candidates' included."""
        return self._newest

    def history(self) -> list[Revision]:
        """Known revisions, newest first, candidates included."""
        return [self._kept[number] for number in sorted(self._kept, reverse=True)]

    def get(self, number: int) -> Revision | None:
        """A revision that is in memory."""
        return self._kept.get(number)

    def change(
        self,
        changes: Mapping[str, Any],
        *,
        base: int,
        at: datetime,
        author: str,
        reason: str,
        kind: Kind = Kind.CHANGE,
        detail: Mapping[str, Any] | None = None,
    ) -> Revision:
        """The revision that these changes of the live one would make.

        StaleBase where `base` is not live; Invalid naming the path of a value out of bounds, or
        where nothing would change.
        """
        self.check_base(base, changes)
        new = with_changes(self.live.tunables, changes)
        return self._next(new, at=at, author=author, reason=reason, kind=kind, detail=detail)

    def restore(
        self,
        to: Revision,
        *,
        at: datetime,
        author: str,
        reason: str,
        kind: Kind = Kind.ROLLBACK,
        detail: Mapping[str, Any] | None = None,
    ) -> Revision:
        """A new revision with the values of an older one; Invalid where they are live already."""
        facts = {"restores": to.number, **(detail or {})}
        return self._next(to.tunables, at=at, author=author, reason=reason, kind=kind, detail=facts)

    def check_base(self, base: int, changes: Mapping[str, Any]) -> None:
        """StaleBase, with both diffs, unless `base` is the live revision."""
        if base == self.live.number:
            return
        then = self._kept.get(base)
        start = then.tunables if then is not None else self.live.tunables
        try:
            yours: Changes = diff(start, with_changes(start, changes))
        except ConductorError:
            yours = {path: (None, value) for path, value in changes.items()}
        theirs = diff(start, self.live.tunables)
        raise StaleBase(base=base, live=self.live.number, yours=yours, theirs=theirs)

    def adopt(self, revision: Revision) -> None:
        """Note a stored revision; it is the live one now, unless it is a candidate."""
        self._kept[revision.number] = revision
        self._newest = max(self._newest, revision.number)
        if revision.kind is not Kind.CANARY:
            self.live = revision
        for number in sorted(self._kept)[:-KEPT_MAX]:
            if number != self.live.number:
                del self._kept[number]

    def _next(
        self,
        new: Tunables,
        *,
        at: datetime,
        author: str,
        reason: str,
        kind: Kind,
        detail: Mapping[str, Any] | None,
    ) -> Revision:
        found = diff(self.live.tunables, new)
        if not found:
            raise Invalid("changes: every value is what it is already", field="changes")
        return Revision(
            number=self._newest + 1,
            base=self.live.number,
            at=at,
            author=author,
            reason=reason,
            kind=kind,
            tunables=new,
            changes=found,
            detail=detail or {},
        )

"""Changes that wait for their time, and changes that end by themselves. Pure, with `now`.

How it works. A scheduled change remembers the values its paths had when it was made. When it is
due and one of them has changed since, it is skipped: whoever changed it did not know of this one.
A change that expires leaves a `revert` behind, which takes back those of its paths that still
have the value it gave them, and leaves alone what others have changed since.

    pending -> done      applied, or taken back
    pending -> skipped   overtaken by another change, or nothing left to take back
    pending -> failed    not valid together with what is live by then
    pending -> cancelled by an operator
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from core.control.revisions import Revision, values, with_changes
from core.errors import Conflict, Invalid
from core.ports import ScheduledRecord
from core.tunables import Tunables, diff

TRANSITIONS = {
    ("pending", "done"),
    ("pending", "skipped"),
    ("pending", "failed"),
    ("pending", "cancelled"),
}


def planned(
    live: Tunables,
    changes: Mapping[str, Any],
    *,
    id: str,
    now: datetime,
    due: datetime,
    until: datetime | None,
    author: str,
    reason: str,
) -> ScheduledRecord:
    """A change that waits until `due`; Invalid names the field."""
    check_until(until, after=due, field="until")
    if due <= now:
        raise Invalid(f"at: {due.isoformat()} is not in the future", field="at")
    found = diff(live, with_changes(live, changes))
    if not found:
        raise Invalid("changes: every value is what it is already", field="changes")
    return ScheduledRecord(
        id=id,
        created_at=now,
        due_at=due,
        until_at=until,
        author=author,
        reason=reason,
        changes={path: new for path, (_, new) in found.items()},
        expected={path: old for path, (old, _) in found.items()},
    )


def expiry_of(revision: Revision, until: datetime, *, id: str) -> ScheduledRecord:
    """What takes a revision's changes back at `until`."""
    return ScheduledRecord(
        id=id,
        created_at=revision.at,
        due_at=until,
        action="revert",
        author=revision.author,
        reason=f"revision {revision.number} expires: {revision.reason}"[:500],
        changes={path: old for path, (old, _) in revision.changes.items()},
        expected={path: new for path, (_, new) in revision.changes.items()},
        revision=revision.number,
    )


def check_until(until: datetime | None, *, after: datetime, field: str) -> None:
    """Invalid unless `until` is None or later than `after`."""
    if until is not None and until <= after:
        raise Invalid(f"{field}: {until.isoformat()} is not after {after.isoformat()}", field=field)


def due(waiting: Iterable[ScheduledRecord], now: datetime) -> list[ScheduledRecord]:
    """Those whose time has come, in the order of their times."""
    ready = [s for s in waiting if s.state == "pending" and s.due_at <= now]
    return sorted(ready, key=lambda s: (s.due_at, s.id))


def still_meant(change: ScheduledRecord, live: Tunables) -> tuple[dict[str, Any], str]:
    """(what is to be changed now, why nothing or not all of it)."""
    now_values = values(live)
    overtaken = [p for p, v in change.expected.items() if now_values.get(p) != v]
    if not overtaken:
        return dict(change.changes), ""
    note = f"changed by others since: {', '.join(overtaken)}"
    if change.action == "apply":
        return {}, note
    return {p: v for p, v in change.changes.items() if p not in overtaken}, note


def ended(
    change: ScheduledRecord, state: str, *, note: str = "", revision: int | None = None
) -> ScheduledRecord:
    """The change in its last state; Conflict where it is over already."""
    if (change.state, state) not in TRANSITIONS:
        raise Conflict(f"the scheduled change is {change.state} already", field="id")
    made = change.revision if revision is None else revision
    return msgspec.structs.replace(change, state=state, note=note[:500], revision=made)

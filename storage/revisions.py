"""Configuration revisions: an administrative act is stored at once, or it did not happen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, func, insert, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from core.errors import Conflict, NotFound
from core.ports import EventRecord, RevisionRecord, ScheduledRecord
from storage.changes import REVISIONS, announce
from storage.insert import insert_new
from storage.models import events, revisions, scheduled_changes
from storage.rows import event_row, revision_row, scheduled_row, to_revision, to_scheduled

_CANDIDATE = "canary"
_LISTED_MAX = 200


def add(connection: Connection, record: RevisionRecord) -> None:
    """Store a revision made from the newest one, candidates of canaries apart.

    Conflict when it was not made from the newest one, so that of two writers only one wins.
    """
    number, kind = revisions.c.number, revisions.c.kind
    newest = connection.execute(select(func.max(number)).where(kind != _CANDIDATE)).scalar()
    if newest is not None and record.base != newest:
        raise Conflict(
            f"base: revision {record.base} is not the newest one, {newest}", field="base"
        )
    if record.number <= record.base:
        raise Conflict(f"number: {record.number} does not follow {record.base}", field="number")
    try:
        connection.execute(insert(revisions), [revision_row(record)])
    except IntegrityError:
        raise Conflict(f"number: revision {record.number} exists already", field="number") from None


def newest_first(connection: Connection, limit: int) -> list[RevisionRecord]:
    """The newest `limit` revisions."""
    statement = select(revisions).order_by(revisions.c.number.desc()).limit(limit)
    return [to_revision(row) for row in connection.execute(statement).mappings()]


def one(connection: Connection, number: int) -> RevisionRecord:
    """The revision of that number; NotFound."""
    statement = select(revisions).where(revisions.c.number == number)
    row = connection.execute(statement).mappings().one_or_none()
    if row is None:
        raise NotFound(f"there is no revision {number}", field="revision")
    return to_revision(row)


def scheduled(connection: Connection, *, pending_only: bool) -> list[ScheduledRecord]:
    """Waiting changes, earliest first; or the newest of all."""
    table, c = select(scheduled_changes), scheduled_changes.c
    if pending_only:
        statement = table.where(c.state == "pending").order_by(c.due_us, c.id)
    else:
        statement = table.order_by(c.created_us.desc(), c.id.desc()).limit(_LISTED_MAX)
    return [to_scheduled(row) for row in connection.execute(statement).mappings()]


def commit_act(
    connection: Connection,
    revision: RevisionRecord | None,
    changes: Sequence[ScheduledRecord],
    happened: Sequence[EventRecord],
) -> None:
    """Everything that one administrative act stores, in the caller's transaction."""
    if revision is not None or changes:
        announce(connection, REVISIONS)
    if revision is not None:
        add(connection, revision)
    if changes:
        _put_scheduled(connection, [scheduled_row(change) for change in changes])
    if happened:
        insert_new(connection, events, [event_row(event) for event in happened])


def _put_scheduled(connection: Connection, rows: list[dict[str, Any]]) -> None:
    """Store waiting changes, or how they ended; Conflict where another process ended one first."""
    dialect: Any = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(scheduled_changes)
    statement = statement.on_conflict_do_update(
        index_elements=[scheduled_changes.c.id],
        set_={name: statement.excluded[name] for name in ("state", "note", "revision")},
        where=scheduled_changes.c.state == "pending",
    ).returning(scheduled_changes.c.id)
    for row in rows:
        if connection.execute(statement, row).first() is None:
            raise Conflict(f"id: the scheduled change {row['id']} is over already", field="id")

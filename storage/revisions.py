"""Configuration revisions: an administrative act is stored at once, or it did not happen."""

from __future__ import annotations

from sqlalchemy import Connection, func, insert, select
from sqlalchemy.exc import IntegrityError

from core.errors import Conflict
from core.ports import RevisionRecord
from storage.models import revisions
from storage.rows import revision_row, to_revision


def add(connection: Connection, record: RevisionRecord) -> None:
    """Store the revision that follows the newest one.

    Conflict when it was not made from the newest one, so that of two writers only one wins.
    """
    newest = connection.execute(select(func.max(revisions.c.number))).scalar()
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

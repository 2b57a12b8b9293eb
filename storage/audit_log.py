"""The administrative audit: entries are added in the transaction of what they tell of.

Each entry's digest covers its fields and the digest of the entry before, so that a change, a gap
or a new order shows. Whoever rewrites the whole chain can be caught by the newest digest alone,
which goes to the service's log with every entry.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, RowMapping, insert, select

from core.ports import AuditDraft, AuditMark, AuditRecord, ChainFault
from storage.changes import announce
from storage.identity_models import admin_audit
from storage.types import from_micros, to_micros

AUDIT = "audit"
"""Topic of change."""
FIRST = AuditMark().digest
_FIELDS = ("actor", "kind", "role", "peer", "action", "target", "reason", "before", "after")
_PAGE = 1_000


def append(connection: Connection, draft: AuditDraft) -> AuditRecord:
    """Add an entry. Announcing first takes the lock that keeps the numbers without gaps."""
    announce(connection, AUDIT)
    c = admin_audit.c
    last = connection.execute(
        select(c.number, c.digest).order_by(c.number.desc()).limit(1)
    ).one_or_none()
    number, previous = (1, FIRST) if last is None else (last.number + 1, last.digest)
    row: dict[str, Any] = {name: _storable(getattr(draft, name)) for name in _FIELDS}
    row |= {"number": number, "at_us": to_micros(draft.at), "previous": previous}
    row["digest"] = digest(row)
    connection.execute(insert(admin_audit), [row])
    return _record(row)


def digest(row: Mapping[Any, Any]) -> str:
    """SHA-256 over every field of an entry, in a fixed order, and the digest before it."""
    parts = [row["previous"], row["number"], row["at_us"], *(row[name] for name in _FIELDS)]
    text = json.dumps(parts, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def page(
    connection: Connection,
    *,
    before: int | None,
    limit: int,
    actor: str = "",
    action: str = "",
    target: str = "",
) -> list[AuditRecord]:
    """Entries below number `before`, newest first."""
    c = admin_audit.c
    statement = select(admin_audit).order_by(c.number.desc()).limit(limit)
    if before is not None:
        statement = statement.where(c.number < before)
    for column, wanted in ((c.actor, actor), (c.action, action), (c.target, target)):
        if wanted.endswith("*"):
            statement = statement.where(column.startswith(wanted[:-1], autoescape=True))
        elif wanted:
            statement = statement.where(column == wanted)
    return [_record(row) for row in connection.execute(statement).mappings()]


def verify(connection: Connection) -> tuple[int, ChainFault | None]:
    """(entries checked, the first that is not as it was written)."""
    mark = AuditMark()
    while True:
        before = mark.number
        mark, fault = verify_from(connection, mark, limit=_PAGE)
        if fault is not None or mark.number - before < _PAGE:
            return mark.number, fault


def verify_from(
    connection: Connection, mark: AuditMark, *, limit: int
) -> tuple[AuditMark, ChainFault | None]:
    """(how far the chain is good, the first fault) of the mark's entry and `limit` after it.

    The mark's own entry has to be there as it was: entries taken off the end show by it.
    """
    c = admin_audit.c
    statement = select(admin_audit).where(c.number >= mark.number).order_by(c.number)
    read = connection.execute(statement.limit(limit + 1 if mark.number else limit))
    rows = iter(read.mappings().all())
    good = mark
    if mark.number and (fault := _mark_fault(mark, next(rows, None))) is not None:
        return mark, fault
    for row in rows:
        if (what := _wrong(row, good)) is not None:
            return good, ChainFault(number=good.number + 1, what=what)
        good = AuditMark(number=row["number"], digest=row["digest"])
    return good, None


def _mark_fault(mark: AuditMark, row: RowMapping | None) -> ChainFault | None:
    if row is None or row["number"] != mark.number:
        return ChainFault(number=mark.number, what="is missing")
    if row["digest"] != mark.digest or row["digest"] != digest(row):
        return ChainFault(number=mark.number, what="was changed after it was written")
    return None


def _wrong(row: RowMapping, before: AuditMark) -> str | None:
    """What is wrong with the entry after `before`."""
    if row["number"] != before.number + 1:
        return "is missing"
    if row["previous"] != before.digest:
        return "does not follow the one before"
    return None if row["digest"] == digest(row) else "was changed after it was written"


def _record(row: Mapping[Any, Any]) -> AuditRecord:
    fields = {name: row[name] for name in (*_FIELDS, "number", "previous", "digest")}
    return AuditRecord(at=from_micros(row["at_us"]), **fields)


def _storable(text: str) -> str:
    """What every database can hold, and gives back as it was: no NUL, no lone surrogate."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()

"""The administrative audit: entries are added in the transaction of what they tell of.

Each entry's digest covers its fields and the digest of the entry before, so that a change, a gap
or a new order shows. Whoever rewrites the whole chain can be caught by the newest digest alone,
which goes to the service's log with every entry.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, RowMapping, insert, select

from core.ports import AuditDraft, AuditRecord, ChainFault
from storage.changes import announce
from storage.identity_models import admin_audit
from storage.types import from_micros, to_micros

AUDIT = "audit"
"""Topic of change."""
FIRST = "0" * 64
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
    checked, previous = 0, FIRST
    for row in _oldest_first(connection):
        expected = checked + 1
        if row["number"] != expected:
            return checked, ChainFault(number=expected, what="is missing")
        if row["previous"] != previous:
            return checked, ChainFault(number=expected, what="does not follow the one before")
        if row["digest"] != digest(row):
            return checked, ChainFault(number=expected, what="was changed after it was written")
        checked, previous = expected, row["digest"]
    return checked, None


def _oldest_first(connection: Connection) -> Iterator[RowMapping]:
    c, last = admin_audit.c, -1
    while True:
        statement = select(admin_audit).where(c.number > last).order_by(c.number).limit(_PAGE)
        rows = connection.execute(statement).mappings().all()
        yield from rows
        if len(rows) < _PAGE:
            return
        last = rows[-1]["number"]


def _record(row: Mapping[Any, Any]) -> AuditRecord:
    fields = {name: row[name] for name in (*_FIELDS, "number", "previous", "digest")}
    return AuditRecord(at=from_micros(row["at_us"]), **fields)


def _storable(text: str) -> str:
    """What every database can hold, and gives back as it was: no NUL, no lone surrogate."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()

"""Small documents by kind: saved views, results of the Lab. Few rows, replaced as wholes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    PrimaryKeyConstraint,
    RowMapping,
    Table,
    Text,
    delete,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite

from core.errors import NotFound
from core.ports import DocumentRecord
from storage.models import metadata
from storage.rows import mended
from storage.types import from_micros, key_text, to_micros

documents = Table(
    "documents",
    metadata,
    Column("kind", key_text(), nullable=False),
    Column("id", key_text(), nullable=False),
    Column("owner", Text(), nullable=False),
    Column("at_us", BigInteger(), nullable=False),
    Column("data", Text(), nullable=False),
    PrimaryKeyConstraint("kind", "id"),
)
TABLES = (documents,)


def of_kind(connection: Connection, kind: str, limit: int) -> Sequence[DocumentRecord]:
    """Newest first."""
    c = documents.c
    statement = select(documents).where(c.kind == kind).order_by(c.at_us.desc(), c.id.desc())
    return [_record(row) for row in connection.execute(statement.limit(limit)).mappings()]


def one(connection: Connection, kind: str, id: str) -> DocumentRecord:
    """NotFound for an unknown one."""
    c = documents.c
    statement = select(documents).where(c.kind == kind, c.id == id)
    row = connection.execute(statement).mappings().one_or_none()
    if row is None:
        raise NotFound(f"there is no {kind} {id!r}", field="id")
    return _record(row)


def put(connection: Connection, record: DocumentRecord, keep: int | None) -> None:
    """Store or replace; beyond the newest `keep` of its kind the oldest go."""
    dialect: Any = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(documents)
    changed = {n: statement.excluded[n] for n in ("owner", "at_us", "data")}
    statement = statement.on_conflict_do_update(index_elements=["kind", "id"], set_=changed)
    connection.execute(statement, _row(record))
    if keep is None:
        return
    c = documents.c
    kept = select(c.id).where(c.kind == record.kind).order_by(c.at_us.desc(), c.id.desc())
    over = delete(documents).where(c.kind == record.kind, c.id.not_in(kept.limit(keep)))
    connection.execute(over)


def remove(connection: Connection, kind: str, id: str) -> bool:
    """Whether there was one."""
    c = documents.c
    found = connection.execute(delete(documents).where(c.kind == kind, c.id == id))
    return bool(found.rowcount)


def _row(record: DocumentRecord) -> dict[str, Any]:
    data = msgspec.json.encode(record.data).decode()
    owner, data = mended((record.owner, data))
    return {
        "kind": record.kind,
        "id": record.id,
        "owner": owner,
        "at_us": to_micros(record.at),
        "data": data,
    }


def _record(row: RowMapping) -> DocumentRecord:
    return DocumentRecord(
        kind=row["kind"],
        id=row["id"],
        owner=row["owner"],
        at=from_micros(row["at_us"]),
        data=msgspec.json.decode(row["data"]),
    )

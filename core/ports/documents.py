"""Small documents that the console keeps: saved views, results of the Lab; and who keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec

from core.ports.identity import AuditDraft


class DocumentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One document. `kind` says what `data` (JSON) holds; `at` is aware UTC, the last change."""

    kind: str
    id: str
    owner: str
    at: datetime
    data: Mapping[str, Any]


class DocumentStore(Protocol):
    """Keeps documents. Methods may block, and raise StoreError on failure."""

    def documents(self, kind: str, *, limit: int = 1_000) -> Sequence[DocumentRecord]:
        """Of a kind, newest first."""
        ...

    def document(self, kind: str, id: str) -> DocumentRecord:
        """NotFound for an unknown one."""
        ...

    def put_document(
        self, record: DocumentRecord, *, audit: AuditDraft | None = None, keep: int | None = None
    ) -> None:
        """Store or replace, with its audit entry in one transaction. With `keep`, only the
        newest so many of its kind stay."""
        ...

    def remove_document(self, kind: str, id: str, *, audit: AuditDraft | None = None) -> bool:
        """Whether there was one; the entry is made only then, in one transaction."""
        ...

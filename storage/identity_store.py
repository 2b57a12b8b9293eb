"""The identity side of a store: an `IdentityStore` and `DocumentStore` that `Store` inherits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from sqlalchemy import Connection

from core.ports import (
    AuditDraft,
    AuditMark,
    AuditRecord,
    ChainFault,
    DocumentRecord,
    IdentityChange,
    KeyRecord,
    TokenRecord,
    UserRecord,
)
from storage import audit_log, documents, identity
from storage.database import failures_told, writer_engine

T = TypeVar("T")
log = logging.getLogger("conductor.audit")


class IdentityReads:
    """Reads on connections that cannot write; every failure is a StoreError."""

    _url: str

    def _reading(self) -> AbstractContextManager[Connection]:
        raise NotImplementedError

    def has_identities(self) -> bool:
        """Whether anybody could sign in: a user that is not disabled, or a good token."""
        return self._read(identity.has_identities)

    def users(self) -> Sequence[UserRecord]:
        """By name."""
        return self._read(identity.all_users)

    def user(self, name: str) -> UserRecord:
        """NotFound for an unknown one."""
        return self._read(lambda c: identity.user(c, name))

    def tokens(self) -> Sequence[TokenRecord]:
        """Tokens and running sessions, newest first."""
        return self._read(identity.all_tokens)

    def token(self, id: str) -> TokenRecord:
        """NotFound for an unknown one; a session has its user's role and fate."""
        return self._read(lambda c: identity.token(c, id))

    def keys(self) -> Sequence[KeyRecord]:
        """Newest first."""
        return self._read(identity.all_keys)

    def key(self, id: str) -> KeyRecord:
        """NotFound for an unknown one."""
        return self._read(lambda c: identity.key(c, id))

    def tenant_salt(self, tenant: str) -> str:
        """The salt of a tenant's keys; empty for a tenant without any."""
        return self._read(lambda c: identity.tenant_salt(c, tenant))

    def audit(
        self,
        *,
        before: int | None = None,
        limit: int = 100,
        actor: str = "",
        action: str = "",
        target: str = "",
    ) -> Sequence[AuditRecord]:
        """Entries below number `before`, newest first."""
        return self._read(
            lambda c: audit_log.page(
                c, before=before, limit=limit, actor=actor, action=action, target=target
            )
        )

    def verify_audit(self) -> tuple[int, ChainFault | None]:
        """(entries checked, the first fault or None)."""
        return self._read(audit_log.verify)

    def verify_audit_from(
        self, mark: AuditMark, *, limit: int
    ) -> tuple[AuditMark, ChainFault | None]:
        """How far the chain is good, of at most `limit` entries after the mark."""
        return self._read(lambda c: audit_log.verify_from(c, mark, limit=limit))

    def commit_identity(self, change: IdentityChange, audit: AuditDraft) -> AuditRecord:
        """Store a change with its entry in one transaction."""
        with self._writing() as connection:
            identity.store(connection, change)
            entry = audit_log.append(connection, audit)
        return logged(entry)

    def append_audit(self, audit: AuditDraft) -> AuditRecord:
        """Enter an act whose change is not in the database."""
        with self._writing() as connection:
            entry = audit_log.append(connection, audit)
        return logged(entry)

    def documents(self, kind: str, *, limit: int = 1_000) -> Sequence[DocumentRecord]:
        """Of a kind, newest first."""
        return self._read(lambda c: documents.of_kind(c, kind, limit))

    def document(self, kind: str, id: str) -> DocumentRecord:
        """NotFound for an unknown one."""
        return self._read(lambda c: documents.one(c, kind, id))

    def put_document(
        self, record: DocumentRecord, *, audit: AuditDraft | None = None, keep: int | None = None
    ) -> None:
        """Store or replace, with its audit entry in one transaction; keep the newest `keep`."""
        with self._writing() as connection:
            documents.put(connection, record, keep)
            entry = None if audit is None else audit_log.append(connection, audit)
        if entry is not None:
            logged(entry)

    def remove_document(self, kind: str, id: str, *, audit: AuditDraft | None = None) -> bool:
        """Whether there was one; the entry is made only then, in one transaction."""
        entry = None
        with self._writing() as connection:
            found = documents.remove(connection, kind, id)
            if found and audit is not None:
                entry = audit_log.append(connection, audit)
        if entry is not None:
            logged(entry)
        return found

    def _read(self, ask: Callable[[Connection], T]) -> T:
        with self._reading() as connection:
            return ask(connection)

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        engine = writer_engine(self._url)
        try:
            with failures_told(), engine.begin() as connection:
                yield connection
        finally:
            engine.dispose()


def logged(entry: AuditRecord) -> AuditRecord:
    """Leave the chain's newest digest in the log, out of the reach of who owns the database."""
    log.info("audit entry %d %s %s", entry.number, entry.action, entry.digest)
    return entry

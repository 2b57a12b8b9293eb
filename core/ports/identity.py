"""Users, credentials and the administrative audit, as rows; and who keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

IDENTITY_TOPIC = "identity"
"""Announced when users, tokens or keys change."""


class UserRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who signs in with a password."""

    name: str
    role: str
    password_hash: str
    """Argon2id, with its parameters."""
    disabled: bool = False
    created_at: datetime
    created_by: str
    changed_at: datetime


class Issued(msgspec.Struct, frozen=True, kw_only=True):
    """A credential that was handed out. Its secret is not kept."""

    id: str
    name: str
    digest: str
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    revoked_at: datetime | None = None

    def good_at(self, at: datetime) -> bool:
        """Whether it is neither revoked nor over."""
        return self.revoked_at is None and (self.expires_at is None or at < self.expires_at)


class TokenRecord(Issued, frozen=True, kw_only=True):
    """A token, or a session: the token of somebody who signed in."""

    kind: str
    """``t`` token, ``s`` session."""
    role: str
    """Of a session: the user's role now."""
    owner: str = ""
    """The user of a session; empty for a token, and for a session of somebody whom an identity
    provider vouches for."""


class KeyRecord(Issued, frozen=True, kw_only=True):
    """A key of the data plane. Limits of 0 are none; each replica counts for itself."""

    tenant: str
    cache_salt: str
    """The tenant's: keys of one tenant share cached prefixes, others never do."""
    requests_per_s: float = 0.0
    concurrent_max: int = 0
    tokens_per_min: int = 0


class AuditDraft(msgspec.Struct, frozen=True, kw_only=True):
    """One administrative act, to be entered with its change."""

    at: datetime
    actor: str
    kind: str
    """How the actor was recognised: anonymous, token, session, console, local, system."""
    role: str
    peer: str
    """Address the act came from; empty for the product's own."""
    action: str
    target: str = ""
    reason: str = ""
    before: str = ""
    """JSON text; empty where there was nothing."""
    after: str = ""


class AuditRecord(AuditDraft, frozen=True, kw_only=True):
    """An entry as it stands: numbered without gaps, chained to the one before it."""

    number: int
    previous: str
    """Digest of the entry before; zeros for the first."""
    digest: str


class ChainFault(msgspec.Struct, frozen=True, kw_only=True):
    """The first entry of the audit that is not as it was written."""

    number: int
    what: str


class AuditMark(msgspec.Struct, frozen=True, kw_only=True):
    """How far the audit was read and found as it was written; the default: not at all."""

    number: int = 0
    digest: str = "0" * 64


class IdentityChange(msgspec.Struct, frozen=True, kw_only=True):
    """What an act changes about identities; rows replace those of the same name or id."""

    users: tuple[UserRecord, ...] = ()
    heard: Mapping[str, datetime | None] = {}
    """Name of a user to the `changed_at` that the change was made from, None for a new one: where
    the store knows another by now, it is a Conflict and nothing is stored."""
    tokens: tuple[TokenRecord, ...] = ()
    keys: tuple[KeyRecord, ...] = ()
    end_sessions_of: str = ""
    """Revoke every session of this user."""


class IdentityStore(Protocol):
    """Keeps identities and the audit. Methods may block, and raise StoreError on failure."""

    def has_identities(self) -> bool:
        """Whether anybody could sign in: a user that is not disabled, or a good token."""
        ...

    def users(self) -> Sequence[UserRecord]:
        """By name."""
        ...

    def user(self, name: str) -> UserRecord:
        """NotFound for an unknown one."""
        ...

    def tokens(self) -> Sequence[TokenRecord]:
        """Tokens and running sessions, newest first."""
        ...

    def token(self, id: str) -> TokenRecord:
        """NotFound for an unknown one; a session has its user's role and fate."""
        ...

    def keys(self) -> Sequence[KeyRecord]:
        """Newest first."""
        ...

    def key(self, id: str) -> KeyRecord:
        """NotFound for an unknown one."""
        ...

    def tenant_salt(self, tenant: str) -> str:
        """The salt of a tenant's keys, revoked ones too; empty for a tenant without any."""
        ...

    def commit_identity(self, change: IdentityChange, audit: AuditDraft) -> AuditRecord:
        """Store a change with its entry in one transaction."""
        ...

    def append_audit(self, audit: AuditDraft) -> AuditRecord:
        """Enter an act whose change is not in the database."""
        ...

    def audit(
        self,
        *,
        before: int | None = None,
        limit: int = 100,
        actor: str = "",
        action: str = "",
        target: str = "",
    ) -> Sequence[AuditRecord]:
        """Entries below number `before`, newest first; a filter may end in ``*``."""
        ...

    def verify_audit(self) -> tuple[int, ChainFault | None]:
        """(entries checked, the first fault or None)."""
        ...

    def verify_audit_from(
        self, mark: AuditMark, *, limit: int
    ) -> tuple[AuditMark, ChainFault | None]:
        """Check the mark's own entry and at most `limit` after it: how far it is good, and the
        first fault or None."""
        ...

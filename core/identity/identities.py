"""Acts on users, tokens and keys: checked, and stored in one transaction with their audit entry.

Everything here blocks; the service calls it from threads, the command line directly. Secrets are
returned once, by what makes them, and appear in no entry.
"""

from __future__ import annotations

import re
import secrets
from datetime import datetime, timedelta
from typing import Any

import msgspec

from core.clock import Clock
from core.errors import Conflict, Invalid, NotFound, Unauthorized
from core.identity import passwords
from core.identity.audit import entry
from core.identity.credentials import Credential, CredentialKind, mint
from core.identity.principal import AccessRole, Kind, Principal, author
from core.ports import IdentityChange, IdentityStore, KeyRecord, TokenRecord, UserRecord

SESSION_LIFE = timedelta(hours=12)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")


class Identities:
    """Users, tokens and keys over a store."""

    def __init__(self, store: IdentityStore, clock: Clock) -> None:
        self._store, self._clock = store, clock

    # -- users -----------------------------------------------------------------------------

    def add_user(self, name: str, role: AccessRole, password: str, *, reason: str = "") -> None:
        """Conflict for a known name, Invalid naming the field."""
        _check_name(name, "user")
        passwords.check(password, name)
        try:
            self._store.user(name)
        except NotFound:
            pass
        else:
            raise Conflict(f"user: there is a user {name!r} already", field="user")
        at = self._clock.wall()
        made = UserRecord(
            name=name,
            role=role.value,
            password_hash=passwords.hashed(password),
            created_at=at,
            created_by=author(),
            changed_at=at,
        )
        facts, new = _user_facts(made), {name: None}
        self._commit("user.added", name, reason, None, facts, users=(made,), heard=new)

    def change_user(
        self,
        name: str,
        *,
        role: AccessRole | None = None,
        disabled: bool | None = None,
        password: str | None = None,
        reason: str = "",
    ) -> UserRecord:
        """Change a role, shut somebody out, or set a new password. Sessions end with the last
        two; a new role holds for them at once. NotFound, Invalid, and Conflict where somebody else
        changed the user meanwhile: a new role must not let in again whom another shut out."""
        old = self._store.user(name)
        changes: dict[str, Any] = {"changed_at": self._clock.wall()}
        if role is not None:
            changes["role"] = role.value
        if disabled is not None:
            changes["disabled"] = disabled
        if password is not None:
            passwords.check(password, name)
            changes["password_hash"] = passwords.hashed(password)
        new = msgspec.structs.replace(old, **changes)
        after = _user_facts(new) | ({"password": "changed"} if password is not None else {})
        ends = name if password is not None or new.disabled else ""
        self._commit(
            "user.changed",
            name,
            reason,
            _user_facts(old),
            after,
            users=(new,),
            heard={name: old.changed_at},
            end_sessions_of=ends,
        )
        return new

    # -- sessions --------------------------------------------------------------------------

    def sign_in(self, name: str, password: str, peer: str) -> tuple[Credential, TokenRecord]:
        """A session for a user; Unauthorized for anything but the right password."""
        try:
            user: UserRecord | None = self._store.user(name)
        except NotFound:
            user = None
        good = passwords.verified(password, None if user is None else user.password_hash)
        if user is None or not good or user.disabled:
            raise Unauthorized("the user's name or password is wrong")
        role = AccessRole(user.role)
        return self.begin_session(name, role, life=SESSION_LIFE, peer=peer, owner=name)

    def begin_session(
        self, name: str, role: AccessRole, *, life: timedelta, peer: str, owner: str = ""
    ) -> tuple[Credential, TokenRecord]:
        """A session of somebody who has shown who it is. owner: the local user, whose role and
        fate it shares; none for a person whom an identity provider vouches for."""
        _check_name(name, "user")
        at, made = self._clock.wall(), mint(CredentialKind.SESSION)
        session = TokenRecord(
            id=made.id,
            kind=made.kind.value,
            name=name,
            role=role.value,
            owner=owner,
            digest=made.digest,
            created_at=at,
            created_by=name,
            expires_at=at + life,
        )
        kind = Kind.SESSION if owner else Kind.CONSOLE
        who = Principal(name=name, role=role, kind=kind, peer=peer)
        draft = entry("session.begun", at, target=made.id, who=who)
        self._store.commit_identity(IdentityChange(tokens=(session,)), draft)
        return made, session

    # -- tokens ----------------------------------------------------------------------------

    def create_token(
        self, name: str, role: AccessRole, *, life: timedelta | None = None, reason: str = ""
    ) -> tuple[Credential, TokenRecord]:
        """A token with a role; its text is in the Credential and nowhere else."""
        _check_name(name, "name")
        at, made = self._clock.wall(), mint(CredentialKind.TOKEN)
        record = TokenRecord(
            id=made.id,
            kind=made.kind.value,
            name=name,
            role=role.value,
            digest=made.digest,
            created_at=at,
            created_by=author(),
            expires_at=_end(at, life),
        )
        self._commit("token.created", made.id, reason, None, _facts(record), tokens=(record,))
        return made, record

    def revoke_token(self, id: str, *, reason: str = "") -> TokenRecord:
        """End a token or a session. NotFound."""
        old = self._store.token(id)
        if old.revoked_at is not None:
            return old
        new = msgspec.structs.replace(old, revoked_at=self._clock.wall())
        kind = "session.ended" if old.kind == CredentialKind.SESSION else "token.revoked"
        self._commit(kind, id, reason, _facts(old), _facts(new), tokens=(new,))
        return new

    # -- keys ------------------------------------------------------------------------------

    def create_key(
        self,
        name: str,
        tenant: str,
        *,
        requests_per_s: float = 0.0,
        concurrent_max: int = 0,
        tokens_per_min: int = 0,
        life: timedelta | None = None,
        reason: str = "",
    ) -> tuple[Credential, KeyRecord]:
        """A key of the data plane. Its salt is the tenant's, and never leaves the service."""
        _check_name(name, "name")
        _check_name(tenant, "tenant")
        at, made = self._clock.wall(), mint(CredentialKind.KEY)
        record = KeyRecord(
            id=made.id,
            name=name,
            tenant=tenant,
            digest=made.digest,
            cache_salt=self._store.tenant_salt(tenant) or secrets.token_hex(16),
            requests_per_s=requests_per_s,
            concurrent_max=concurrent_max,
            tokens_per_min=tokens_per_min,
            created_at=at,
            created_by=author(),
            expires_at=_end(at, life),
        )
        self._commit("key.created", made.id, reason, None, _facts(record), keys=(record,))
        return made, record

    def revoke_key(self, id: str, *, reason: str = "") -> KeyRecord:
        """End a key. NotFound."""
        old = self._store.key(id)
        if old.revoked_at is not None:
            return old
        new = msgspec.structs.replace(old, revoked_at=self._clock.wall())
        self._commit("key.revoked", id, reason, _facts(old), _facts(new), keys=(new,))
        return new

    def _commit(
        self,
        action: str,
        target: str,
        reason: str,
        before: dict[str, Any] | None,
        after: dict[str, Any],
        **change: Any,
    ) -> None:
        at = self._clock.wall()
        draft = entry(action, at, target=target, reason=reason, before=before, after=after)
        self._store.commit_identity(IdentityChange(**change), draft)


def _check_name(name: str, field: str) -> None:
    if not _NAME.fullmatch(name):
        text = f"{field}: expected 1 to 64 letters, digits, or . _ @ + -"
        raise Invalid(text, field=field)


def _end(at: datetime, life: timedelta | None) -> datetime | None:
    if life is not None and life <= timedelta(0):
        raise Invalid("days: expected a positive number", field="days")
    return None if life is None else at + life


def _user_facts(user: UserRecord) -> dict[str, Any]:
    return {"role": user.role, "disabled": user.disabled}


_PRIVATE = frozenset({"digest", "cache_salt"})


def _facts(record: TokenRecord | KeyRecord) -> dict[str, Any]:
    """A credential for the audit: everything but what would open something."""
    found = msgspec.structs.asdict(record)
    return {k: v for k, v in found.items() if k not in _PRIVATE and v not in (None, "", 0)}

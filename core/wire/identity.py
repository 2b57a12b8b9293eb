"""Who may use the admin API: the caller, users, tokens, keys, and the administrative audit."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from core.wire.base import Answer, Ask

DAYS_MAX = 3650.0
"""Longest life of a token or key; without a life it has no end."""
REQUESTS_PER_S_MAX, CONCURRENT_MAX, TOKENS_PER_MIN_MAX = 1e6, 1_000_000, 10**12
"""Largest limits of a key; 0 is none."""


class WhoAmI(Answer):
    """GET /whoami: the caller as the service sees it."""

    name: str
    role: str | None
    """viewer, operator or admin."""
    kind: str
    """anonymous, token, session or console."""
    anonymous: bool = False
    """Nothing was shown; signing in may allow more."""


class SignIn(Ask):
    """POST /login."""

    user: str = Field(min_length=1, max_length=64)
    password: str = Field(min_length=1, max_length=256, repr=False)


class SignInElsewhere(Ask):
    """POST /login/oidc: the ID token that an identity provider gave the console."""

    id_token: str = Field(min_length=1, max_length=16_384, repr=False)


class SignedIn(Answer):
    """A session has begun; the token is shown this once."""

    token: str = Field(repr=False)
    name: str
    role: str
    expires_at: datetime


RoleName = Literal["viewer", "operator", "admin"]
Name = Field(min_length=1, max_length=64)
Reason = Field(default="", max_length=500)


class UserAsk(Ask):
    """POST /users."""

    name: str = Name
    role: RoleName = "viewer"
    password: str = Field(min_length=1, max_length=256, repr=False)
    reason: str = Reason


class UserChange(Ask):
    """PATCH /users/{name}: what is left out stays as it is. A new password, or shutting somebody
    out, ends the user's sessions; a new role holds for them at once."""

    role: RoleName | None = None
    disabled: bool | None = None
    password: str | None = Field(default=None, min_length=1, max_length=256, repr=False)
    reason: str = Reason


class UserView(Answer):
    """A local user."""

    name: str
    role: str
    disabled: bool
    created_at: datetime
    created_by: str
    changed_at: datetime


class UserList(Answer):
    """GET /users, by name."""

    users: list[UserView]


class TokenAsk(Ask):
    """POST /tokens."""

    name: str = Name
    role: RoleName = "viewer"
    days: float | None = Field(default=None, gt=0, le=DAYS_MAX)
    """Life; None has no end."""
    reason: str = Reason


class TokenView(Answer):
    """A token, or the session of somebody who signed in; never its text."""

    id: str
    kind: Literal["token", "session"]
    name: str
    role: str
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    revoked_at: datetime | None = None


class TokenList(Answer):
    """GET /tokens: tokens and running sessions, newest first."""

    tokens: list[TokenView]


class NewToken(TokenView):
    """A token just made; `token` is shown this once."""

    token: str = Field(repr=False)


class KeyAsk(Ask):
    """POST /keys: a key of the data plane. A limit of 0 is none; replicas count apart."""

    name: str = Name
    tenant: str = Name
    requests_per_s: float = Field(default=0.0, ge=0, le=REQUESTS_PER_S_MAX, allow_inf_nan=False)
    concurrent_max: int = Field(default=0, ge=0, le=CONCURRENT_MAX)
    tokens_per_min: int = Field(default=0, ge=0, le=TOKENS_PER_MIN_MAX)
    days: float | None = Field(default=None, gt=0, le=DAYS_MAX)
    reason: str = Reason


class KeyView(Answer):
    """A key of the data plane; never its text, nor its tenant's salt."""

    id: str
    name: str
    tenant: str
    requests_per_s: float
    concurrent_max: int
    tokens_per_min: int
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    revoked_at: datetime | None = None


class KeyList(Answer):
    """GET /keys, newest first."""

    keys: list[KeyView]


class NewKey(KeyView):
    """A key just made; `key` is shown this once."""

    key: str = Field(repr=False)


class AuditEntry(Answer):
    """One administrative act; `before` and `after` are None where there was nothing."""

    number: int
    at: datetime
    actor: str
    kind: str
    """anonymous, token, session, console, local (command line on the database), or system."""
    role: str
    peer: str
    action: str
    target: str
    reason: str
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    digest: str


class AuditPage(Answer):
    """GET /audit, newest first; `next` is the `before` of the next page, None on the last."""

    entries: list[AuditEntry]
    next: int | None = None


class AuditCheck(Answer):
    """GET /audit/verify: the whole chain, read again."""

    checked: int
    ok: bool
    fault: int | None = None
    """Number of the first entry that is not as it was written."""
    what: str = ""

"""Who may use the admin API: the caller, users, tokens, keys, and the administrative audit."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from core.wire.base import Answer, Ask


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


class SignedIn(Answer):
    """A session has begun; the token is shown this once."""

    token: str = Field(repr=False)
    name: str
    role: str
    expires_at: datetime

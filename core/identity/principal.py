"""Roles, principals, and who is acting now.

The admin API puts the caller of each request into `ACTING` before any route runs; whatever the
request leads to (in tasks and threads it starts, too) finds there who did it and from where.
"""

from __future__ import annotations

import enum
from contextvars import ContextVar
from dataclasses import dataclass


class AccessRole(enum.StrEnum):
    """What a caller of the admin API may do; each one includes those before it."""

    VIEWER = "viewer"
    """Read everything but identities and the administrative audit."""
    OPERATOR = "operator"
    """Act on nodes, breakers and the live configuration."""
    ADMIN = "admin"
    """Manage users, tokens and keys as well, and read the audit."""

    @property
    def rank(self) -> int:
        """Grows with what is allowed."""
        return _ORDER.index(self)

    def covers(self, least: AccessRole) -> bool:
        """Whether this role may do what asks for `least`."""
        return self.rank >= least.rank


_ORDER = tuple(AccessRole)


class Kind(enum.StrEnum):
    """How a caller showed who it is."""

    ANONYMOUS = "anonymous"
    TOKEN = "token"
    SESSION = "session"
    """A person who signed in with a password."""
    CONSOLE = "console"
    """A person whom the console's own sign-in (OIDC) vouches for."""
    LOCAL = "local"
    """Somebody with access to the database, through the command line."""
    SYSTEM = "system"
    """The product itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who a request comes from. `role` None: nobody in particular, who may do nothing."""

    name: str
    role: AccessRole | None
    kind: Kind
    credential: str = ""
    """Public id of the token or session that was shown."""
    peer: str = ""
    """Address the request came from, as far as it can be trusted."""

    def may(self, least: AccessRole) -> bool:
        """Whether the role suffices."""
        return self.role is not None and self.role.covers(least)


SYSTEM = Principal(name="conductor", role=AccessRole.ADMIN, kind=Kind.SYSTEM)
ACTING: ContextVar[Principal] = ContextVar("acting", default=SYSTEM)
"""The caller of the request under way; the product itself outside of any."""


def author(claimed: str = "") -> str:
    """Name to record for what happens now: the caller's own.

    Only a caller without credentials is called what it calls itself; its acts are marked as
    anonymous in the audit.
    """
    who = ACTING.get()
    if who.kind is not Kind.ANONYMOUS:
        return who.name
    return claimed.strip() or who.name

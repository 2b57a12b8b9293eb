"""Who is it? From the headers of an admin request to a principal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from core.errors import Forbidden, Unauthorized
from core.identity.credentials import matches
from core.identity.peers import Network, is_local_name, is_loopback, origin
from core.identity.principal import AccessRole, Kind, Principal

RawHeaders = Iterable[tuple[bytes, bytes]]
SIGN_IN = "sign in, or send `Authorization: Bearer TOKEN`"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthRules:
    """What is allowed without credentials, and whom to believe."""

    anonymous_role: AccessRole | None = AccessRole.VIEWER
    """Of callers on this machine that show nothing. Only where `loopback`."""
    loopback: bool = True
    """The service listens on this machine's own addresses only."""
    require_api_key: bool = False
    """Whether the data plane needs a key."""
    trusted_proxies: tuple[Network, ...] = ()
    """Whose X-Forwarded-For is believed."""


class Authority:
    """Knows who shows which credential."""

    def __init__(self, rules: AuthRules | None = None, *, admin_digest: str = "") -> None:
        self.rules = rules or AuthRules()
        self._admin_digest = admin_digest

    async def identify(self, headers: RawHeaders, peer: str) -> Principal:
        """The caller of an admin request; Unauthorized for a credential that is not good.

        Without any credential: anonymous, with a role only on this machine.
        """
        found = dict(headers)
        forwarded = found.get(b"x-forwarded-for", b"").decode("latin-1")
        where = origin(peer, forwarded, self.rules.trusted_proxies)
        shown = bearer(found)
        if shown is None:
            role = self._anonymous_role(found, where)
            return Principal(name="anonymous", role=role, kind=Kind.ANONYMOUS, peer=where)
        return await self._known(shown, where)

    async def _known(self, shown: str, where: str) -> Principal:
        if self._admin_digest and matches(shown, self._admin_digest):
            admin = AccessRole.ADMIN
            return Principal(name="admin-token", role=admin, kind=Kind.TOKEN, peer=where)
        raise Unauthorized("the token is not known here, has expired or was revoked")

    def _anonymous_role(self, headers: dict[bytes, bytes], where: str) -> AccessRole | None:
        rules, host = self.rules, headers.get(b"host", b"").decode("latin-1")
        local = rules.loopback and is_loopback(where) and is_local_name(host)
        return rules.anonymous_role if local else None


def require(who: Principal, least: AccessRole | None) -> None:
    """Unauthorized for nobody in particular, Forbidden for a role that does not suffice.

    `least` None: open to everybody.
    """
    if least is None or who.may(least):
        return
    if who.kind is Kind.ANONYMOUS:
        raise Unauthorized(f"this needs the role {least.value}: {SIGN_IN}")
    role = who.role.value if who.role else "none"
    raise Forbidden(f"this needs the role {least.value}; {who.name} has {role}")


def bearer(headers: dict[bytes, bytes]) -> str | None:
    """The bearer token of a request; None where there is none."""
    scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"bearer" or not value.strip():
        return None
    return value.strip().decode("latin-1")

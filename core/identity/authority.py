"""Who is it? From the headers of an admin request to a principal."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from core.clock import Clock, SystemClock
from core.errors import Forbidden, NotFound, StoreError, Unauthorized
from core.identity.credentials import CredentialKind, matches, parse
from core.identity.identities import Identities
from core.identity.memory import Memory
from core.identity.oidc import Provider
from core.identity.peers import Network, is_local_name, is_loopback, origin
from core.identity.principal import ACTING, AccessRole, Kind, Principal
from core.identity.throttle import Throttle
from core.ports import IdentityStore, TokenRecord

RawHeaders = Iterable[tuple[bytes, bytes]]
SIGN_IN = "sign in, or send `Authorization: Bearer TOKEN`"
_NOT_GOOD = "the token is not known here, has expired or was revoked"
_BAD_PER_PEER, _BAD_WINDOW_S = 100, 60.0
_WRONG_PER_USER, _WRONG_PER_PEER, _WRONG_WINDOW_S = 5, 20, 300.0
_HASHES_AT_ONCE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthRules:
    """What is allowed without credentials, and whom to believe."""

    anonymous_role: AccessRole | None = AccessRole.VIEWER
    """Of callers on this machine that show nothing. Only where `loopback`."""
    loopback: bool = True
    """The service listens on this machine's own addresses only."""
    require_api_key: bool = False
    """Whether the data plane needs a key."""
    open_metrics: bool = False
    """Whether /metrics is open to everybody."""
    trusted_proxies: tuple[Network, ...] = ()
    """Whose X-Forwarded-For is believed."""


class Authority:
    """Knows who shows which credential.

    admin_digest: digest of an administrator's token that is given from outside. store: where
    tokens and users are kept; None knows no others. provider: vouches for people who sign in
    elsewhere.
    """

    def __init__(
        self,
        rules: AuthRules | None = None,
        *,
        admin_digest: str = "",
        store: IdentityStore | None = None,
        clock: Clock | None = None,
        provider: Provider | None = None,
    ) -> None:
        self.rules, self._provider = rules or AuthRules(), provider
        self._admin_digest = admin_digest
        self._clock = clock or SystemClock()
        self._store = store
        self._memory: Memory[TokenRecord] | None = None
        if store is not None:
            self._memory = Memory(store.token, self._clock.now)
        self._bad = Throttle(failures_max=_BAD_PER_PEER, window_s=_BAD_WINDOW_S)
        self._wrong = Throttle(failures_max=_WRONG_PER_USER, window_s=_WRONG_WINDOW_S)
        self._wrong_here = Throttle(failures_max=_WRONG_PER_PEER, window_s=_WRONG_WINDOW_S)
        self._hashing = asyncio.Semaphore(_HASHES_AT_ONCE)

    @property
    def identities(self) -> Identities:
        """Acts on users, tokens and keys; StoreError without a store."""
        if self._store is None:
            raise StoreError("this service keeps no records, so it knows no users")
        return Identities(self._store, self._clock)

    def forget(self) -> None:
        """Identities changed: whoever is known is asked about again."""
        if self._memory is not None:
            self._memory.forget()

    # -- who is it -------------------------------------------------------------------------

    async def identify(self, headers: RawHeaders, peer: str) -> Principal:
        """The caller of an admin request; Unauthorized for a credential that is not good.

        Without any credential: anonymous, with a role only on this machine.
        """
        found = dict(headers)
        where = self.origin(found, peer)
        shown = bearer(found)
        if shown is None:
            role = self._anonymous_role(found, where)
            return Principal(name="anonymous", role=role, kind=Kind.ANONYMOUS, peer=where)
        if self._admin_digest and matches(shown, self._admin_digest):
            admin = AccessRole.ADMIN
            return Principal(name="admin-token", role=admin, kind=Kind.TOKEN, peer=where)
        return await self._known(shown, where)

    async def holds(self, who: Principal, least: AccessRole | None) -> bool:
        """Whether somebody who was let in would be let in again now."""
        if self._memory is None or not who.credential or least is None:
            return True
        found = self._memory.fresh(who.credential) or await self._memory.get(who.credential)
        good = found is not None and found.good_at(self._clock.wall())
        return good and found is not None and AccessRole(found.role).covers(least)

    def origin(self, headers: dict[bytes, bytes], peer: str) -> str:
        """Where a request comes from, as far as it can be trusted."""
        forwarded = headers.get(b"x-forwarded-for", b"").decode("latin-1")
        return origin(peer, forwarded, self.rules.trusted_proxies)

    async def _known(self, shown: str, where: str) -> Principal:
        credential, now = parse(shown), self._clock.now()
        if self._memory is None or credential is None or credential.kind is CredentialKind.KEY:
            raise Unauthorized(_NOT_GOOD)
        found = self._memory.fresh(credential.id)
        if found is None:
            self._bad.check(where, now)
            found = await self._memory.get(credential.id)
        good = found is not None and found.good_at(self._clock.wall())
        if found is None or not good or not matches(shown, found.digest):
            self._bad.failed(where, now)
            raise Unauthorized(_NOT_GOOD)
        kind = Kind.TOKEN
        if credential.kind is CredentialKind.SESSION:
            kind = Kind.SESSION if found.owner else Kind.CONSOLE
        return Principal(
            name=found.name,
            role=AccessRole(found.role),
            kind=kind,
            credential=found.id,
            peer=where,
        )

    def _anonymous_role(self, headers: dict[bytes, bytes], where: str) -> AccessRole | None:
        rules, host = self.rules, headers.get(b"host", b"").decode("latin-1")
        local = rules.loopback and is_loopback(where) and is_local_name(host)
        return rules.anonymous_role if local else None

    # -- signing in ------------------------------------------------------------------------

    async def sign_in(self, user: str, password: str) -> tuple[str, TokenRecord]:
        """(token, session). Unauthorized, or Overloaded after too many failures."""
        peer, now = ACTING.get().peer, self._clock.now()
        async with self._hashing:
            # In here: of many attempts at once, each has to see how those before it went.
            self._wrong.check(f"{peer} {user}", now)
            self._wrong_here.check(peer, now)
            try:
                made, session = await asyncio.to_thread(
                    self.identities.sign_in, user, password, peer
                )
            except Unauthorized:
                self._wrong.failed(f"{peer} {user}", now)
                self._wrong_here.failed(peer, now)
                raise
        self._wrong.forgive(f"{peer} {user}")
        return made.text, session

    async def sign_in_elsewhere(self, id_token: str) -> tuple[str, TokenRecord]:
        """(token, session) of whom the provider vouches for. NotFound where there is none;
        errors as `Provider.person`'s, and Overloaded after too many bad tokens."""
        if self._provider is None:
            raise NotFound("no identity provider is set up (auth.oidc)", field="id_token")
        peer, now = ACTING.get().peer, self._clock.now()
        self._wrong_here.check(peer, now)
        try:
            person = await self._provider.person(id_token)
        except Unauthorized:
            self._wrong_here.failed(peer, now)
            raise
        life = self._provider.rules.session_life
        made, session = await asyncio.to_thread(
            self.identities.begin_session, person.name, person.role, life=life, peer=peer
        )
        return made.text, session

    async def sign_out(self) -> None:
        """End the session of who is acting; a token is left as it is."""
        who = ACTING.get()
        if who.kind in (Kind.SESSION, Kind.CONSOLE):
            await asyncio.to_thread(self.identities.revoke_token, who.credential)
            self.forget()


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

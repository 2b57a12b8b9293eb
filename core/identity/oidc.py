"""ID tokens of an OpenID Connect provider: checked, and turned into a name and a role.

The console's own sign-in fetches the token; nothing of it is believed but what the provider has
signed. The provider's keys are found through its discovery document (OpenID Connect Discovery
1.0, section 4), kept for an hour, and fetched again where a token names one that is not among
them, at most once in ten seconds. Issuer, audience, expiry and signature are checked as OpenID
Connect Core 1.0, section 3.1.3.7 asks; the nonce belongs to who began the sign-in and is checked
there. A token is taken for ten minutes after it was issued, so that one that leaks later opens
nothing.

The library that checks signatures comes with the extra `oidc`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson

from core.clock import Clock
from core.errors import Forbidden, Invalid, StoreError, Unauthorized
from core.identity.principal import AccessRole

try:
    from joserfc import jwt
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet
except ImportError:  # the extra is not installed: `make_provider` says so
    jwt = None  # type: ignore[assignment]

ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "ES512", "EdDSA"]
"""Signatures with a public key only: a shared secret would sign for whoever knows it."""
KEYS_KEPT_S, KEYS_AGAIN_S = 3_600.0, 10.0
LEEWAY_S = 60
AGE_MAX_S = 600
ANSWER_BYTES_MAX = 1 << 20
_WAIT_S = 5.0
Fetch = Callable[[str], Awaitable[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcRules:
    """Whom to believe, and how claims become a name and a role."""

    issuer: str
    client_id: str
    name_claim: str = "email"
    role_claim: str = "groups"
    roles: Mapping[str, AccessRole] = field(default_factory=dict)
    default_role: AccessRole | None = None
    session_life: timedelta = timedelta(hours=8)


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody whom the provider vouches for."""

    name: str
    role: AccessRole


class Provider:
    """One provider. fetch: reads an address; raises StoreError where nothing answers."""

    def __init__(self, rules: OidcRules, clock: Clock, *, fetch: Fetch | None = None) -> None:
        if jwt is None:
            text = "auth.oidc.issuer: signing in through a provider needs the extra `oidc`"
            raise Invalid(f"{text}: pip install 'kv-conductor[oidc]'", field="auth.oidc.issuer")
        self.rules = rules
        self._clock, self._fetch = clock, fetch or fetched
        self._keys: KeySet | None = None
        self._keys_at_s = 0.0
        self._lock = asyncio.Lock()

    async def person(self, id_token: str) -> Person:
        """Who signed in. Unauthorized for a token that is not good, Forbidden for somebody without
        a role, StoreError where the provider's keys cannot be had."""
        return person(await self._claims(id_token), self.rules)

    async def _claims(self, id_token: str) -> Mapping[str, Any]:
        keys = await self._known_keys(KEYS_KEPT_S)
        try:
            try:
                token = jwt.decode(id_token, keys, algorithms=ALGORITHMS)
            except (JoseError, ValueError):
                keys = await self._known_keys(KEYS_AGAIN_S)  # perhaps of a key that is new
                token = jwt.decode(id_token, keys, algorithms=ALGORITHMS)
            self._registry().validate(token.claims)
        except (JoseError, ValueError) as error:
            raise Unauthorized(f"the provider's token is not good: {error}") from None
        return self._of_ours(token.claims)

    def _registry(self) -> jwt.JWTClaimsRegistry:
        return jwt.JWTClaimsRegistry(
            now=int(self._clock.wall().timestamp()),
            leeway=LEEWAY_S,
            iss={"essential": True, "value": self.rules.issuer},
            aud={"essential": True, "value": self.rules.client_id},
            exp={"essential": True},
            iat={"essential": True},
            sub={"essential": True},
        )

    def _of_ours(self, claims: Mapping[str, Any]) -> Mapping[str, Any]:
        """Not made for somebody else among several audiences, and not old."""
        if claims.get("azp", self.rules.client_id) != self.rules.client_id:
            raise Unauthorized("the provider's token is not good: it was made for another client")
        if isinstance(claims["aud"], list) and len(claims["aud"]) > 1 and "azp" not in claims:
            raise Unauthorized("the provider's token is not good: it has several audiences")
        if self._clock.wall().timestamp() - claims["iat"] > AGE_MAX_S + LEEWAY_S:
            raise Unauthorized("the provider's token is too old; sign in again")
        return claims

    async def _known_keys(self, age_max_s: float) -> KeySet:
        async with self._lock:
            now = self._clock.now()
            if self._keys is None or now - self._keys_at_s > age_max_s:
                self._keys, self._keys_at_s = await self._read_keys(), now
            return self._keys

    async def _read_keys(self) -> KeySet:
        """The provider's keys, through its discovery document."""
        issuer = self.rules.issuer
        about = await self._json(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if about.get("issuer") != issuer:
            raise StoreError(f"{issuer} says that it is {about.get('issuer')!r}")
        where = str(about.get("jwks_uri", ""))
        check_address(where)
        try:
            return KeySet.import_key_set(await self._json(where))  # type: ignore[arg-type]
        except (JoseError, ValueError, KeyError, TypeError):
            raise StoreError(f"{where} holds no keys") from None

    async def _json(self, address: str) -> dict[str, Any]:
        try:
            found = orjson.loads(await self._fetch(address))
        except orjson.JSONDecodeError:
            found = None
        if not isinstance(found, dict):
            raise StoreError(f"the identity provider's answer at {address} cannot be read")
        return found


def person(claims: Mapping[str, Any], rules: OidcRules) -> Person:
    """Name and role by checked claims. Unauthorized without a usable name, Forbidden without a
    role."""
    name = claims.get(rules.name_claim)
    if not isinstance(name, str) or not name:
        raise Unauthorized(f"the provider's token has no claim {rules.name_claim!r}")
    if rules.name_claim == "email" and claims.get("email_verified") is False:
        raise Unauthorized(f"the provider has not verified the address {name!r}")
    values = _at(claims, rules.role_claim)
    groups = [values] if isinstance(values, str) else values if isinstance(values, list) else []
    found = [rules.roles[g] for g in groups if isinstance(g, str) and g in rules.roles]
    role = max(found, key=lambda r: r.rank, default=rules.default_role)
    if role is None:
        raise Forbidden(f"{name} has no role here: ask an administrator")
    return Person(name, role)


def check_address(address: str) -> None:
    """Invalid unless https, or this machine's own."""
    parts = urlsplit(address)
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme == "http" and _is_here(parts.hostname or ""):
        return
    text = f"auth.oidc.issuer: {address!r} is neither https nor on this machine"
    raise Invalid(text, field="auth.oidc.issuer")


async def fetched(address: str) -> bytes:
    """What an address holds: no redirects, at most a mebibyte, within seconds. StoreError."""
    found = b""
    try:
        async with (
            asyncio.timeout(_WAIT_S),
            httpx.AsyncClient(follow_redirects=False, trust_env=False) as client,
            client.stream("GET", address) as answer,
        ):
            if answer.status_code != 200:
                raise StoreError(f"the identity provider answers {answer.status_code}: {address}")
            async for part in answer.aiter_bytes():
                found += part
                if len(found) > ANSWER_BYTES_MAX:
                    raise StoreError(f"the identity provider's answer is too long: {address}")
    except (httpx.HTTPError, TimeoutError) as error:
        text = f"the identity provider does not answer ({type(error).__name__}): {address}"
        raise StoreError(text) from None
    return found


def _at(claims: Mapping[str, Any], path: str) -> Any:
    """A claim by its name, or by a path of names with dots between them."""
    if path in claims:
        return claims[path]
    found: Any = claims
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False

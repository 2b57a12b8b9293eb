"""Admin routes of identity: the caller, signing in, users, tokens, keys, the audit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Path, Query

from core import wire
from core.errors import StoreError
from core.gateway.auth import LEAST_ADMIN, LEAST_VIEWER, OPEN
from core.identity.credentials import CredentialKind
from core.identity.principal import ACTING, AccessRole, Kind
from core.ports import AuditRecord, KeyRecord, RecordStore, TokenRecord, UserRecord

if TYPE_CHECKING:
    from core.gateway.service import Service

R = TypeVar("R")
Id = Annotated[str, Path(max_length=64)]
Reason = Annotated[str, Query(max_length=500)]
Filter = Annotated[str, Query(max_length=500)]


def identity_routes(service: Service) -> APIRouter:
    """All routes, to be mounted under the API's prefix."""
    router = APIRouter(tags=["identity"])
    _self_routes(router, service)
    _user_routes(router, service)
    _token_routes(router, service)
    _key_routes(router, service)
    _audit_routes(router, service)
    return router


def _self_routes(router: APIRouter, service: Service) -> None:
    @router.get("/whoami")
    async def whoami() -> wire.WhoAmI:
        """The caller: name, role, and how it was recognised."""
        who = ACTING.get()
        return wire.WhoAmI(
            name=who.name,
            role=who.role,
            kind=who.kind,
            anonymous=who.kind is Kind.ANONYMOUS,
        )

    @router.post("/login", status_code=201, openapi_extra=OPEN)
    async def login(asked: wire.SignIn) -> wire.SignedIn:
        """Begin a session; 429 after five wrong passwords in five minutes."""
        token, session = await service.authority.sign_in(asked.user, asked.password)
        return _signed_in(token, session)

    @router.post("/login/oidc", status_code=201, openapi_extra=OPEN)
    async def login_elsewhere(asked: wire.SignInElsewhere) -> wire.SignedIn:
        """Begin a session of somebody whom the identity provider vouches for: its ID token."""
        return _signed_in(*await service.authority.sign_in_elsewhere(asked.id_token))

    @router.post("/logout", openapi_extra=LEAST_VIEWER)
    async def logout() -> wire.Done:
        """End the session whose token was sent; other tokens stay good."""
        await service.authority.sign_out()
        return wire.Done(message="signed out")


def _signed_in(token: str, session: TokenRecord) -> wire.SignedIn:
    assert session.expires_at is not None
    return wire.SignedIn(
        token=token, name=session.name, role=session.role, expires_at=session.expires_at
    )


def _user_routes(router: APIRouter, service: Service) -> None:
    @router.get("/users", openapi_extra=LEAST_ADMIN)
    async def users() -> wire.UserList:
        found = await asyncio.to_thread(_store(service).users)
        return wire.UserList(users=[_user(u) for u in found])

    @router.post("/users", status_code=201, openapi_extra=LEAST_ADMIN)
    async def add(asked: wire.UserAsk) -> wire.UserView:
        acts = service.authority.identities
        await asyncio.to_thread(
            acts.add_user, asked.name, AccessRole(asked.role), asked.password, reason=asked.reason
        )
        return _user(await asyncio.to_thread(_store(service).user, asked.name))

    @router.patch("/users/{name}", openapi_extra=LEAST_ADMIN)
    async def change(name: Id, asked: wire.UserChange) -> wire.UserView:
        changed = await asyncio.to_thread(
            lambda: service.authority.identities.change_user(
                name,
                role=None if asked.role is None else AccessRole(asked.role),
                disabled=asked.disabled,
                password=asked.password,
                reason=asked.reason,
            )
        )
        service.forget_identities()
        return _user(changed)


def _token_routes(router: APIRouter, service: Service) -> None:
    @router.get("/tokens", openapi_extra=LEAST_ADMIN)
    async def tokens() -> wire.TokenList:
        found = await asyncio.to_thread(_store(service).tokens)
        return wire.TokenList(tokens=[wire.TokenView(**_token(t)) for t in found])

    @router.post("/tokens", status_code=201, openapi_extra=LEAST_ADMIN)
    async def create(asked: wire.TokenAsk) -> wire.NewToken:
        made, record = await asyncio.to_thread(
            lambda: service.authority.identities.create_token(
                asked.name, AccessRole(asked.role), life=_life(asked.days), reason=asked.reason
            )
        )
        return wire.NewToken(token=made.text, **_token(record))

    @router.delete("/tokens/{id}", openapi_extra=LEAST_ADMIN)
    async def revoke(id: Id, reason: Reason = "") -> wire.TokenView:
        acts = service.authority.identities
        return wire.TokenView(**_token(await _ended(service, acts.revoke_token, id, reason)))


def _key_routes(router: APIRouter, service: Service) -> None:
    @router.get("/keys", openapi_extra=LEAST_ADMIN)
    async def keys() -> wire.KeyList:
        found = await asyncio.to_thread(_store(service).keys)
        return wire.KeyList(keys=[wire.KeyView(**_key(k)) for k in found])

    @router.post("/keys", status_code=201, openapi_extra=LEAST_ADMIN)
    async def create(asked: wire.KeyAsk) -> wire.NewKey:
        given = asked.model_dump(exclude={"name", "tenant", "days"})
        made, record = await asyncio.to_thread(
            lambda: service.authority.identities.create_key(
                asked.name, asked.tenant, life=_life(asked.days), **given
            )
        )
        return wire.NewKey(key=made.text, **_key(record))

    @router.delete("/keys/{id}", openapi_extra=LEAST_ADMIN)
    async def revoke(id: Id, reason: Reason = "") -> wire.KeyView:
        acts = service.authority.identities
        return wire.KeyView(**_key(await _ended(service, acts.revoke_key, id, reason)))


def _audit_routes(router: APIRouter, service: Service) -> None:
    @router.get("/audit", openapi_extra=LEAST_ADMIN)
    async def audit(
        before: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
        actor: Filter = "",
        action: Filter = "",
        target: Filter = "",
    ) -> wire.AuditPage:
        """Administrative acts, newest first; a filter may end in `*`."""
        store = _store(service)
        found = await asyncio.to_thread(
            lambda: store.audit(
                before=before, limit=limit, actor=actor, action=action, target=target
            )
        )
        last = found[-1].number if len(found) == limit else None
        return wire.AuditPage(entries=[_entry(e) for e in found], next=last)

    @router.get("/audit/verify", openapi_extra=LEAST_ADMIN)
    async def verify() -> wire.AuditCheck:
        """Read the whole chain again."""
        checked, fault = await asyncio.to_thread(_store(service).verify_audit)
        if fault is None:
            return wire.AuditCheck(checked=checked, ok=True)
        return wire.AuditCheck(checked=checked, ok=False, fault=fault.number, what=fault.what)


async def _ended(service: Service, revoke: Callable[..., R], id: str, reason: str) -> R:
    """Revoke a credential, and ask about all of them again."""
    record = await asyncio.to_thread(revoke, id, reason=reason)
    service.forget_identities()
    return record


def _store(service: Service) -> RecordStore:
    if service.store is None:
        raise StoreError("this service keeps no records")
    return service.store


def _life(days: float | None) -> timedelta | None:
    return None if days is None else timedelta(days=days)


def _user(u: UserRecord) -> wire.UserView:
    fields = msgspec.structs.asdict(u)
    del fields["password_hash"]
    return wire.UserView(**fields)


def _token(t: TokenRecord) -> dict[str, Any]:
    names = ("id", "name", "role", "created_at", "created_by", "expires_at", "revoked_at")
    kind = "session" if t.kind == CredentialKind.SESSION else "token"
    return {"kind": kind} | {name: getattr(t, name) for name in names}


def _key(k: KeyRecord) -> dict[str, Any]:
    fields = msgspec.structs.asdict(k)
    return {n: v for n, v in fields.items() if n not in ("digest", "cache_salt")}


def _entry(e: AuditRecord) -> wire.AuditEntry:
    fields = msgspec.structs.asdict(e)
    del fields["previous"]
    for name in ("before", "after"):
        fields[name] = json.loads(fields[name]) if fields[name] else None
    return wire.AuditEntry(**fields)

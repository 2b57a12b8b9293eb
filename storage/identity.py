"""Users, tokens and keys: read by name or id, stored together with their audit entry."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, RowMapping, Table, delete, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from core.errors import Conflict, NotFound
from core.ports import IDENTITY_TOPIC, IdentityChange, KeyRecord, TokenRecord, UserRecord
from storage.changes import announce
from storage.database import now_us
from storage.identity_models import api_keys, tokens, users
from storage.types import from_micros, to_micros

SESSION = "s"
_KEPT_US = 86_400_000_000
"""Sessions that are over for a day are forgotten."""
_LISTED_MAX = 1_000


def has_identities(connection: Connection) -> bool:
    """Whether anybody could sign in."""
    active = select(users.c.name).where(~users.c.disabled).limit(1)
    c, now = tokens.c, now_us(connection)
    good = or_(c.expires_us.is_(None), c.expires_us > now)
    token = select(c.id).where(c.kind != SESSION, c.revoked_us.is_(None), good).limit(1)
    return any(connection.execute(s).first() is not None for s in (active, token))


def all_users(connection: Connection) -> list[UserRecord]:
    """By name."""
    statement = select(users).order_by(users.c.name).limit(_LISTED_MAX)
    return [_user(row) for row in connection.execute(statement).mappings()]


def user(connection: Connection, name: str) -> UserRecord:
    """NotFound for an unknown one."""
    row = connection.execute(select(users).where(users.c.name == name)).mappings().one_or_none()
    if row is None:
        raise NotFound(f"there is no user {name!r}", field="user")
    return _user(row)


def all_tokens(connection: Connection) -> list[TokenRecord]:
    """Tokens and running sessions, newest first."""
    c, now = tokens.c, now_us(connection)
    running = c.revoked_us.is_(None) & (c.expires_us > now)
    statement = select(tokens).where((c.kind != SESSION) | running)
    statement = statement.order_by(c.created_us.desc(), c.id).limit(_LISTED_MAX)
    return [_token(row) for row in connection.execute(statement).mappings()]


def token(connection: Connection, id: str) -> TokenRecord:
    """NotFound for an unknown one. A session has its user's role, and ends with the user."""
    row = connection.execute(select(tokens).where(tokens.c.id == id)).mappings().one_or_none()
    if row is None:
        raise NotFound(f"there is no token {id!r}", field="token")
    found = _token(row)
    if found.kind != SESSION or not found.owner:
        return found
    try:
        owner = user(connection, found.owner)
    except NotFound:
        return msgspec.structs.replace(found, revoked_at=found.created_at)
    if owner.disabled:
        return msgspec.structs.replace(found, revoked_at=owner.changed_at)
    return msgspec.structs.replace(found, role=owner.role)


def all_keys(connection: Connection) -> list[KeyRecord]:
    """Newest first."""
    c = api_keys.c
    statement = select(api_keys).order_by(c.created_us.desc(), c.id).limit(_LISTED_MAX)
    return [_key(row) for row in connection.execute(statement).mappings()]


def key(connection: Connection, id: str) -> KeyRecord:
    """NotFound for an unknown one."""
    statement = select(api_keys).where(api_keys.c.id == id)
    row = connection.execute(statement).mappings().one_or_none()
    if row is None:
        raise NotFound(f"there is no key {id!r}", field="key")
    return _key(row)


def tenant_salt(connection: Connection, tenant: str) -> str:
    """The oldest salt of a tenant's keys; empty without any."""
    c = api_keys.c
    statement = select(c.cache_salt).where(c.tenant == tenant).order_by(c.created_us, c.id).limit(1)
    return str(connection.execute(statement).scalar() or "")


def store(connection: Connection, change: IdentityChange) -> None:
    """Rows of the same name or id are replaced; everybody is told. Conflict for a user that
    somebody else changed in between. The announcement's lock orders them."""
    announce(connection, IDENTITY_TOPIC)
    _check_heard(connection, change.heard)
    _put(connection, users, [_user_row(u) for u in change.users])
    _put(connection, tokens, [_token_row(t) for t in change.tokens])
    _put(connection, api_keys, [_key_row(k) for k in change.keys])
    now, c = now_us(connection), tokens.c
    if change.end_sessions_of:
        mine = (c.kind == SESSION) & (c.owner == change.end_sessions_of) & c.revoked_us.is_(None)
        connection.execute(update(tokens).where(mine).values(revoked_us=now))
    connection.execute(
        delete(tokens).where(c.kind == SESSION, func.coalesce(c.expires_us, 0) < now - _KEPT_US)
    )


def _check_heard(connection: Connection, heard: Mapping[str, datetime | None]) -> None:
    for name, at in heard.items():
        found = connection.scalar(select(users.c.changed_us).where(users.c.name == name))
        if found is None and at is not None:
            raise NotFound(f"there is no user {name!r}", field="user")
        if found is not None and at is None:
            raise Conflict(f"user: there is a user {name!r} already", field="user")
        if at is not None and found != to_micros(at):
            text = f"user: {name} was changed by somebody else in this moment; look again"
            raise Conflict(text, field="user")


def _put(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    dialect: Any = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table)
    key = list(table.primary_key.columns)
    changed = {c.name: statement.excluded[c.name] for c in table.columns if not c.primary_key}
    connection.execute(statement.on_conflict_do_update(index_elements=key, set_=changed), rows)


def _user(row: RowMapping) -> UserRecord:
    return UserRecord(
        name=row["name"],
        role=row["role"],
        password_hash=row["password_hash"],
        disabled=bool(row["disabled"]),
        created_at=from_micros(row["created_us"]),
        created_by=row["created_by"],
        changed_at=from_micros(row["changed_us"]),
    )


def _user_row(u: UserRecord) -> dict[str, Any]:
    return {
        "name": u.name,
        "role": u.role,
        "password_hash": u.password_hash,
        "disabled": u.disabled,
        "created_us": to_micros(u.created_at),
        "created_by": u.created_by,
        "changed_us": to_micros(u.changed_at),
    }


_TOKEN = ("id", "kind", "name", "role", "owner", "digest", "created_by")
_KEY = (
    "id", "name", "tenant", "digest", "cache_salt", "requests_per_s", "concurrent_max",
    "tokens_per_min", "created_by",
)  # fmt: skip


def _token(row: RowMapping) -> TokenRecord:
    return TokenRecord(**{name: row[name] for name in _TOKEN}, **_times(row))


def _token_row(t: TokenRecord) -> dict[str, Any]:
    return {name: getattr(t, name) for name in _TOKEN} | _times_row(t)


def _key(row: RowMapping) -> KeyRecord:
    return KeyRecord(**{name: row[name] for name in _KEY}, **_times(row))


def _key_row(k: KeyRecord) -> dict[str, Any]:
    return {name: getattr(k, name) for name in _KEY} | _times_row(k)


def _times(row: RowMapping) -> dict[str, Any]:
    def at(name: str) -> datetime | None:
        return None if row[name] is None else from_micros(row[name])

    return {
        "created_at": at("created_us"),
        "expires_at": at("expires_us"),
        "revoked_at": at("revoked_us"),
    }


def _times_row(record: TokenRecord | KeyRecord) -> dict[str, int | None]:
    def us(at: datetime | None) -> int | None:
        return None if at is None else to_micros(at)

    return {
        "created_us": us(record.created_at),
        "expires_us": us(record.expires_at),
        "revoked_us": us(record.revoked_at),
    }

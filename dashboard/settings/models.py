"""Users, tokens, keys and the audit as rows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, tzinfo

from core import wire
from dashboard.parts import format as fmt

ROLES = {
    "viewer": "viewer: reads everything but identities and the audit",
    "operator": "operator: acts on nodes, breakers and the live parameters",
    "admin": "admin: users, tokens, keys and the audit as well",
}


def user_rows(users: Sequence[wire.UserView], zone: tzinfo) -> list[dict[str, object]]:
    """Local users."""
    return [
        {
            "User": u.name,
            "Role": u.role,
            "State": "✕ shut out" if u.disabled else "✓ may sign in",
            "Made": fmt.moment(u.created_at, zone)[:19],
            "By": u.created_by,
            "Changed": fmt.moment(u.changed_at, zone)[:19],
        }
        for u in users
    ]


def credential_state(
    expires_at: datetime | None, revoked_at: datetime | None, now: datetime
) -> str:
    """Whether a token or key is good, in a word."""
    if revoked_at is not None:
        return "✕ revoked"
    if expires_at is not None and expires_at <= now:
        return "○ expired"
    return "✓ good"


def token_rows(
    tokens: Sequence[wire.TokenView], *, now: datetime, zone: tzinfo
) -> list[dict[str, object]]:
    """Tokens and sessions, those that are good first."""
    rows: list[dict[str, object]] = [
        {
            "State": credential_state(t.expires_at, t.revoked_at, now),
            "Kind": t.kind,
            "Name": t.name,
            "Role": t.role,
            "Made": fmt.moment(t.created_at, zone)[:19],
            "By": t.created_by,
            "Ends": fmt.moment(t.expires_at, zone)[:19] if t.expires_at else "never",
            "Id": t.id,
        }
        for t in tokens
    ]
    return sorted(rows, key=lambda r: r["State"] != "✓ good")


def key_rows(
    keys: Sequence[wire.KeyView], *, now: datetime, zone: tzinfo
) -> list[dict[str, object]]:
    """Keys of the data plane, those that are good first."""
    rows: list[dict[str, object]] = [
        {
            "State": credential_state(k.expires_at, k.revoked_at, now),
            "Name": k.name,
            "Tenant": k.tenant,
            "Requests/s": limit(k.requests_per_s),
            "At once": limit(k.concurrent_max),
            "Tokens/min": limit(k.tokens_per_min),
            "Made": fmt.moment(k.created_at, zone)[:19],
            "By": k.created_by,
            "Ends": fmt.moment(k.expires_at, zone)[:19] if k.expires_at else "never",
            "Id": k.id,
        }
        for k in keys
    ]
    return sorted(rows, key=lambda r: r["State"] != "✓ good")


def limit(value: float) -> str:
    """A limit; 0 is none."""
    return fmt.count(value) if value else "none"


def audit_rows(entries: Sequence[wire.AuditEntry]) -> list[dict[str, object]]:
    """Administrative acts, newest first as they come."""
    return [
        {
            "Number": e.number,
            "Time": e.at,
            "Who": e.actor,
            "As": f"{e.kind}, {e.role}".strip(", "),
            "From": e.peer,
            "Act": e.action,
            "On": e.target,
            "Reason": e.reason,
        }
        for e in entries
    ]


def check_words(c: wire.AuditCheck) -> tuple[bool, str]:
    """What reading the audit again found."""
    if c.ok:
        return True, f"All {fmt.count(c.checked)} entries are as they were written."
    return False, f"Entry {c.fault} is not as it was written: {c.what}"

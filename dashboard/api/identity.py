"""Calls of the admin API behind Settings: users, tokens, keys, the audit. Only I/O."""

from __future__ import annotations

from urllib.parse import quote

from core import wire
from dashboard.api.client import AdminClient

ACT_S = 15.0


class IdentityClient:
    """Who may do what, over one admin client; everything here needs an administrator."""

    def __init__(self, client: AdminClient) -> None:
        self._call = client.call

    def users(self) -> wire.UserList:
        """Local users, by name."""
        return self._call("GET", "/users", wire.UserList)

    def add_user(self, asked: wire.UserAsk) -> wire.UserView:
        """Make a user."""
        return self._call("POST", "/users", wire.UserView, body=asked, timeout_s=ACT_S)

    def change_user(self, name: str, asked: wire.UserChange) -> wire.UserView:
        """Another role or password, or shut out."""
        path = f"/users/{quote(name, safe='')}"
        return self._call("PATCH", path, wire.UserView, body=asked, timeout_s=ACT_S)

    def tokens(self) -> wire.TokenList:
        """Tokens and running sessions, newest first."""
        return self._call("GET", "/tokens", wire.TokenList)

    def add_token(self, asked: wire.TokenAsk) -> wire.NewToken:
        """Make a token; its text comes this once."""
        return self._call("POST", "/tokens", wire.NewToken, body=asked, timeout_s=ACT_S)

    def revoke_token(self, id: str, reason: str) -> wire.TokenView:
        """End a token or a session."""
        path = f"/tokens/{quote(id, safe='')}"
        params = {"reason": reason}
        return self._call("DELETE", path, wire.TokenView, params=params, timeout_s=ACT_S)

    def keys(self) -> wire.KeyList:
        """Keys of the data plane, newest first."""
        return self._call("GET", "/keys", wire.KeyList)

    def add_key(self, asked: wire.KeyAsk) -> wire.NewKey:
        """Make a key; its text comes this once."""
        return self._call("POST", "/keys", wire.NewKey, body=asked, timeout_s=ACT_S)

    def revoke_key(self, id: str, reason: str) -> wire.KeyView:
        """End a key."""
        path = f"/keys/{quote(id, safe='')}"
        params = {"reason": reason}
        return self._call("DELETE", path, wire.KeyView, params=params, timeout_s=ACT_S)

    def audit(
        self, *, before: int | None = None, actor: str = "", action: str = "", target: str = ""
    ) -> wire.AuditPage:
        """Administrative acts, newest first; `before` goes on from an earlier page."""
        given = {
            "before": str(before) if before is not None else "",
            "actor": actor,
            "action": action,
            "target": target,
        }
        params = {name: value for name, value in given.items() if value}
        return self._call("GET", "/audit", wire.AuditPage, params=params)

    def verify(self) -> wire.AuditCheck:
        """Read the whole audit again and compare its digests."""
        return self._call("GET", "/audit/verify", wire.AuditCheck, timeout_s=60.0)

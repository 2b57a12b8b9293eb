"""Calls of the admin API behind saved views. Only I/O."""

from __future__ import annotations

from urllib.parse import quote

from core import wire
from dashboard.api.client import AdminClient

ACT_S = 15.0


class ViewsClient:
    """Saved views over one admin client."""

    def __init__(self, client: AdminClient) -> None:
        self._call = client.call

    def all(self) -> wire.SavedViewList:
        """The reader's own, and what others share."""
        return self._call("GET", "/views", wire.SavedViewList)

    def save(self, asked: wire.SavedViewAsk) -> wire.SavedView:
        """Keep one; Refused (409) where the name is taken or there are too many."""
        return self._call("POST", "/views", wire.SavedView, body=asked, timeout_s=ACT_S)

    def remove(self, id: str, reason: str) -> wire.SavedView:
        """Delete one."""
        path = f"/views/{quote(id, safe='')}"
        params = {"reason": reason}
        return self._call("DELETE", path, wire.SavedView, params=params, timeout_s=ACT_S)

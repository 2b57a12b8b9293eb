"""Calls of the admin API behind the fleet's pages: nodes, caches, how requests fared. Only I/O."""

from __future__ import annotations

from typing import Literal
from urllib.parse import quote

from core import wire
from dashboard.api.client import AdminClient
from dashboard.parts.window import Window

NodeAct = Literal["cordon", "uncordon", "drain", "undrain"]
ACT_S = 15.0
LOOKUP_S = 20.0
"""A pasted prompt may have to be tokenized by an engine."""
SUM_S = 15.0


class FleetClient:
    """Nodes and what they hold, over one admin client."""

    def __init__(self, client: AdminClient) -> None:
        self._call = client.call

    # -- nodes -----------------------------------------------------------------------------

    def change_node(self, node_id: str, change: wire.NodeChange) -> wire.NodeView:
        """Set a node's weight or note."""
        return self._call("PATCH", _node(node_id), wire.NodeView, body=change, timeout_s=ACT_S)

    def node_act(self, node_id: str, act: NodeAct, why: wire.ActionReason) -> wire.NodeView:
        """Cordon, drain, or take either back."""
        path = f"{_node(node_id)}/{act}"
        return self._call("POST", path, wire.NodeView, body=why, timeout_s=ACT_S)

    def remove_node(self, node_id: str, why: wire.ActionReason) -> wire.Done:
        """Forget a node; requests on it go on."""
        params = {"reason": why.reason, "author": why.author}
        return self._call("DELETE", _node(node_id), wire.Done, params=params, timeout_s=ACT_S)

    def readings(self, node_id: str, window: Window) -> wire.Readings:
        """What the node reported of itself in the window."""
        return self._call(
            "GET",
            f"{_node(node_id)}/readings",
            wire.Readings,
            params=_ends(window),
            timeout_s=SUM_S,
        )

    def signal(self, node_id: str) -> wire.SignalView:
        """What the node's event stream delivered, lost and caught up."""
        return self._call("GET", f"{_node(node_id)}/signal", wire.SignalView)

    def cost(self, node_id: str) -> wire.CostView:
        """How the node's times are predicted, and how well."""
        return self._call("GET", f"{_node(node_id)}/cost", wire.CostView)

    # -- caches ----------------------------------------------------------------------------

    def hot(self, *, limit: int = 50, node: str = "") -> wire.HotPrefixes:
        """The prefixes asked for most; with `node`, those it holds."""
        params = {"limit": str(limit)} | ({"node": node} if node else {})
        return self._call("GET", "/cache/hot", wire.HotPrefixes, params=params)

    def tree(self, root: str = "", *, budget: int = 400) -> wire.CacheTree:
        """The tree below a key, the whole index without one."""
        params = {"budget": str(budget)} | ({"root": root} if root else {})
        return self._call("GET", "/cache/tree", wire.CacheTree, params=params, timeout_s=SUM_S)

    def prefix(self, key: str) -> wire.PrefixView:
        """One prefix by the key of its last block."""
        return self._call("GET", f"/cache/prefixes/{quote(key, safe='')}", wire.PrefixView)

    def lookup(self, asked: wire.LookupAsk) -> wire.LookupView:
        """Where a prompt lies."""
        return self._call("POST", "/cache/lookup", wire.LookupView, body=asked, timeout_s=LOOKUP_S)

    def replication(self, window: Window) -> wire.Replication:
        """Blocks and their copies over time."""
        return self._call("GET", "/cache/replication", wire.Replication, params=_ends(window))

    def migrations(self) -> wire.MigrationList:
        """Prefixes planned, on their way, and done."""
        return self._call("GET", "/migrations", wire.MigrationList)

    def migrate(self, asked: wire.MigrationAsk) -> wire.MigrationView:
        """Copy a prefix to a node now."""
        return self._call("POST", "/migrations", wire.MigrationView, body=asked, timeout_s=ACT_S)

    def cancel_migration(self, id_: str, why: wire.MigrationCancel) -> wire.MigrationView:
        """Give up one that is planned or running."""
        path = f"/migrations/{quote(id_, safe='')}/cancel"
        return self._call("POST", path, wire.MigrationView, body=why, timeout_s=ACT_S)

    # -- how requests fared ----------------------------------------------------------------

    def shares(self, window: Window, *, nodes: bool = True) -> wire.Shares:
        """Requests by tenant, model and, with `nodes`, nodes."""
        params = _ends(window) | {"nodes": str(nodes).lower()}
        return self._call("GET", "/shares", wire.Shares, params=params, timeout_s=SUM_S)

    def timings(self, window: Window) -> wire.TimingsView:
        """Margins and calibration."""
        return self._call(
            "GET", "/timings", wire.TimingsView, params=_ends(window), timeout_s=SUM_S
        )


def _node(node_id: str) -> str:
    return f"/nodes/{quote(node_id, safe='')}"


def _ends(window: Window) -> dict[str, str]:
    return {"since": window.start.isoformat(), "until": window.end.isoformat()}

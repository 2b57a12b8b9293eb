"""Calls of the admin API behind the fleet's pages: acts on nodes. Only I/O: no view of its own."""

from __future__ import annotations

from typing import Literal
from urllib.parse import quote

from core import wire
from dashboard.client import AdminClient

NodeAct = Literal["cordon", "uncordon", "drain", "undrain"]
ACT_S = 15.0


class FleetClient:
    """Nodes and what they hold, over one admin client."""

    def __init__(self, client: AdminClient) -> None:
        self._call = client.call

    def node(self, node_id: str) -> wire.NodeView:
        """One node now."""
        return self._call("GET", _node(node_id), wire.NodeView)

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


def _node(node_id: str) -> str:
    return f"/nodes/{quote(node_id, safe='')}"

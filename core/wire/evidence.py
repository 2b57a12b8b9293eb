"""What happened and why: stored events, the hotspot detector's view, one decision made again."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from core.wire.base import Answer, Ask
from core.wire.fleet import BreakerView


class EventView(Answer):
    """One stored event: a transition, a step of a node's life, or an administrative act."""

    id: str
    at: datetime
    kind: str
    """Machine and new state (``node_breaker.open``), or the act (``tunables.changed``)."""
    node: str = ""
    data: dict[str, Any] = {}


class EventHistory(Answer):
    """GET /history: newest first. With `more`, ask again with `until` = the last one's time."""

    events: list[EventView]
    more: bool = False


class HotGroupView(Answer):
    """One prefix group as the hotspot detector sees it."""

    group: str
    """Key of the group's last leading block, in hexadecimal."""
    state: str
    """calm, alert (asks for more than its holders' share) or filtered."""
    requests: int
    """In the window."""
    share: float
    """Of all requests in the window."""
    holders: int
    nodes: int
    holder_share: float
    """Holders over nodes: an alert begins where the group asks for more than this share."""
    run: int
    """Requests in a row placed on holders while alerted."""
    run_limit: int
    """Requests in a row that take the holders out of the group's candidates."""
    firings: int
    excluded: list[str] = []
    """Nodes that are no candidates of the group now."""
    ends_in_s: float | None = None


class HotspotView(Answer):
    """GET /hotspots."""

    enabled: bool
    window_s: float
    requests_min: int
    cooldown_s: float
    trips_to_open: int
    open_s: float
    group_blocks: int
    groups: list[HotGroupView]
    breaker: BreakerView


class WhatIfAsk(Ask):
    """POST /decisions/{id}/what-if: make one recorded decision again."""

    base: Literal["then", "live"] = "then"
    """Parameters to start from: the decision's own revision, or the live one."""
    changes: dict[str, Any] = Field(default={}, max_length=200)


class WhatIfCandidate(Answer):
    """One recorded candidate under the other parameters, best first."""

    rank: int
    node: str
    total: float
    terms: dict[str, float] = {}
    recorded_total: float | None = None
    recorded: bool = False
    """The decision placed the request here."""
    chosen: bool = False
    """It would be placed here."""
    ttft_s: float
    match_tokens: int


class WhatIfView(Answer):
    """How the decision would come out."""

    id: str
    base: int
    """Revision that `changes` were applied to."""
    policy: str
    changes: dict[str, list[Any]] = {}
    """Path -> [value of the base, value tried]."""
    sense: str
    moved: bool
    source: str
    target: str
    text: str
    """The result in a sentence."""
    candidates: list[WhatIfCandidate]
    assumptions: list[str] = []

"""What an operator sends about a node: registration, drain, breaker."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from core.domain import NODE_ID, EngineKind, LinkKind, Role
from core.wire.base import Ask


class EventsAsk(Ask):
    """ZMQ addresses to connect to (tcp only)."""

    live: str
    replay: str | None = None
    topic: str = ""


class PlaceAsk(Ask):
    """Topology of a node; leave unknown levels empty."""

    host: str = ""
    rack: str = ""
    zone: str = ""


class NodeRegistration(Ask):
    """POST /nodes. Everything but id and url can be discovered from the engine."""

    id: str = Field(min_length=1, max_length=128, pattern=NODE_ID)
    url: str = Field(min_length=8, max_length=2048)
    engine: EngineKind = EngineKind.VLLM
    role: Role = Role.BOTH
    models: list[str] = []
    adapters: dict[str, str] = {}
    block_size: int | None = Field(default=None, ge=1, le=4096)
    kv_capacity_tokens: int = Field(default=0, ge=0)
    context_tokens_max: int = Field(default=0, ge=0)
    batch_max: int = Field(default=256, ge=1, le=1_000_000)
    queue_max: int = Field(default=1024, ge=0, le=1_000_000)
    profile: str = "generic-7b-1gpu"
    speed: float = Field(default=1.0, gt=0.0, le=1000.0)
    place: PlaceAsk = PlaceAsk()
    links: list[LinkKind] = [LinkKind.TCP]
    events: EventsAsk | None = None
    dp_rank: int | None = Field(default=None, ge=0, le=4095)
    tenants: list[str] = []
    """Tenants allowed on the node; empty allows all."""
    weight: float = Field(default=1.0, gt=0.0, le=1000.0)
    kv_transfer: str = Field(default="", max_length=64)
    """P/D connector; nodes with equal non-empty values can serve one request together."""
    kv_dtype: str = Field(default="auto", max_length=32)
    """Dtype of the KV cache as engines name it; auto asks the engine."""
    can_fetch: bool = False
    """The node can pull KV blocks of a prefix from another node when told to."""
    pipeline_group: str = Field(default="", max_length=64)
    """Nodes of equal non-empty names can share one long prefill."""
    kv_store: Literal["", "mooncake", "lmcache"] = ""
    """Shared KV store behind the engine."""
    kv_store_url: str = Field(default="", max_length=2048)
    """LMCache's controller; without it its store is only read."""
    kv_store_instance: str = Field(default="", max_length=128)
    """The engine's LMCache instance at that controller."""


class ActionReason(Ask):
    """Why an operator does something; kept in the event log."""

    reason: str = Field(default="", max_length=500)
    author: str = Field(default="", max_length=128)


class NodeChange(ActionReason):
    """PATCH /nodes/{id}: what is left out stays as it is."""

    weight: float | None = Field(default=None, gt=0.0, le=1000.0, allow_inf_nan=False)
    """Relative share of traffic, for the next decision on."""
    note: str | None = Field(default=None, max_length=1000)
    """Maintenance note; an empty one clears it."""


class BreakerAction(Ask):
    """POST /nodes/{id}/breaker: take the node out, close the breaker, or keep it closed.

    POST /breaker does the same to the global breaker: tripped, requests go round robin.
    """

    action: Literal["trip", "reset", "hold"]
    reason: str = Field(min_length=3, max_length=500)
    author: str = Field(default="", max_length=128)
    seconds: float | None = Field(default=None, gt=0, le=86_400)
    """How long a trip or hold lasts; None until it is reset (a hold needs one)."""

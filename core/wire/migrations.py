"""Replication of hot prefixes: what is planned, at work, and done."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from core.wire.base import Answer, Ask


class MigrationView(Answer):
    """One prefix on its way to a node. Times of the plan are predictions."""

    id: str
    """Empty for what a dry run would start."""
    prefix: str
    """Key, 16 hex digits."""
    tokens: int
    source: str
    target: str
    state: Literal["planned", "running", "done", "failed", "cancelled"]
    how: str
    """lmcache, mooncake_store, hand_over or warm_up."""
    dry_run: bool = False
    manual: bool = False
    reason: str = ""
    author: str = ""
    rate_per_s: float = 0.0
    copies: int = 0
    """Nodes that held it, copies under way included, when it was planned."""
    source_load: float = 0.0
    mean_load: float = 0.0
    target_load: float = 0.0
    predicted_s: float | None = None
    """To bring it there; None where no path leads."""
    saved_s: float = 0.0
    """Per access that the target takes over."""
    benefit_s: float = 0.0
    """Request-seconds saved over one window, moving taken off."""
    planned_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    seconds: float | None = None
    moved_tokens: int = 0
    moved_bytes: float = 0.0
    computed_tokens: int = 0
    """Computed by the target instead of moved."""
    target_holds_tokens: int | None = None
    """Of the prefix, as the index says now; None where its tokens are not known any more."""
    error: str = ""


class MigrationTotals(Answer):
    """Since the service started."""

    done: int = 0
    failed: int = 0
    cancelled: int = 0
    forgotten: int = 0
    """Replicas given up because their prefix cooled."""
    moved_tokens: int = 0
    moved_bytes: int = 0
    computed_tokens: int = 0


class MigrationList(Answer):
    """GET /migrations: newest first within each list."""

    mode: Literal["off", "dry_run", "on"]
    planned: list[MigrationView]
    """Waiting to start, and what a dry run would start."""
    running: list[MigrationView]
    ended: list[MigrationView]
    held_back: dict[str, int]
    """Reason -> prefixes that the last look left where they are."""
    totals: MigrationTotals
    looked_ago_s: float | None = None
    look_took_s: float = 0.0
    prompts_known: int = 0
    """Recent prompts whose tokens are remembered."""
    prompt_bytes: int = 0
    prompt_bytes_max: int = 0
    prompts_dropped: int = 0


class MigrationAsk(Ask):
    """POST /migrations: copy a prefix to a node now."""

    prefix: str = Field(pattern=r"^[0-9a-f]{16}$")
    target: str = Field(min_length=1, max_length=128)
    reason: str = Field(min_length=3, max_length=500)
    author: str = Field(default="", max_length=128)


class MigrationCancel(Ask):
    """POST /migrations/{id}/cancel."""

    reason: str = Field(default="", max_length=500)
    author: str = Field(default="", max_length=128)

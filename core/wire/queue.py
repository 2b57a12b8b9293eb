"""Requests that wait for a node."""

from __future__ import annotations

from core.wire.base import Answer


class QueueGroup(Answer):
    """Requests of one tenant and class that wait."""

    tenant: str
    priority: int
    waiting: int
    tokens: int
    """Prompt tokens of them all."""


class QueueView(Answer):
    """GET /queue: who waits for a node (admission.mode = queue)."""

    mode: str
    waiting: int
    waiting_max: int
    nbytes: int
    nbytes_max: int
    oldest_s: float
    """How long the one has waited that has waited longest."""
    groups: list[QueueGroup]
    """Highest class first; at most 200."""
    fates: dict[str, int]
    """queued, served, expired, full, displaced: counted since the start."""

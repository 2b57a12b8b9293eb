"""Live parameters, their revisions, and policies."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from core.wire.base import Answer, Ask


class TunableView(Answer):
    """One live parameter with its bounds."""

    path: str
    value: Any
    default: Any
    unit: str = ""
    doc: str = ""
    source: str = ""
    low: float | None = None
    high: float | None = None
    choices: list[Any] = []


class RevisionView(Answer):
    """One applied change."""

    revision: int
    base: int
    at: datetime
    author: str = ""
    reason: str = ""
    changes: dict[str, list[Any]] = {}
    """Path -> [old, new]."""


class TunablesView(Answer):
    """GET /tunables; history is newest first."""

    revision: int
    policy: str
    items: list[TunableView]
    history: list[RevisionView] = []


class TunablesChange(Ask):
    """PUT /tunables: all changes together or none; refused with 409 when `base` is not current."""

    base: int = Field(ge=0)
    changes: dict[str, Any] = Field(min_length=1)
    reason: str = Field(min_length=3, max_length=500)
    author: str = Field(default="", max_length=128)


class PolicyView(Answer):
    """One policy."""

    name: str
    sense: str
    source: str
    formula: str
    leaves_out: str = ""


class PolicyList(Answer):
    """GET /policies."""

    live: str
    policies: list[PolicyView]

"""Saved views of the console: a page with its filters and its window, under a name."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from core.wire.base import Answer, Ask

VIEWS_MAX = 50
"""Views that one person may keep."""
PARAMS_MAX = 40
PageName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z_-]{0,31}$")]
ParamName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$")]
ParamValue = Annotated[str, StringConstraints(max_length=2_000)]
ViewName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=80, strip_whitespace=True, pattern=r"^[^\x00]+$"),
]


class SavedViewAsk(Ask):
    """POST /views: kept under its name for whoever asks; `replace` an older one of that name."""

    name: ViewName
    page: PageName
    """Its path in the console, without the slash."""
    params: dict[ParamName, ParamValue] = Field(default={}, max_length=PARAMS_MAX)
    """Query parameters: filters, range or window, what is open."""
    shared: bool = False
    """Whether everybody sees it."""
    replace: bool = False
    reason: str = Field(default="", max_length=500)


class SavedView(Answer):
    """One view."""

    id: str
    name: str
    page: str
    params: dict[str, str] = {}
    shared: bool = False
    owner: str
    mine: bool = False
    """Whether the caller keeps it."""
    changed_at: datetime


class SavedViewList(Answer):
    """GET /views: the caller's own, then what others share, each by name."""

    views: list[SavedView]
    most: int = VIEWS_MAX
    """How many one person may keep."""

"""Saved views as links and rows. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import tzinfo
from html import escape
from urllib.parse import urlencode

from core import wire
from dashboard.navigation import address, present
from dashboard.parts import format as fmt

KEPT = frozenset({"range", "from", "to", "tz"})
"""Parameters of the frame that belong to a view; others say how a page is looked at, not at what.
"""
VALUE_MAX = 2_000


def kept_params(given: Mapping[str, str], known: Collection[str]) -> dict[str, str]:
    """The query parameters that belong to a view of a page, which takes the `known` ones."""
    return {name: value for name, value in given.items() if name in KEPT or name in known}


def complaint(params: Mapping[str, str]) -> str:
    """Why these parameters cannot be kept; empty where they can."""
    long = next((name for name, value in params.items() if len(value) > VALUE_MAX), None)
    return f"{long} is longer than {VALUE_MAX} characters." if long else ""


def full(found: wire.SavedViewList) -> bool:
    """Whether the reader keeps as many as one may."""
    return sum(v.mine for v in found.views) >= found.most


def params_words(params: Mapping[str, str]) -> str:
    """Parameters in a line, long ones cut."""
    return "; ".join(f"{name} {value[:40]}" for name, value in params.items())


def href(view: wire.SavedView) -> str:
    """Its address in this console; empty for a page that is not there."""
    if view.page not in _titles():
        return ""
    query = f"?{urlencode(view.params)}" if view.params else ""
    return f"{address(view.page)}{query}"


def links_markup(views: Sequence[wire.SavedView]) -> str:
    """All as links; the whole page is loaded, so that every filter starts from the address."""
    if not views:
        return "<p>No view is kept yet.</p>"
    lines = []
    for v in views:
        target, name = href(v), escape(v.name)
        link = f'<a href="{escape(target)}" target="_self">{name}</a>' if target else name
        about = f"{_titles().get(v.page, 'a page that is not here')}; {_whose(v)}"
        lines.append(f"<li>{link} <small>{escape(about)}</small></li>")
    return f"<ul class='cd-views'>{''.join(lines)}</ul>"


def view_rows(views: Sequence[wire.SavedView], zone: tzinfo) -> list[dict[str, object]]:
    """As a table."""
    return [
        {
            "View": v.name,
            "Page": _titles().get(v.page, v.page),
            "Shows": params_words(v.params) or "all",
            "Kept by": v.owner,
            "Shared": "✓ with everybody" if v.shared else "",
            "Changed": fmt.moment(v.changed_at, zone)[:19],
        }
        for v in views
    ]


def _whose(v: wire.SavedView) -> str:
    if v.mine:
        return "yours, shared" if v.shared else "yours"
    return f"shared by {v.owner}"


def _titles() -> dict[str, str]:
    return {e.name: e.title for entries in present().values() for e in entries}

"""Pieces of markup that several pages use. Text from outside is escaped."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import escape

import streamlit as st

from dashboard.navigation import view
from dashboard.overview.models import Notice, Tile
from dashboard.parts.theme import SIGN, Level

_CODE = re.compile(r"`([^`]+)`")


def tile_grid(tiles: Sequence[Tile]) -> None:
    """Stat tiles in as many columns as fit."""
    st.html(f"<div class='cd-tiles'>{''.join(_tile(t) for t in tiles)}</div>")


def _tile(t: Tile) -> str:
    return (
        f"<div class='cd-tile cd-t-{t.level}' title='{escape(t.help, quote=True)}'>"
        f"<div class='cd-name'>{escape(t.name)}</div>"
        f"<div class='cd-value'>{escape(t.value)}</div>"
        f"<div class='cd-word cd-{t.level}'>{SIGN[t.level]} {escape(t.word)}</div>"
        f"<div class='cd-sub'>{escape(t.sub)}</div></div>"
    )


def notice(n: Notice) -> None:
    """A message above the content; announced by screen readers when it is grave."""
    role = "alert" if n.level == "bad" else "status"
    body = f"<p>{with_code(n.text)}</p>" if n.text else ""
    st.html(
        f"<div class='cd-note cd-n-{n.level}' role='{role}'>"
        f"<strong class='cd-{n.level}'>{SIGN[n.level]}</strong> "
        f"<strong>{escape(n.title)}</strong>{body}</div>"
    )


def with_code(text: str) -> str:
    """Escaped text in which `backquoted` parts are set as code."""
    return _CODE.sub(r"<code>\1</code>", escape(text))


Link = Callable[[str], tuple[str, dict[str, str], str] | None]
"""From a problem to the page where it is looked into, its parameters, and a label."""


def problem_list(problems: Sequence[tuple[Level, str]], link: Link = lambda _: None) -> None:
    """Sentences with a sign and a colour each, and a link to where it is looked into."""
    if not problems:
        st.html("<div class='cd-list'><span class='cd-ok'>✓ No known problem.</span></div>")
        return
    for level, text in problems:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.html(
                f"<div class='cd-list'><div><span class='cd-{level}' aria-hidden='true'>"
                f"{SIGN[level]}</span><span>{escape(text)}</span></div></div>"
            )
            found = link(text)
            if found is not None and (path := view(found[0])) is not None:
                st.page_link(path, label=found[2], query_params=found[1] or None)


def heading(title: str, note: str = "") -> None:
    """A section heading with a quiet remark beside it."""
    st.html(f"<h2 class='cd-h'>{escape(title)} <span>{escape(note)}</span></h2>")


def bar(share: float, words: str, level: Level = "none") -> None:
    """A progress bar with a sentence, readable without its colour."""
    percent = round(100 * min(max(share, 0.0), 1.0))
    st.html(
        f"<div class='cd-bar'><div class='cd-word cd-{level}'>{SIGN[level]} {escape(words)}</div>"
        f"<div class='cd-track' role='progressbar' aria-valuenow='{percent}' aria-valuemin='0' "
        f"aria-valuemax='100' aria-label='{escape(words, quote=True)}'>"
        f"<div class='cd-fill cd-f-{level}' style='width:{percent}%'></div></div></div>"
    )


def badge(label: str, value: str, level: Level | None = None) -> str:
    """Markup of one badge of the frame; with a level, a sign and a colour."""
    sign = f"<span class='cd-{level}' aria-hidden='true'>{SIGN[level]}</span>" if level else ""
    tone = f" class='cd-{level}'" if level else ""
    return f"<span class='cd-badge'>{sign}<i>{escape(label)}</i><b{tone}>{escape(value)}</b></span>"


def strip(badges: Sequence[str], page: str = "", title: str = "") -> None:
    """A row of badges; the frame's begins with the title of its page, which the menu does not show
    for pages of a section, and names the page, for whoever waits for that."""
    named = f" data-page='{page}'" if page else ""
    head = f"<h1 class='cd-where'>{escape(title)}</h1>" if title else ""
    st.html(f"<div class='cd-strip'{named}>{head}{''.join(badges)}</div>")

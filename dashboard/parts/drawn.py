"""Parts of a page that are drawn once for all who look at the same, and sent again to the rest.

What Streamlit sends for a part depends on what is drawn and on where it stands, not on whose
session it is. At a refresh the messages of a part are taken from the session that drew it first,
as long as the answers it was drawn from are the very same objects (which readers of different
rights never share, see `shared`). What a reader can change (buttons, choices, selections) does not
belong into such a part; charts do.

This leans on Streamlit's insides, as `lighter` does; where they are not as expected, each session
draws for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from streamlit.delta_generator_singletons import context_dg_stack
from streamlit.runtime.scriptrunner import get_script_run_ctx

from dashboard.parts.shared import shared


@dataclass(slots=True)
class Recording:
    """What drawing a part sent, and what it did besides."""

    messages: list[Any] = field(default_factory=list)
    elements: frozenset[str] = frozenset()
    """Ids of those that have one."""
    widgets: frozenset[str] = frozenset()
    """Those of them of which a session keeps a state: charts."""
    moved: int = 0
    """Places that it took up in the container it stands in."""


def drawn(*name: Hashable, given: tuple[object, ...], draw: Callable[[], None]) -> None:
    """Draw a part, or send what another session drew from the objects `given`.

    `name` says which part it is, with every plain value that it depends on.
    """
    place = _place()
    if place is None:
        draw()
        return
    mine = False

    def make() -> Recording:
        nonlocal mine
        mine = True
        with _recorded(place) as recording:
            draw()
        return recording

    found = shared("drawn", *name, *place.key, given=given, make=make)
    if not mine and not _sent_again(found, place):
        draw()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a refresh draws next."""

    ctx: Any
    cursor: Any
    key: tuple[Hashable, ...]


def _place() -> _Place | None:
    """None outside of a refresh: the first time everything is drawn in earnest."""
    ctx: Any = get_script_run_ctx(suppress_warning=True)
    if ctx is None or not ctx.fragment_ids_this_run:
        return None
    try:
        cursor = context_dg_stack.get()[-1]._cursor
        if cursor is None or cursor.is_locked:
            return None
        key = (*ctx.fragment_ids_this_run, ctx.page_script_hash, *cursor.delta_path)
    except (AttributeError, IndexError):
        return None
    return _Place(ctx, cursor, key)


@contextmanager
def _recorded(place: _Place) -> Iterator[Recording]:
    """What is sent within; it is sent as well."""
    recording, ctx, first = Recording(), place.ctx, place.cursor.index
    send, before = ctx.enqueue, ctx.shared.widget_ids_this_run.snapshot()

    def recorded(message: Any) -> None:
        send(message)
        recording.messages.append(message)

    ctx.enqueue = recorded
    try:
        yield recording
    finally:
        ctx.enqueue = send
    recording.elements = ctx.shared.widget_ids_this_run.snapshot() - before
    recording.widgets = frozenset(e for e in recording.elements if _kept(ctx, e))
    recording.moved = place.cursor.index - first


def _sent_again(recording: Recording, place: _Place) -> bool:
    """Send a recording; False where the reader never drew one of its charts."""
    ctx = place.ctx
    if not all(_kept(ctx, widget) for widget in recording.widgets):
        return False
    for element in recording.elements:
        ctx.shared.widget_ids_this_run.check_and_add(element)
    for message in recording.messages:
        ctx.enqueue(message)
    place.cursor._index += recording.moved
    return True


def _kept(ctx: Any, element: str) -> bool:
    return ctx.session_state._state.get_widget_metadata(element) is not None

"""Answers kept for some seconds, shared by all sessions: more readers do not mean more work."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

import streamlit as st

from dashboard import session
from dashboard.api.client import Unreachable
from dashboard.parts.store import Kept

T = TypeVar("T")
MEANWHILE_S = 120.0
"""An answer that old is shown at once, where the next refresh shows the new one."""


@st.cache_resource(show_spinner=False)
def _kept() -> Kept:
    return Kept()


def forget() -> None:
    """After an act: nothing that was read before it is shown as if it were of now."""
    _kept().clear()


def kept(*key: Hashable, ttl_s: float, read: Callable[[], T], meanwhile_s: float = 0.0) -> T:
    """As `Kept.get`, for all readers with the same rights: what one may see is not kept for
    another, and what is a person's own is not kept at all. Whoever reads does so with a token of
    their own.

    With `meanwhile_s` `read` may run in a thread, where nothing of the session can be asked for.
    A page that is paused waits for the fresh answer, since it is not drawn again.

    While the service is known not to answer nobody waits for it again: the last answer stays, and
    without one `Unreachable` says why. Its read-only twin checks the token of each reader.
    """
    asked = session.reader()
    of_service = asked is session.client()
    whose = session.rights() if of_service else session.own_rights()
    whole = (session.service_url(), whose, asked.base_url, *key)
    error = session.feed().look().error
    if error and of_service:
        found: T | None = _kept().last(whole)
        if found is None:
            raise Unreachable(error)
        return found
    behind_s = meanwhile_s if session.live() else 0.0
    return _kept().get(whole, ttl_s, read, meanwhile_s=behind_s)
